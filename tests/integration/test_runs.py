"""Runs on a real server: what is recorded once, what waits without a slot, and what code is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest
from tests.support.working import LIMIT_S, Connect, attempts, becomes, ended, types, until, working

from jobledger.ledger import (
    NOT_DONE,
    Backoff,
    ForeignTaskError,
    JobHandle,
    JobState,
    Ledger,
    Run,
    Signal,
    StepFailedError,
    TaskRegistry,
    UnknownSignalError,
    step,
    task,
    workflow,
)
from jobledger.ledger.model.errors import InvalidError, InvalidInputError, TaskDefinitionError
from jobledger.ledger.model.events import StepCompleted, StepFailed

pytestmark = pytest.mark.anyio

CALLS: Counter[str] = Counter()
AT_ONCE = Backoff(base_s=0)


class Approval(msgspec.Struct):
    by: str
    yes: bool


approved = Signal("approved", Approval)


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()


@step
async def charge(order: str) -> str:
    CALLS["charge"] += 1
    return f"ch_{order}"


@step
def ship(order: str, *, weight: float = 1.0) -> list[float]:
    CALLS["ship"] += 1
    return [weight, len(order)]


@step(max_attempts=3, backoff=AT_ONCE)
async def flaky(good_from: int) -> int:
    CALLS["flaky"] += 1
    if CALLS["flaky"] < good_from:
        raise OSError("not yet")
    return CALLS["flaky"]


@step
async def refund(charge_id: str) -> None:
    CALLS[f"refund {charge_id}"] += 1


async def steps(job: JobHandle[Any]) -> dict[str, str]:
    """Return the states of a run's steps by their keys."""
    return {key: each.state for key, each in (await job.snapshot()).steps.items()}


@workflow(queue="runs", max_attempts=2, backoff=AT_ONCE)
async def order(run: Run, order: str, weight: float = 2.0) -> str:
    charge_id = await run.step(charge, order)
    CALLS["between"] += 1
    if CALLS["between"] == 1:
        raise RuntimeError("between two steps")
    found = await run.step(ship, order, weight=weight)
    assert found == [weight, float(len(order))]
    return charge_id


async def test_a_step_that_ended_is_not_called_by_the_next_attempt(ledger: Ledger) -> None:
    async with working(ledger, order):
        job = await ledger.enqueue(order, "77")
        assert await job.result(timeout_s=LIMIT_S) == "ch_77"
    assert CALLS == {"charge": 1, "between": 2, "ship": 1}
    assert await types(job) == [
        "queued", "started", "step_completed", "failed",
        "started", "step_completed", "completed",
    ]  # fmt: skip


@workflow(queue="runs", max_attempts=1)
async def tries(run: Run, good_from: int) -> int:
    return await run.step(flaky, good_from)


async def test_a_step_is_tried_as_often_as_it_says_and_each_try_is_recorded(ledger: Ledger) -> None:
    async with working(ledger, tries):
        good = await ledger.enqueue(tries, 3)
        assert await good.result(timeout_s=LIMIT_S) == 3
        CALLS.clear()
        bad = await ledger.enqueue(tries, 9)
        job = await ended(bad)
    assert (await good.snapshot()).steps["flaky"].tries == 3
    assert (await types(good)).count("step_failed") == 2
    assert job.state is JobState.DEAD_LETTERED
    assert CALLS["flaky"] == 3
    assert job.error is not None
    assert (job.error.type, job.error.message) == ("OSError", "step 'flaky': not yet")


@workflow(queue="runs", max_attempts=1)
async def catches(run: Run) -> str:
    kept = ""
    try:
        await run.step(flaky, 9)
    except StepFailedError as error:
        kept = f"{error.type}: {error.message} ({error.tries})"
    await run.sleep(0.05)
    CALLS["end"] += 1
    return kept


