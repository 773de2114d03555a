"""Batches on a real server: jobs enqueued under one name, and what follows once when all of them have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.support.groups import Groups
from tests.support.working import LIMIT_S, ended, working

from jobledger.audit.verify import verify
from jobledger.ledger import (
    IllegalTransitionError,
    InvalidInputError,
    JobState,
    Ledger,
    TaskDefinitionError,
    enqueuer,
    task,
)
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import JobRef

pytestmark = pytest.mark.anyio


@task(queue="sums", max_attempts=1)
async def square(n: int) -> int:
    if n == 3:
        raise ValueError(n)
    return n * n


@task(queue="sums")
async def report(batch: str, counts: dict[str, int], title: str = "") -> str:
    return f"{batch}{title}: {counts}"


@task(queue="sums")
async def other(n: int) -> int:
    return n


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]


def handle(ledger: Ledger, job_id: str, queue: str = BUILT_IN_QUEUE) -> Any:
    return ledger.handle_of(JobRef(queue=queue, job_id=job_id))


async def test_the_end_of_a_batch_is_told_once_with_how_its_jobs_ended(ledger: Ledger) -> None:
    async with working(ledger, square, report):
        result = await ledger.enqueue_many(square, numbers(20), batch="b7", on_end=report)
        batch = handle(ledger, "b7")
        assert await batch.result(timeout_s=LIMIT_S) == {"completed": 19, "dead_lettered": 1}
        said = await handle(ledger, "b7-end", "sums").result(timeout_s=LIMIT_S)
        again = await ledger.enqueue_many(square, numbers(20), batch="b7", on_end=report)
    assert said == "b7: {'completed': 19, 'dead_lettered': 1}"
    assert (result.created, again.created, again.existing) == (20, 0, 20)
    assert (await handle(ledger, "b7-1-4", "sums").snapshot()).order.batch == "b7"
    assert (await Groups.of(ledger.log)).wrong == []
    assert (await verify(ledger.log)).violations == ()


async def test_a_batch_whose_jobs_end_before_its_run_begins_counts_them_all(ledger: Ledger) -> None:
    await ledger.pause_queue(BUILT_IN_QUEUE)
    async with working(ledger, square):
        await ledger.enqueue_many(square, numbers(3), batch="early")
        for item in range(3):
            await ended(handle(ledger, f"early-1-{item}", "sums"))
        await ledger.resume_queue(BUILT_IN_QUEUE)
        assert await handle(ledger, "early").result(timeout_s=LIMIT_S) == {"completed": 3}
    assert (await verify(ledger.log)).violations == ()


async def test_a_batch_that_its_client_left_open_waits_and_the_same_call_continues_it(ledger: Ledger) -> None:
    async def cut() -> AsyncGenerator[dict[str, Any]]:
        for each in numbers(2):
            yield each
        raise asyncio.CancelledError

    async with working(ledger, square):
        with pytest.raises(asyncio.CancelledError):
            await ledger.enqueue_many(square, cut(), batch="cut")
        for item in range(2):
            await ended(handle(ledger, f"cut-1-{item}", "sums"))
        batch = handle(ledger, "cut")
        assert not (await batch.snapshot()).is_final
        result = await ledger.enqueue_many(square, numbers(3), batch="cut")
        assert (result.created, result.existing) == (1, 2)
        assert await batch.result(timeout_s=LIMIT_S) == {"completed": 3}


async def test_a_batch_that_was_cancelled_before_it_was_closed_takes_no_more_jobs(ledger: Ledger) -> None:
    async def cancelling() -> AsyncGenerator[dict[str, Any]]:
        yield {"n": 0}
        await handle(ledger, "gone").cancel()

    refused = "job gone is cancelled: it cannot take more jobs as a batch"
    with pytest.raises(IllegalTransitionError, match=refused):
        await ledger.enqueue_many(square, cancelling(), batch="gone")
    before = (await ledger.log.head()).last_sequence
    with pytest.raises(IllegalTransitionError, match=refused):
        await ledger.enqueue_many(square, numbers(2), batch="gone")
    assert (await ledger.log.head()).last_sequence == before


async def test_cancelling_a_batch_that_its_client_left_open_ends_its_jobs(ledger: Ledger) -> None:
    async def cut() -> AsyncGenerator[dict[str, Any]]:
        for each in numbers(70):
            yield each
        raise asyncio.CancelledError

    for name in ("begun", "not-begun"):  # the run of the second one has no step, and nobody ever takes it
        if name == "not-begun":
            await ledger.pause_queue(BUILT_IN_QUEUE)
        async with working(ledger, report):  # nobody runs their jobs
            with pytest.raises(asyncio.CancelledError):
                await ledger.enqueue_many(square.options(queue="idle"), cut(), batch=name)
            batch = handle(ledger, name)
            async with asyncio.timeout(LIMIT_S):
                while name == "begun" and (await batch.state()) is not JobState.WAITING:
                    await asyncio.sleep(0.01)
            await batch.cancel()
            jobs = [handle(ledger, f"{name}-1-{item}", "idle") for item in (0, 35, 69)]
            for each in jobs:
                assert (
                    await ended(each)
                ).cancel_reason == f"its batch {name} was ended before all its jobs were added"
    assert (await verify(ledger.log)).violations == ()


async def test_a_client_that_goes_on_adding_jobs_to_a_cancelled_batch_cancels_them(ledger: Ledger) -> None:
    async def cancelling() -> AsyncGenerator[dict[str, Any]]:
        for each in numbers(3):
            yield each
        await handle(ledger, "late").cancel()
        for each in numbers(3):
            yield each

    with pytest.raises(IllegalTransitionError, match="job late is cancelled"):  # no worker, no reactor
        await ledger.enqueue_many(square, cancelling(), batch="late")
    states = [await handle(ledger, f"late-1-{item}", "sums").state() for item in range(6)]
    assert states == [JobState.CANCELLED] * 6


async def test_a_batch_that_is_cancelled_while_jobs_are_added_leaves_a_sound_ledger(ledger: Ledger) -> None:
    async def cancelling() -> AsyncGenerator[dict[str, Any]]:
        yield {"n": 1}
        async with asyncio.timeout(LIMIT_S):
            while await handle(ledger, "begun").state() is not JobState.WAITING:
                await asyncio.sleep(0.01)
        await handle(ledger, "begun").cancel()
        for each in numbers(40):
            yield each

    async with working(ledger, square):
        with pytest.raises(IllegalTransitionError, match="job begun is cancelled"):
            await ledger.enqueue_many(square, cancelling(), batch="begun")
    report = await verify(ledger.log)
    assert report.sound, report.violations


async def test_a_batch_is_refused_while_another_job_has_the_id_of_what_follows_it(ledger: Ledger) -> None:
    """The batch would complete, and nobody would be told."""
    await ledger.enqueue(other.options(id="b7-end"), n=1)
    before = (await ledger.log.head()).last_sequence
    with pytest.raises(
        InvalidInputError, match="job b7-end of queue sums is there and none of batch b7: give"
    ):
        await ledger.enqueue_many(square, numbers(2), batch="b7", on_end=report)
    assert (await ledger.log.head()).last_sequence == before
    await ledger.enqueue_many(square, numbers(2), batch="b7")  # nothing follows this one


async def test_a_batch_fails_for_good_if_another_job_took_the_id_of_what_follows_it(ledger: Ledger) -> None:
    async def taking() -> AsyncGenerator[dict[str, Any]]:
        yield {"n": 0}
        await ledger.enqueue(other.options(id="b8-end"), n=1)

    async with working(ledger, square, report, other):
        await ledger.enqueue_many(square, taking(), batch="b8", on_end=report)
        batch = handle(ledger, "b8")
        first = await ended(batch)
        await ledger.requeue(batch)  # this attempt finds that the step was begun
        for job in (first, await ended(batch)):
            assert (job.state, job.dead_reason) == (JobState.DEAD_LETTERED, "rejected")
            assert job.error is not None
            assert "sums/b8-end is not the child of run b8" in job.error.message
    assert (await Groups.of(ledger.log)).wrong == []
    assert (await verify(ledger.log)).violations == ()


async def test_an_empty_batch_ends_at_once(ledger: Ledger) -> None:
    async with working(ledger, square, report):
        await ledger.enqueue_many(square, [], batch="empty", on_end=report)
        assert await handle(ledger, "empty").result(timeout_s=LIMIT_S) == {"completed": 0}
        assert (
            await handle(ledger, "empty-end", "sums").result(timeout_s=LIMIT_S) == "empty: {'completed': 0}"
        )


async def test_a_batch_takes_no_more_jobs_than_its_run_can_count(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueuer, "ITEMS_MAX", 3)
    with pytest.raises(InvalidInputError, match="input 3: a batch has at most 3 jobs: make several"):
        await ledger.enqueue_many(square, numbers(4), batch="large")
    result = await ledger.enqueue_many(square, numbers(3), batch="large")
    assert (result.created, result.existing) == (0, 3)


async def test_a_batch_is_not_changed_by_another_call(ledger: Ledger) -> None:
    await ledger.enqueue_many(square, numbers(2), batch="b")
    before = (await ledger.log.head()).last_sequence
    with pytest.raises(InvalidInputError, match="batch b is closed and has 2 jobs"):
        await ledger.enqueue_many(square, numbers(3), batch="b")
    with pytest.raises(InvalidInputError, match="exists with another task"):
        await ledger.enqueue_many(other, numbers(2), batch="b")
    with pytest.raises(InvalidInputError, match="leave ids= out"):
        await ledger.enqueue_many(square, numbers(2), batch="c", ids=lambda each: f"j{each['n']}")
    with pytest.raises(InvalidInputError, match="name one with batch="):
        await ledger.enqueue_many(square, numbers(2), on_end=report)
    with pytest.raises(InvalidInputError, match="needs the argument 'n'"):
        await ledger.enqueue_many(square, numbers(2), batch="c", on_end=other)
    with pytest.raises(TaskDefinitionError, match="task report at the end of batch c cannot have delay_s"):
        await ledger.enqueue_many(square, numbers(2), batch="c", on_end=report.options(delay_s=60))
    assert (await ledger.log.head()).last_sequence == before


async def test_a_cancelled_batch_ends_its_jobs_and_tells_nobody(ledger: Ledger) -> None:
    async with working(ledger, report):  # nobody runs its jobs
        await ledger.enqueue_many(square.options(queue="idle"), numbers(3), batch="c", on_end=report)
        batch = handle(ledger, "c")
        async with asyncio.timeout(LIMIT_S):
            while (job := await batch.snapshot()).state is not JobState.WAITING or job.steps[
                "jobs"
            ].count != 3:
                await asyncio.sleep(0.01)
        await batch.cancel()
        for item in range(3):
            assert (await ended(handle(ledger, f"c-1-{item}", "idle"))).state is JobState.CANCELLED
    assert (await Groups.of(ledger.log)).wrong == []
