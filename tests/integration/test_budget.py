"""Work without a worker that stays: one job run by hand, and a worker with a budget."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.limited import define
from tests.support.working import LIMIT_S, becomes

from jobledger.ledger import (
    Backoff,
    Context,
    IllegalTransitionError,
    InvalidInputError,
    JobState,
    Ledger,
    TaskRegistry,
    task,
)
from jobledger.ledger.model.chain import load, transact
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import PutBack
from jobledger.ledger.model.events import Queued
from jobledger.ledger.nats.durables import find_consumer
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.timer_stream import DUE_CONSUMER
from jobledger.workers import single
from jobledger.workers.budget import BudgetResult, run_within
from jobledger.workers.single import run_one

pytestmark = pytest.mark.anyio

seen: list[WorkerInfo] = []


@task(queue="small")
async def add(a: int, b: int) -> int:
    return a + b


@task(queue="small", max_attempts=2, backoff=Backoff(base_s=0.3, jitter=0.0))
async def flaky(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise ValueError("not the first time")
    return ctx.attempt


@task(queue="small")
async def waits(ctx: Context) -> None:
    await asyncio.sleep(LIMIT_S)


@task(queue="small")
async def looks(ctx: Context) -> None:
    seen.extend(info for info in await ctx.ledger.leases.all() if not info.stopped)


@task(queue="small")
async def until_completed(ctx: Context, queue: str, job_id: str) -> None:
    await (await ctx.ledger.job(job_id, queue=queue)).wait(timeout_s=LIMIT_S)


TASKS = TaskRegistry([add, flaky, waits, looks, until_completed])


async def test_who_runs_a_job_by_hand_is_seen_at_its_queue(ledger: Ledger) -> None:
    seen.clear()
    job = await ledger.enqueue(looks)
    assert (await run_one(ledger, TASKS, job.ref)).state is JobState.COMPLETED
    (info,) = seen
    assert (info.queues, info.reactors) == (("small",), True)


async def test_a_job_with_limits_is_admitted_by_who_runs_it_by_hand(ledger: Ledger) -> None:
    await define(ledger, "api", slots=1)
    first, second = [await ledger.enqueue(add.options(limits=("api",)), 1, n) for n in (2, 3)]
    for job in (first, second):  # the first one gave its slot back
        assert (await run_one(ledger, TASKS, job.ref)).state is JobState.COMPLETED


async def test_a_job_that_is_put_back_and_admitted_again_before_it_is_claimed_is_run(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await define(ledger, "api", slots=1)
    job = await ledger.enqueue(add.options(limits=("api",)), 1, 2)
    queued = single._queued  # pyright: ignore[reportPrivateUsage]
    late: list[StoredEvent] = []

    async def put_back(*given: Any) -> StoredEvent:
        dispatch = await queued(*given)
        if not late:
            late.append(dispatch)
            view = await load(ledger.log, job.ref)
            assert view.job is not None
            command = PutBack(asked_by=view.job.wait_sequence)
            await transact(ledger.log, job.ref, command, ledger.stamp, known=view)
        return dispatch

    monkeypatch.setattr(single, "_queued", put_back)
    assert (await run_one(ledger, TASKS, job.ref)).state is JobState.COMPLETED
    causes = [stored.event.cause for stored in await job.history() if isinstance(stored.event, Queued)]
    assert causes == ["admitted", "admitted"]


async def test_a_job_that_its_limits_do_not_admit_stays_as_it_is(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.workers.single._ADMITTED_WITHIN_S", 0.1)
    job = await ledger.enqueue(add.options(limits=("undefined",)), 1, 2)
    with pytest.raises(IllegalTransitionError, match="its limits did not admit it within 0"):
        await run_one(ledger, TASKS, job.ref)
    assert await job.state() is JobState.HELD


async def test_it_runs_what_is_ready_and_ends(ledger: Ledger) -> None:
    await define(ledger, "api", slots=1)
    jobs = [await ledger.enqueue(add, 1, n) for n in range(3)]
    limited = [await ledger.enqueue(add.options(limits=("api",)), 1, n) for n in range(3)]
    later = await ledger.enqueue(add.options(delay_s=3_600), 1, 2)
    assert await run_within(ledger, TASKS, budget_s=LIMIT_S) == BudgetResult(ran=6, left=0)
    for job in (*jobs, *limited):
        assert await job.state() is JobState.COMPLETED
    assert await later.state() is JobState.SCHEDULED
    assert await run_within(ledger, TASKS, budget_s=LIMIT_S) == BudgetResult(ran=0, left=0)


async def test_a_retry_comes_in_time_while_it_works(ledger: Ledger) -> None:
    job = await ledger.enqueue(flaky)
    other = await ledger.enqueue(until_completed, job.queue, job.id)
    assert await run_within(ledger, TASKS, budget_s=LIMIT_S) == BudgetResult(ran=3, left=0)
    assert await job.result(timeout_s=LIMIT_S) == 2
    assert await other.state() is JobState.COMPLETED


async def test_what_became_due_while_nobody_worked_is_done(ledger: Ledger) -> None:
    """The first one sets the timer and ends, since the job waits for a time; it fires when nobody listens."""
    job = await ledger.enqueue(add.options(delay_s=2.5), 1, 2)
    assert (await run_within(ledger, TASKS, budget_s=LIMIT_S)).ran == 0
    async with asyncio.timeout(LIMIT_S):
        while True:
            info = await find_consumer(ledger.inbox, ledger.names.timers_stream, DUE_CONSUMER)
            if info is not None and info.pending:
                break
            await asyncio.sleep(0.02)
    assert (await run_within(ledger, TASKS, budget_s=LIMIT_S)).ran == 1
    assert await job.state() is JobState.COMPLETED


async def test_it_takes_no_more_than_it_may(ledger: Ledger) -> None:
    for n in range(5):
        await ledger.enqueue(add, 1, n)
    found = await run_within(ledger, TASKS, queue="small", limit=2, budget_s=LIMIT_S)
    assert found == BudgetResult(ran=2, left=3)


async def test_at_the_end_of_the_budget_jobs_are_given_back(ledger: Ledger) -> None:
    job = await ledger.enqueue(waits)
    found = await run_within(ledger, TASKS, budget_s=0.5, grace_s=0)
    assert found.ran == 1
    after = await job.snapshot()
    assert (after.state, after.attempts_given_back) == (JobState.QUEUED, 1)


async def test_cancelled_it_gives_its_jobs_back(ledger: Ledger) -> None:
    job = await ledger.enqueue(waits)
    running = asyncio.create_task(run_within(ledger, TASKS, budget_s=LIMIT_S))
    await becomes(job, JobState.RUNNING)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await job.state() is JobState.QUEUED


async def test_a_budget_out_of_range_is_refused(ledger: Ledger) -> None:
    for limit in (0, 10_001):
        with pytest.raises(InvalidInputError, match="limit"):
            await run_within(ledger, TASKS, limit=limit)
    for budget_s in (0.0, float("nan"), 3_601.0):
        with pytest.raises(InvalidInputError, match="budget_s"):
            await run_within(ledger, TASKS, budget_s=budget_s)