async def test_a_step_that_failed_raises_the_same_in_every_attempt(ledger: Ledger) -> None:
    async with working(ledger, catches, concurrency=1):  # without a free slot each wait parks
        job = await ledger.enqueue(catches)
        assert await job.result(timeout_s=LIMIT_S) == "OSError: not yet (3)"
    assert await attempts(job) == ["paused", "completed"]
    assert CALLS == {"flaky": 3, "end": 1}


@workflow(queue="runs")
async def waits(run: Run, timeout_s: float | None = None) -> str:
    CALLS["began"] += 1
    try:
        answer = await run.wait(approved, timeout_s=timeout_s)
    except TimeoutError:
        await run.sleep(0.01)
        return "nobody"
    await run.step(charge, "a")
    return answer.by


async def test_a_signal_wakes_a_run_that_holds_no_slot_and_is_told_once(ledger: Ledger) -> None:
    async with working(ledger, waits, concurrency=1) as worker:
        jobs = [await ledger.enqueue(waits.options(id=f"w-{n}")) for n in range(3)]
        for job in jobs:
            await becomes(job, JobState.WAITING)
        await until(lambda: worker.counts().running == 0)
        for job in jobs:
            said = Approval(by=job.id, yes=True)
            assert await ledger.signal(job, approved, said, id="click")
            assert not await ledger.signal(job.id, approved, said, id="click")
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == ["w-0", "w-1", "w-2"]
        with pytest.raises(UnknownSignalError, match=r"run w-0 has ended \(completed\): signal 'approved'"):
            await ledger.signal("w-0", approved, Approval(by="late", yes=True), id="other")
        assert not await ledger.signal("w-0", approved, Approval(by="late", yes=True), id="click")
    assert CALLS == {"began": 6, "charge": 3}
    assert await types(jobs[0]) == [
        "queued", "started", "step_started", "paused", "queued",
        "started", "step_completed", "step_completed", "completed",
    ]  # fmt: skip


async def test_a_signal_that_came_early_is_kept_and_one_of_another_type_is_refused(ledger: Ledger) -> None:
    job = await ledger.enqueue(waits)
    assert await ledger.signal(job, approved, Approval(by="early", yes=True))
    with pytest.raises(InvalidInputError, match="the value of signal approved is no Approval"):
        await ledger.signal(job, approved, 3)  # type: ignore[misc] # pyright: ignore[reportArgumentType]
    async with working(ledger, waits):
        assert await job.result(timeout_s=LIMIT_S) == "early"
    assert CALLS["began"] == 1


async def test_a_wait_that_is_over_in_time_stays_so_whatever_comes_later(ledger: Ledger) -> None:
    async with working(ledger, waits, concurrency=1):
        job = await ledger.enqueue(waits, timeout_s=0.02)
        assert await job.result(timeout_s=LIMIT_S) == "nobody"
    assert await steps(job) == {"approved": "failed", "sleep": "completed"}


@workflow(queue="runs", parallel=2)
async def side_by_side(run: Run) -> list[Any]:
    async def first() -> str:
        return await run.step(charge, "a")

    async def second() -> list[float]:
        await run.sleep(0.03)
        await run.step(charge, "b")
        return await run.step(ship, "b")

    async def third() -> str:
        return (await run.wait(approved)).by

    found = await run.gather(first, second, third, first)
    return [*found, await run.step(charge, "c")]


async def test_branches_go_on_side_by_side_and_each_step_is_done_once(ledger: Ledger) -> None:
    async with working(ledger, side_by_side, concurrency=1):
        job = await ledger.enqueue(side_by_side)
        async with asyncio.timeout(LIMIT_S):
            while "second/ship" not in await steps(job):
                await asyncio.sleep(0.01)
        await becomes(job, JobState.WAITING)
        await ledger.signal(job, approved, Approval(by="eve", yes=True))
        assert await job.result(timeout_s=LIMIT_S) == ["ch_a", [1.0, 1.0], "eve", "ch_a", "ch_c"]
    assert set(await steps(job)) == {
        "first/charge", "first#2/charge", "second/sleep", "second/charge", "second/ship", "third/approved",
        "charge",
    }  # fmt: skip
    assert CALLS == {"charge": 4, "ship": 1}


