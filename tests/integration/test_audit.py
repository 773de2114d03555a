"""The checker against a real server: a ledger that workers made is sound, and what is published past them is found."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.limits import LIMIT_S

from jobledger.audit.verify import Expectation, Report, leftovers, verify
from jobledger.ledger import Backoff, Context, Ledger, Retry, TaskRegistry, task
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.codec import digest, encode
from jobledger.ledger.model.events import Completed, JobEvent, Queued
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers import Worker, WorkerConfig

if TYPE_CHECKING:
    from nats.aio.client import Client


pytestmark = pytest.mark.anyio


@task(queue="work", max_attempts=3, backoff=Backoff(base_s=0.05))
async def double(ctx: Context, number: int) -> int | Retry:
    if number % 3 == 0 and ctx.attempt == 1:
        return Retry(0)
    if number % 5 == 0:
        raise ValueError(f"{number} does not please")
    return 2 * number


async def drained(ledger: Ledger, count: int) -> list[tuple[str, str]]:
    """Enqueue, and run a worker until every job is final; return whose enqueue was acknowledged."""
    jobs = [await ledger.enqueue(double, number) for number in range(count)]
    worker = Worker(ledger, TaskRegistry([double]), WorkerConfig(grace_s=1.0))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(LIMIT_S):
        for job in jobs:
            await job.wait(timeout_s=LIMIT_S)
        assert await leftovers(ledger.inbox, ledger.names, within_s=LIMIT_S) == []
        worker.stop()
        await running
    return [("work", job.id) for job in jobs]


async def publish(raw: Client, ledger: Ledger, job: JobRef, event: JobEvent) -> int:
    """Append an event that nobody decided, with the right link and the right condition."""
    chain = await load(ledger.log, job)
    data = encode(msgspec.structs.replace(event, prev=digest(chain.last_data) if chain.last_data else ""))
    condition = {
        "Nats-Expected-Last-Subject-Sequence": str(chain.last_sequence),
        "Nats-Expected-Last-Subject-Sequence-Subject": ledger.names.chain(job),
    }
    accepted = await raw.jetstream().publish(ledger.names.event(event), data, headers=condition)
    return accepted.seq


def found(report: Report) -> list[tuple[int, str]]:
    return [(each.stream_sequence, each.rule) for each in report.violations]


async def test_what_workers_made_is_sound_and_nothing_is_left(ledger: Ledger) -> None:
    enqueued = await drained(ledger, 40)
    left = await leftovers(ledger.inbox, ledger.names)
    report = await verify(ledger.log, expected=Expectation(enqueued=enqueued, all_final=True, leftovers=left))
    assert report.violations == ()
    assert report.states == {"completed": 32, "dead_lettered": 8}
    assert report.head_sequence == (await ledger.log.head()).last_sequence
    assert report.attempts > 40
    again = await verify(ledger.log, before=report)
    assert (again.sound, again.digest) == (True, report.digest)


@pytest.mark.unsound_ledger("events that nobody decided are planted")
async def test_an_illegal_event_that_the_server_accepted_is_found(ledger: Ledger, raw: Client) -> None:
    _, (queue, job_id), *_ = await drained(ledger, 4)
    before = await verify(ledger.log)
    event = Completed(job=job_id, queue=queue, task=double.name, at=datetime.now(UTC), by="forger", attempt=1)
    sequence = await publish(raw, ledger, JobRef(queue=queue, job_id=job_id), event)
    report = await verify(ledger.log, before=before)
    assert found(report) == [(sequence, "outcome")]
    assert report.violations[0].job == f"work/{job_id}"
    assert "second outcome of attempt 1" in report.violations[0].sentence


@pytest.mark.unsound_ledger("events that nobody decided are planted")
async def test_a_timer_that_somebody_fired_early_is_found(ledger: Ledger, raw: Client) -> None:
    now = datetime.now(UTC)
    delayed = await ledger.enqueue(double.options(run_at=now + timedelta(hours=1), id="later"), 1)
    event = Queued(
        job=delayed.id, queue="work", task=double.name, at=now, by="forger", cause="due", max_attempts=3
    )
    sequence = await publish(raw, ledger, JobRef(queue="work", job_id=delayed.id), event)
    report = await verify(ledger.log)
    assert found(report) == [(sequence, "timer")]


@pytest.mark.unsound_ledger("events that nobody decided are planted")
async def test_what_is_no_event_is_found_and_the_rest_is_checked(ledger: Ledger, raw: Client) -> None:
    await ledger.enqueue(double, 1)
    root = ledger.names.ledger_root
    await raw.jetstream().publish(f"{root}.job.work.j.started", b"garbage")
    await raw.jetstream().publish(f"{root}.planet.earth.born", b"{}")
    forged = Completed(job="j2", queue="work", task="t", at=datetime.now(UTC), by="forger", attempt=1)
    await publish(raw, ledger, JobRef(queue="work", job_id="j2"), forged)
    report = await verify(ledger.log)
    assert found(report) == [(2, "readable"), (3, "readable"), (4, "transition")]


async def test_a_check_stops_where_it_was_told_to(ledger: Ledger) -> None:
    await drained(ledger, 10)
    whole = await verify(ledger.log)
    part = await verify(ledger.log, to_sequence=7)
    assert (part.sound, part.head_sequence, part.events) == (True, 7, 7)
    rest = await verify(ledger.log, from_sequence=8)
    assert (rest.sound, rest.events) == (True, whole.events - 7)


async def test_what_no_worker_took_is_left_in_the_consumer(ledger: Ledger) -> None:
    await drained(ledger, 1)
    enqueued = await ledger.enqueue(double, 7)
    left = await leftovers(ledger.inbox, ledger.names)
    assert [(each.consumer, each.pending, each.ack_pending) for each in left] == [("work_work_normal", 1, 0)]
    report = await verify(ledger.log, expected=Expectation(all_final=True, leftovers=left))
    assert report.broken == {"consumer": 1, "final": 1}
    assert report.violations[0].stream_sequence == enqueued.sequence
