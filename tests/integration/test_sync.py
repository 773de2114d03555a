"""Blocking code speaks to the same ledger, from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from jobledger.ledger import JobState, task
from jobledger.ledger.model.errors import InvalidInputError, JobNotFoundError, ResultTimeoutError
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.sync import JobHandle, connect


@task(queue="sync")
def double(number: int) -> int:
    return 2 * number


def test_blocking_code_enqueues_reads_and_is_told_what_is_wrong(nats_server: EmbeddedServer) -> None:
    with connect(nats_server.url, environment="t_sync1", ledger_bytes_max=1 << 24) as ledger:
        block = ledger.lock("account", "42")
        with block as held:
            assert held.is_held
        with pytest.raises(InvalidInputError, match="account/42 was entered before: call `lock` anew"), block:
            pass
        job = ledger.enqueue(double, number=4)
        assert job.created
        assert job.state() is JobState.QUEUED
        assert [stored.stream_sequence for stored in job.history()] == [job.sequence]
        assert ledger.job(job.id).snapshot().task == "double"
        with pytest.raises(ResultTimeoutError):
            job.result(timeout_s=0.05)
        with pytest.raises(InvalidInputError, match="number"):
            ledger.enqueue(double, number="four")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        with pytest.raises(JobNotFoundError):
            ledger.job("nobody")
        assert ledger.cancel(job, reason="not needed").state is JobState.CANCELLED
        later = ledger.enqueue(double.options(delay_s=3_600), number=5)
        assert ledger.retry(later, reason="now").state is JobState.QUEUED


def test_threads_share_one_connection(nats_server: EmbeddedServer) -> None:
    def begin(number: int) -> JobHandle[int]:
        return ledger.enqueue(double.options(id=f"job-{number % 10}"), number)

    with (
        connect(nats_server.url, environment="t_sync2", ledger_bytes_max=1 << 24) as ledger,
        ThreadPoolExecutor(8) as pool,
    ):
        made = list(pool.map(begin, range(80)))
        assert sum(job.created for job in made) == 10
        done = ledger.enqueue_many(double, ({"number": n} for n in range(100)))
        assert done.created == 100


def test_blocking_code_reads_events_as_a_durable_subscription(nats_server: EmbeddedServer) -> None:
    with connect(nats_server.url, environment="t_sync3", ledger_bytes_max=1 << 24) as ledger:
        ledger.enqueue_many(double, ({"number": n} for n in range(5)))
        assert [stored.stream_sequence for stored in ledger.events(follow=False, types=["queued"])] == [
            1,
            2,
            3,
            4,
            5,
        ]
        with ledger.events(durable="sync") as events:
            for stored in events:
                if stored.stream_sequence == 3:
                    break
        assert [(info.name, info.lag) for info in ledger.subscriptions()] == [("sync", 3)]
        assert [stored.stream_sequence for stored in ledger.events(durable="sync", follow=False)] == [3, 4, 5]
        assert ledger.delete_subscription("sync").acknowledged_sequence == 5
        with ledger.events(live=True) as events, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, events)
            job = ledger.enqueue(double, number=9)
            assert waiting.result(10).event.job == job.id
        with pytest.raises(InvalidInputError, match="sequences begin at 1"):
            ledger.events(from_sequence=0)
