"""Deliveries that come again, leases that end, workers that stop, ledgers that are full: each job runs on, once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.support.full_ledgers import unthrottled
from tests.support.jetstream import api
from tests.support.worker_tasks import BEGAN, RUNS, double, sleep, sleep_in_thread
from tests.support.working import LIMIT_S, Connect, ended, types, until, working

from jobledger.ledger import (
    Context,
    JobHandle,
    JobState,
    Ledger,
    Task,
    TaskRegistry,
    task,
)
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Claim, DeadLetter, Requeue
from jobledger.ledger.model.errors import LedgerFullError, ServerUnreachableError
from jobledger.ledger.model.log import ChainEvents, Entry
from jobledger.workers import Worker, WorkerConfig

pytestmark = pytest.mark.anyio
FULL = asyncio.Event()
GATE = asyncio.Event()


@pytest.fixture(autouse=True)
def forget_runs() -> None:
    RUNS.clear()
    BEGAN.clear()


# Deliveries that come again.


async def test_what_is_on_its_way_to_a_worker_that_stops_runs_elsewhere_at_once(ledger: Ledger) -> None:
    for round_ in range(20):  # each stop meets a delivery on its way about one time in five
        await ledger.pause_queue("default", by="ann")
        job = await ledger.enqueue(double, round_)
        async with working(ledger, double):
            await ledger.resume_queue("default", by="ann")
        async with working(ledger, double):
            assert await job.result(timeout_s=WorkerConfig().ack_wait_s / 2) == 2 * round_


@pytest.mark.parametrize("each", [sleep, sleep_in_thread], ids=["async", "sync"])
async def test_jobs_longer_than_the_ack_wait_run_once(ledger: Ledger, each: Task[[float], int]) -> None:
    async with working(ledger, each, ack_wait_s=1, grace_s=LIMIT_S):
        jobs = [await ledger.enqueue(each, 2.5) for _ in range(10)]
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == [1] * 10
        assert set(RUNS.values()) == {1}
        assert all([await types(job) == ["queued", "started", "completed"] for job in jobs])


async def test_a_storm_of_redeliveries_runs_nothing_twice(ledger: Ledger) -> None:
    # Nobody keeps the deliveries alive: each running job is delivered again every second.
    worker = Worker(ledger, TaskRegistry([sleep]), WorkerConfig(ack_wait_s=1, grace_s=5.0, concurrency=50))
    worker._intake.keep_alive = _for_ever  # type: ignore[method-assign]
    running = asyncio.create_task(worker.run())
    try:
        jobs = [await ledger.enqueue(sleep, 3.0) for _ in range(20)]
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == [1] * 20
    finally:
        worker.stop()
        await running
    assert set(RUNS.values()) == {1}


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_deleted_consumer_is_made_again_and_nothing_runs_again(ledger: Ledger) -> None:
    async with working(ledger, double):
        jobs = [await ledger.enqueue(double, n) for n in range(30)]
        for job in jobs:
            await ended(job)
        names = ledger.names
        consumer = names.consumer("default", "normal")
        answer = await api(ledger.inbox, f"CONSUMER.DELETE.{names.ledger_stream}.{consumer}", {})
        assert answer["success"]
        late = await ledger.enqueue(double, 99)
        assert await late.result(timeout_s=LIMIT_S) == 198
        info = await api(ledger.inbox, f"CONSUMER.INFO.{names.ledger_stream}.{consumer}", {})
        async with asyncio.timeout(LIMIT_S):  # what was done before is delivered again, and dropped
            while info["num_pending"] or info["num_ack_pending"]:
                await asyncio.sleep(0.02)
                info = await api(ledger.inbox, f"CONSUMER.INFO.{names.ledger_stream}.{consumer}", {})
    assert set(RUNS.values()) == {1}
    assert len([1 async for _ in ledger.events(types=["started"], follow=False)]) == 31


async def test_a_job_of_a_dead_worker_is_taken_over_when_its_lease_is_over(ledger: Ledger) -> None:
    job = await ledger.enqueue(double, 3)
    await ledger.execute(job.ref, Claim(worker="dead-1-00", lease_s=2.0))  # it has no lease and never will
    async with working(ledger, double):
        assert await job.result(timeout_s=LIMIT_S) == 6
    assert [attempt.state for attempt in (await job.snapshot()).attempts] == ["lost", "completed"]


async def test_the_last_attempt_of_a_dead_worker_makes_a_dead_letter(ledger: Ledger) -> None:
    job = await ledger.enqueue(double.options(max_attempts=1), 3)
    await ledger.execute(job.ref, Claim(worker="dead-1-00", lease_s=2.0))
    async with working(ledger, double):
        done = await ended(job)
    assert (done.state, done.dead_reason, RUNS["double-3"]) == (JobState.DEAD_LETTERED, "exhausted", 0)
    assert done.error is not None
    assert done.error.kind == "lost"


async def test_a_view_older_than_the_delivery_settles_nothing(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that lags behind may answer the read: an ack on its word would strand the job."""
    async with connected() as client, connected() as served:
        job = await client.enqueue(double.options(max_attempts=1), 3)
        read = served.log.read_chain
        stale = await read(served.names.chain(job.ref))
        await client.execute(job.ref, DeadLetter(reason="rejected"))
        await client.execute(job.ref, Requeue())
        answers = [stale, ChainEvents()]

        async def lagging(chain: str) -> ChainEvents:
            return answers.pop() if answers else await read(chain)

        monkeypatch.setattr(served.log, "read_chain", lagging)
        async with working(served, double):
            assert await job.result(timeout_s=LIMIT_S) == 6
        assert not answers