@workflow(queue="runs", max_attempts=1)
async def in_foreign_task(run: Run, how: str) -> None:
    async def nested() -> None:
        await run.step(charge, "inside")

    if how == "task":
        await asyncio.create_task(run.step(charge, "a"))
    elif how == "gather":
        await asyncio.gather(run.step(charge, "a"), run.step(charge, "b"))
    else:
        await run.step(nested)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("task", "step 'charge' was begun in a task that the run did not make: use run.gather"),
        ("gather", "step 'charge' was begun in a task that the run did not make: use run.gather"),
        ("nested", "step 'charge' was begun inside of step 'nested': a step makes no steps"),
    ],
)
async def test_steps_outside_the_branches_of_the_run_are_refused(
    ledger: Ledger, how: str, sentence: str
) -> None:
    async with working(ledger, in_foreign_task):
        job = await ended(await ledger.enqueue(in_foreign_task, how))
    assert job.error is not None
    assert sentence in job.error.message
    assert job.error.type == ForeignTaskError.__name__
    assert CALLS["charge"] == 0


def changed(version: int) -> Any:
    """The workflow as it is deployed under one name, in several versions of its code."""

    @workflow(name="changed", queue="runs")
    async def function(run: Run) -> str:
        await run.step(charge, "a" if version != 2 else "b")
        await run.wait(approved)
        if version == 3 and await run.patched("ship-first"):
            await run.step(ship, "a")
        return f"version {version}"

    return function


async def test_code_that_asks_for_something_else_makes_a_dead_letter_that_goes_on_once_mended(
    ledger: Ledger,
) -> None:
    async with working(ledger, changed(1)):
        job = await ledger.enqueue(changed(1))
        await becomes(job, JobState.WAITING)
    async with working(ledger, changed(2)):
        await ledger.signal(job, approved, Approval(by="eve", yes=True))
        found = await ended(job)
    recorded = found.steps["charge"]
    assert (found.state, found.dead_reason) == (JobState.DEAD_LETTERED, "diverged")
    assert found.error is not None
    assert found.error.kind == "diverged"
    assert found.error.message == (
        f"step 'charge' was recorded at stream sequence {recorded.sequence} with another input; the code now asks for "
        f"step charge with input {found.error.message.split(' input ')[1].split()[0]} (recorded {recorded.input_sha256})"
    )
    async with working(ledger, changed(3)):
        await ledger.requeue(job)
        assert await job.result(timeout_s=LIMIT_S) == "version 3"
    assert CALLS["charge"] == 1
    assert CALLS["ship"] == 1  # what follows the signal was not recorded, so the new way is taken


@step(once=True)
async def wire(order: str) -> str:
    CALLS["wire"] += 1
    await asyncio.sleep(30 if CALLS["wire"] == 1 else 0)
    return "wired"


def look(order: str) -> object:
    CALLS["look"] += 1
    return "found" if order == "done" else NOT_DONE


looks = step(once=True, on_doubt=look, name="looks")(wire.function)
again = step(once=True, on_doubt="retry", name="again")(wire.function)


@workflow(queue="runs")
async def once(run: Run, how: str) -> str:
    return await run.step({"fail": wire, "again": again}.get(how, looks), how)


@pytest.mark.parametrize(
    ("how", "result", "calls"),
    [("fail", None, 1), ("again", "wired", 2), ("done", "found", 1), ("not done", "wired", 2)],
)
async def test_a_step_that_may_run_once_is_in_doubt_when_it_was_cut_off(
    ledger: Ledger, how: str, result: str | None, calls: int
) -> None:
    async with working(ledger, once, grace_s=0):
        job = await ledger.enqueue(once, how)
        await until(lambda: CALLS["wire"] == 1)
    async with working(ledger, once):
        found = await ended(job)
        assert CALLS["wire"] == calls
        if result is not None:
            assert await job.result() == result
            return
    assert found.state is JobState.DEAD_LETTERED
    assert found.error is not None
    assert found.error.kind == "in_doubt"
    assert "step 'wire' of run" in found.error.message


