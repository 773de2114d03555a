"""Recorded runs rehearsed against other code: what diverges is found, and nothing is called or appended."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import pytest

from jobledger.ledger import Run, Signal, step, task, workflow
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.job import Job
from jobledger.ledger.runs.rehearsal import RehearsalResult, rehearse
from jobledger.testing import MemoryLedger

pytestmark = pytest.mark.anyio
CALLS: list[str] = []
go, other = Signal("go", int), Signal("other", int)


@step
async def one(n: int) -> int:
    CALLS.append("one")
    return n


@step
async def two(n: int) -> int:
    CALLS.append("two")
    return 2 * n


@step
async def three(n: int) -> int:
    CALLS.append("three")
    return 3 * n


@task(queue="q")
async def child(n: int) -> int:
    return n


async def recorded(run: Run) -> int:
    a = await run.step(one, 1)
    b = await run.step(two, a)
    await run.map(child, [1, 2])
    await run.sleep(1)
    return b + await run.wait(go)


async def _job(function: Any, *, until: float = 10.0) -> tuple[MemoryLedger, Job]:
    """Return a run of that code that waits for its signal."""
    ledger = MemoryLedger(child)
    handle = await ledger.enqueue(workflow(name="w", queue="q")(function).options(id="w-1"))
    await ledger.advance(until)
    job = (await load(ledger.log, handle.ref)).job
    assert job is not None
    return ledger, job


async def _rehearsed(function: Any, code: Any) -> RehearsalResult:
    ledger, job = await _job(function)
    before = (await ledger.log.head()).last_sequence
    CALLS.clear()
    found = await rehearse(
        workflow(name="w", queue="q")(code),
        job,
        now=ledger.clock.now(),
        get=functools.partial(ledger.inputs.get, key=""),
    )
    assert CALLS == []
    assert (await ledger.log.head()).last_sequence == before
    return found


async def test_the_same_code_fits_up_to_its_wait() -> None:
    assert await _rehearsed(recorded, recorded) == RehearsalResult()


async def test_steps_that_are_added_removed_and_swapped_fit() -> None:
    async def added(run: Run) -> int:
        await run.step(one, 1)
        await run.step(three, 1)
        return await run.step(two, 1)

    async def removed(run: Run) -> int:
        await run.step(one, 1)
        return await run.wait(go)

    async def swapped(run: Run) -> int:
        await run.step(two, 1)
        await run.step(one, 1)
        return await run.wait(go)

    found = await _rehearsed(recorded, added)
    assert (found.diverged, found.new, found.unvisited) == (None, ("three",), ("two", "child", "sleep", "go"))
    assert (await _rehearsed(recorded, removed)).unvisited == ("two", "child", "sleep")
    assert (await _rehearsed(recorded, swapped)).new == ()


async def test_another_input_function_or_kind_diverges_behind_whatever_is_new_but_needs_no_function() -> None:
    async def other_input(run: Run) -> int:
        if await run.patched("later"):
            await run.step(three, 1)
        await run.now()
        await run.sleep(timedelta(days=9))
        return await run.step(two, 7)

    async def other_function(run: Run) -> int:
        return await run.step(three.options(name="one"), 1)

    async def other_items(run: Run) -> list[int]:
        return await run.map(child, [1, 3])

    async def caught(run: Run) -> int:
        try:
            return await run.step(two, 7)
        except Exception:  # noqa: BLE001 - as code that catches too much
            return 0

    for code, key, asked in (
        (other_input, "two", "step two with input"),
        (other_function, "one", "step three"),
        (other_items, "child", "map child with input"),
        (caught, "two", "step two with input"),
    ):
        found = await _rehearsed(recorded, code)
        assert found.diverged is not None, code
        assert (found.diverged.key, found.error) == (key, None)
        assert found.diverged.asked.startswith(asked)
        assert found.diverged.sequence > 0


async def test_branches_stop_each_at_its_own_end_of_what_is_recorded() -> None:
    async def before(run: Run) -> None:
        async def left() -> None:
            await run.step(one, 1)
            await run.wait(go)

        async def right() -> None:
            await run.step(two, 1)
            await run.wait(other)

        await run.gather(left, right)

    async def after(run: Run) -> None:
        async def left() -> None:
            await run.step(three, 1)  # new: this branch stops
            await run.step(one, 1)

        async def right() -> None:
            await run.step(two, 5)

        await run.gather(left, right)

    found = await _rehearsed(before, after)
    assert found.diverged is not None
    assert found.diverged.key == "right/two"
    assert found.new == ("left/three",)
    twelve = await _rehearsed(before, _wide)
    assert len(twelve.new) == 12


async def _wide(run: Run) -> None:
    async def branch() -> None:
        await run.step(three, 1)

    await run.gather(*[branch] * 12)


async def test_runs_in_flight_ended_or_failed_are_rehearsed_as_well() -> None:
    ledger, job = await _job(recorded)
    code = workflow(name="w", queue="q")(recorded)
    await ledger.signal("w-1", go, 3)
    await ledger.run_pending()
    ended = (await load(ledger.log, (await ledger.job("w-1")).ref)).job
    assert ended is not None
    assert ended.state == "completed"
    assert (
        await rehearse(code, ended, now=job.updated_at, get=functools.partial(ledger.inputs.get, key=""))
        == RehearsalResult()
    )

    async def fails(run: Run) -> None:
        await run.step(one, 1)
        raise ValueError("as ever")

    found = await _rehearsed(fails, fails)
    assert str(found.error) == "as ever"

    async def starts(run: Run) -> int:
        begun = await run.start(child.options(queue="far"), 1)
        await run.step(one, 1)
        return await begun.result()

    async def starts_other(run: Run) -> int:
        begun = await run.start(child.options(queue="far"), 1)
        await run.step(one, 2)
        return await begun.result()

    assert await _rehearsed(starts, starts) == RehearsalResult()
    assert (await _rehearsed(starts, starts_other)).diverged is not None