# Leases.


async def test_a_lease_bucket_that_does_not_answer_is_no_lease_that_is_over(ledger: Ledger) -> None:
    assert await ledger.leases.find("nobody") is None
    await api(ledger.inbox, f"STREAM.DELETE.KV_{ledger.names.workers_bucket}", {})
    with pytest.raises(ServerUnreachableError):
        await ledger.leases.find("nobody")


async def test_a_live_lease_is_never_taken_over_however_often_the_job_is_delivered(
    connected: Connect,
) -> None:
    async with connected() as one, connected() as two, working(one, sleep, ack_wait_s=1) as first:
        job = await one.enqueue(sleep, 4.0)
        await until(lambda: first.running == 1)
        first._intake._held._held.clear()  # the broker hears nothing of it any more and delivers it to the other
        async with working(two, sleep, ack_wait_s=1):
            assert await job.result(timeout_s=LIMIT_S) == 1
    assert RUNS[job.id] == 1


async def test_a_lost_lease_stops_its_jobs_and_the_worker_goes_on_as_another(connected: Connect) -> None:
    async with connected(lease_s=2.0) as ledger, working(ledger, sleep, double) as worker:
        before = worker.identity
        job = await ledger.enqueue(sleep, 1.0)
        await until(lambda: worker.running == 1)
        # Somebody removed the key: the next renewal on its revision is refused.
        answer = await api(ledger.inbox, f"STREAM.PURGE.KV_{ledger.names.workers_bucket}", {})
        assert answer["success"]
        await until(lambda: worker.identity != before)
        assert await job.result(timeout_s=LIMIT_S) >= 1
        assert await (await ledger.enqueue(double, 1)).result(timeout_s=LIMIT_S) == 2
        assert (await ledger.leases.find(worker.identity)) is not None
        snapshot = await job.snapshot()
    assert [attempt.state for attempt in snapshot.attempts] in (["completed"], ["interrupted", "completed"])


# The end of a worker.


@task
async def holds(context: Context) -> int:
    await GATE.wait()
    return context.attempt


@task
async def sleeps_at_first(context: Context) -> int:
    await asyncio.sleep(60 if context.attempt == 1 else 0)
    return context.attempt


async def test_a_stopping_worker_lets_running_jobs_end_and_takes_no_more(ledger: Ledger) -> None:
    GATE.clear()
    async with working(ledger, holds, concurrency=2, ack_wait_s=600, grace_s=LIMIT_S) as worker:
        jobs = [await ledger.enqueue(holds) for _ in range(2)]
        await until(lambda: worker.running == 2)
        waiting = await ledger.enqueue(sleep, 0)
        worker.stop()
        GATE.set()
    assert [await job.state() for job in jobs] == [JobState.COMPLETED] * 2
    assert await waiting.state() is JobState.QUEUED
    assert RUNS[waiting.id] == 0
    async with working(ledger, sleep):
        assert await waiting.result(timeout_s=LIMIT_S) == 1  # given back at once, not after the ack wait


async def test_jobs_beyond_the_grace_are_given_back_with_their_attempt(connected: Connect) -> None:
    async with connected() as one, connected() as two:
        async with working(one, sleeps_at_first, grace_s=0.3) as worker:
            job = await one.enqueue(sleeps_at_first.options(max_attempts=1))
            await until(lambda: worker.running == 1)
            identity = worker.identity
            worker.stop()
        assert await types(job) == ["queued", "started", "interrupted", "queued"]
        assert await one.leases.find(identity) is None
        async with working(two, sleeps_at_first):
            assert await job.result(timeout_s=LIMIT_S) == 2
        states = [attempt.state for attempt in (await job.snapshot()).attempts]
        assert states == ["interrupted", "completed"]


async def test_a_second_stop_does_not_wait_for_the_grace(ledger: Ledger) -> None:
    async with working(ledger, sleep, grace_s=600.0) as worker:  # it is waited for only for a while
        job = await ledger.enqueue(sleep, 600.0)
        await until(lambda: worker.running == 1)
        worker.stop()
        worker.stop()
    assert await types(job) == ["queued", "started", "interrupted", "queued"]