@workflow(queue="runs", max_attempts=1)
async def undone(run: Run, how: str) -> None:
    first = await run.step(charge, "1")
    run.on_failure(refund, first)
    second = await run.step(charge, "2")
    run.on_failure(refund, second)
    if how == "raise":
        raise RuntimeError("no stock")
    await run.wait(approved)
    await run.step(ship, "never")


async def _undos(job: JobHandle[Any]) -> list[str]:
    found = [stored.event for stored in await job.history()]
    return [
        each.step for each in found if isinstance(each, StepCompleted | StepFailed) and each.kind == "undo"
    ]


async def test_a_run_that_fails_for_good_takes_back_what_it_did_the_newest_first(ledger: Ledger) -> None:
    async with working(ledger, undone):
        job = await ledger.enqueue(undone, "raise")
        found = await ended(job)
    assert found.state is JobState.DEAD_LETTERED
    assert found.error is not None
    assert found.error.message == "no stock"
    assert await _undos(job) == ["undo/", "undo/refund#2", "undo/refund"]
    assert CALLS == {"charge": 2, "refund ch_1": 1, "refund ch_2": 1}


async def test_a_run_that_is_cancelled_while_it_waits_takes_back_what_it_did(ledger: Ledger) -> None:
    async with working(ledger, undone):
        job = await ledger.enqueue(undone, "wait")
        await becomes(job, JobState.WAITING)
        await job.cancel(reason="changed my mind")
        found = await ended(job)
    assert (found.state, found.cancel_reason) == (JobState.CANCELLED, "changed my mind")
    assert await _undos(job) == ["undo/refund#2", "undo/refund"]
    assert CALLS["ship"] == 0


@workflow(queue="runs")
async def values(run: Run) -> list[Any]:
    found = [str(await run.now()), str(await run.uuid()), await run.random(), await run.random()]
    await run.sleep(0.2)  # long enough to be waiting when the pause is recorded
    CALLS[repr(found)] += 1
    return found


async def test_values_that_differ_from_run_to_run_are_the_same_in_every_attempt(ledger: Ledger) -> None:
    async with working(ledger, values, concurrency=1):
        job = await ledger.enqueue(values)
        found = await job.result(timeout_s=LIMIT_S)
    assert found[2] != found[3]
    assert {repr(found): 1} == CALLS
    assert await attempts(job) == ["paused", "completed"]


@workflow(queue="runs")
async def races(run: Run) -> str:
    async def slow() -> str:
        await run.sleep(60)
        return "slow"

    async def signalled() -> str:
        return (await run.wait(approved)).by

    won = await run.race(slow, signalled)
    await run.sleep(0.01)
    return won


async def test_of_a_race_the_first_branch_wins_in_every_attempt(ledger: Ledger) -> None:
    async with working(ledger, races, concurrency=1):
        job = await ledger.enqueue(races)
        await becomes(job, JobState.WAITING)
        await ledger.signal(job, approved, Approval(by="eve", yes=True))
        assert await job.result(timeout_s=LIMIT_S) == "eve"
    assert (await steps(job))["race"] == "completed"


@step(timeout_s=0.05, max_attempts=2, backoff=AT_ONCE)
async def hangs() -> None:
    CALLS["hangs"] += 1
    await asyncio.sleep(30)


@workflow(queue="runs", max_attempts=1)
async def too_long(run: Run) -> None:
    await run.step(hangs)


async def test_a_try_that_takes_too_long_is_stopped_and_counts(ledger: Ledger) -> None:
    async with working(ledger, too_long):
        job = await ended(await ledger.enqueue(too_long))
    assert CALLS["hangs"] == 2
    assert job.error is not None
    assert (job.error.kind, job.error.type) == ("timeout", "TimeoutError")