@task
async def stubborn() -> str:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return "done all the same"


async def test_a_task_that_ends_well_though_told_to_stop_is_completed(ledger: Ledger) -> None:
    async with working(ledger, stubborn, grace_s=0.0) as worker:
        job = await ledger.enqueue(stubborn)
        await until(lambda: worker.running == 1)
        worker.stop()
    assert await job.result(timeout_s=LIMIT_S) == "done all the same"
    assert await types(job) == ["queued", "started", "completed"]


# A full ledger.


async def test_work_goes_on_as_soon_as_a_full_ledger_has_room(
    connected: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(ledger_bytes_max=1 << 16) as ledger:
        unthrottled(ledger)
        jobs: list[JobHandle[int]] = []
        refused, append = Counter[str](), ledger.log.append

        async def counted(entries: Sequence[Entry]) -> int:
            try:
                return await append(entries)
            except LedgerFullError:
                refused.update(each.chain for each in entries)
                raise

        async def fill() -> None:
            while True:
                jobs.append(await ledger.enqueue(double, len(jobs)))

        with pytest.raises(LedgerFullError):
            await fill()
        assert (await ledger.log.head()).last_sequence == len(jobs) > 20
        monkeypatch.setattr(ledger.log, "append", counted)
        slots = WorkerConfig().concurrency
        async with working(ledger, double):
            await until(lambda: sum(count >= 2 for count in refused.values()) == min(slots, len(jobs)))
            assert "claims wait until there is room" in caplog.text
            assert not RUNS
            assert caplog.text.count("has reached its byte limit") == 1  # one line a minute
            await _make_room(ledger)
            async with asyncio.timeout(5.0):
                assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == [
                    2 * n for n in range(len(jobs))
                ]
    assert set(RUNS.values()) == {1}


async def test_a_worker_with_claims_that_wait_for_room_stops_at_once(connected: Connect) -> None:
    async with connected(ledger_bytes_max=1 << 16) as ledger:
        unthrottled(ledger)
        with pytest.raises(LedgerFullError):
            await _fill(ledger)
        async with working(ledger, double, queues=("elsewhere",), grace_s=LIMIT_S) as worker:
            await until(lambda: worker.counts().held > 0)
            stopped_at = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - stopped_at < LIMIT_S / 2


async def _make_room(ledger: Ledger) -> None:
    stream = ledger.names.ledger_stream
    config = (await api(ledger.inbox, f"STREAM.INFO.{stream}", {}))["config"]
    answer = await api(ledger.inbox, f"STREAM.UPDATE.{stream}", {**config, "max_bytes": 16 << 20})
    assert "error" not in answer


@task(queue="work")
async def waits_for_the_ledger_to_be_full(context: Context) -> str:
    RUNS[context.job_id] += 1
    await FULL.wait()
    return "y" * 4_000  # needs more room than is left


async def _fill(ledger: Ledger) -> None:
    for n in range(10_000):
        await ledger.enqueue(double.options(queue="elsewhere"), n)


async def test_an_outcome_is_kept_until_a_full_ledger_has_room(
    connected: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    FULL.clear()
    async with connected(ledger_bytes_max=1 << 16) as ledger:
        unthrottled(ledger)
        job = await ledger.enqueue(waits_for_the_ledger_to_be_full)
        async with working(ledger, waits_for_the_ledger_to_be_full) as worker:
            await until(lambda: RUNS[job.id] == 1)
            with pytest.raises(LedgerFullError):
                await _fill(ledger)
            FULL.set()
            await until(lambda: "is held back" in caplog.text)
            assert await job.state() is JobState.RUNNING
            assert worker.running == 1
            await _make_room(ledger)
            assert len(await job.result(timeout_s=LIMIT_S)) == 4_000
        assert RUNS[job.id] == 1
        assert await types(job) == ["queued", "started", "completed"]


@task(queue="sleepers", max_attempts=5)
async def sleeps(number: int) -> None:
    await asyncio.sleep(1_000)


async def test_a_worker_gives_a_thousand_jobs_back_within_its_grace(
    connected: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    grace_s = 4.0
    async with connected() as ledger:
        await ledger.enqueue_many(sleeps, ({"number": number} for number in range(1_000)))
        async with working(ledger, sleeps, concurrency=1_000, grace_s=grace_s) as worker:
            await until(lambda: worker.running == 1_000)
            worker.stop()
            stopped_at = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - stopped_at < grace_s + 1.0
        assert "cut off" not in caplog.text
        found = Counter[str]()
        async for batch in ledger.log.read_messages():
            found.update(type(each.event).__name__ for each in batch if isinstance(each, StoredEvent))
    assert found["Interrupted"] == found["Started"] == 1_000
    assert found["Queued"] == 2_000