def not_async(run: Run) -> None:
    raise AssertionError(run.id)


@task
async def no_workflow(run: Run) -> None:
    await run.sleep(1)


def test_what_cannot_be_a_workflow_is_refused_where_it_is_loaded() -> None:
    with pytest.raises(TaskDefinitionError, match="takes a Run: decorate it with @workflow"):
        TaskRegistry([no_workflow])
    with pytest.raises(TaskDefinitionError, match="define it with `async def`"):
        workflow()(not_async)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def test_a_run_is_gone_on_with_by_another_client_of_the_ledger(connected: Connect) -> None:
    async with connected() as first, working(first, waits):
        job = await first.enqueue(waits)
        await becomes(job, JobState.WAITING)
    async with connected() as second, working(second, waits):
        await second.signal(job, approved, Approval(by="eve", yes=True))
        assert await (await second.job(job.id, task=waits)).result(timeout_s=LIMIT_S) == "eve"
    assert CALLS == {"began": 2, "charge": 1}


@step
async def measure(text: str) -> int:
    CALLS["measure"] += 1
    return len(text)


def halve(number: int) -> float:
    return number / 2


@workflow(queue="runs", max_attempts=1)
async def mistakes(run: Run) -> list[str]:
    said: list[str] = []
    nothing, plain, job, many = cast("tuple[Any, ...]", (None, halve, known, run))
    wrongs: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: many.map(known, [1], limit=nothing),
        lambda: many.map(plain, [1]),
        lambda: many.call(plain, 1),
        lambda: many.each(job, [1]),
        lambda: many.each(halve, [1], limit=nothing),
        lambda: many.gather(noop, noop, limit=nothing),
        lambda: many.gather(noop(), noop()),
        lambda: many.race(noop, noop()),
    )
    for wrong in wrongs:
        try:
            await wrong()
        except InvalidError as error:
            said.append(str(error))
    return [*said, *map(str, await run.each(halve, [1, 3], chunk=2))]


@task(queue="runs")
async def known(number: int) -> int:
    return number


async def noop() -> None:
    """Do nothing."""


CALLED = "run.{0} takes functions without arguments, and got the call of noop: write run.{0}(lambda: run.call(...), ...)"
NO_STEP = (
    "known is a task, which a run calls as a job of its own: use run.call or run.map; "
    "a step is a function, plain or with @step"
)


async def test_each_takes_a_plain_function_and_what_cannot_be_is_told_in_a_sentence(ledger: Ledger) -> None:
    async with working(ledger, mistakes, known):
        job = await ledger.enqueue(mistakes)
        *said, first, second = await job.result(timeout_s=LIMIT_S)
    assert (first, second) == ("0.5", "1.5")
    no_task = (
        "halve is no task, so it cannot be a job of its own: decorate it with @task, or call it in this process "
        "with run.step or run.each"
    )
    assert said == [
        "limit of a group must be a whole number from 0 (no limit) to 100,000, got None",
        no_task,
        no_task,
        NO_STEP,
        "limit of run.each must be a whole number, 1 or more, got None",
        "limit must be a whole number, 0 (no limit) or more, got None",
        CALLED.format("gather"),
        CALLED.format("race"),
    ]
    assert list((await job.snapshot()).steps) == ["halve"]


@workflow(queue="runs")
async def each(run: Run, texts: list[str]) -> int:
    sizes = await run.each(measure, texts, chunk=4, limit=2)
    await run.sleep(0.01)
    return sum(sizes)


async def test_many_items_of_one_process_are_an_event_a_chunk(ledger: Ledger) -> None:
    async with working(ledger, each, concurrency=1):
        job = await ledger.enqueue(each, ["x" * n for n in range(10)])
        assert await job.result(timeout_s=LIMIT_S) == 45
    assert CALLS["measure"] == 10
    assert list((await job.snapshot()).steps) == ["measure", "measure#2", "measure#3", "sleep"]
