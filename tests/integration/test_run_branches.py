"""Many branches of a run at once: what they record goes together in a few appends, and is right whoever else appends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.working import LIMIT_S, working

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, PayloadTooLargeError, Run, Signal, step, workflow
from jobledger.ledger.model.log import Entry

pytestmark = pytest.mark.anyio

BRANCHES, STEPS = 50, 6
note = Signal("note", int)
_called: list[tuple[int, int]] = []


@step
async def square(branch: int, value: int) -> int:
    _called.append((branch, value))
    return value * value


@step
async def large(branch: int) -> str:
    return "x" * 40_000


@workflow(queue="branches")
async def wide(run: Run) -> int:
    def branch(number: int) -> Any:
        async def body() -> int:
            return sum([await run.step(square, number, value) for value in range(STEPS)])

        return body

    return sum(await run.gather(*map(branch, range(BRANCHES))))


@workflow(queue="branches", parallel=BRANCHES)
async def heavy(run: Run) -> int:
    def branch(number: int) -> Any:
        async def body() -> int:
            return len(await run.step(large, number))

        return body

    return sum(await run.gather(*map(branch, range(BRANCHES))))


@workflow(queue="branches")
async def raced(run: Run) -> int:
    """Race a branch that ends soon with one whose many branches are cut off while they record."""

    async def many() -> int:
        return sum(await run.gather(*[endless] * BRANCHES))

    async def endless() -> int:
        return sum([await run.step(square, 0, value) for value in range(10_000)])

    async def soon() -> int:
        return sum([await run.step(square, 1, value) for value in range(STEPS)])

    return await run.race(many, soon) + await run.step(square, 2, 3)


class Appends:
    """How many events each append of a ledger has."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        append = ledger.log.append

        async def counted(entries: Sequence[Entry]) -> int:
            self.sizes.append(len(entries))
            return await append(entries)

        monkeypatch.setattr(ledger.log, "append", counted)


EXPECTED = BRANCHES * sum(value * value for value in range(STEPS))


async def test_steps_of_many_branches_are_recorded_in_a_few_appends(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends = Appends(ledger, monkeypatch)
    async with working(ledger, wide):
        assert await (await ledger.enqueue(wide)).result(timeout_s=LIMIT_S) == EXPECTED
    assert sum(appends.sizes) >= BRANCHES * STEPS
    assert len(appends.sizes) <= BRANCHES * STEPS / 5, appends.sizes
    assert (await verify(ledger.log)).violations == ()


async def test_an_append_that_cannot_be_stored_together_is_done_one_by_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event at fault is a matter of its own step."""
    append = ledger.log.append

    async def refusing(entries: Sequence[Entry]) -> int:
        if len(entries) > 1:
            raise PayloadTooLargeError("event", 9, 8)
        return await append(entries)

    monkeypatch.setattr(ledger.log, "append", refusing)
    async with working(ledger, wide):
        assert await (await ledger.enqueue(wide)).result(timeout_s=LIMIT_S) == EXPECTED


async def test_large_results_go_in_batches_that_the_server_takes(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends = Appends(ledger, monkeypatch)
    async with working(ledger, heavy):
        assert await (await ledger.enqueue(heavy)).result(timeout_s=LIMIT_S) == BRANCHES * 40_000
    assert 16 <= max(appends.sizes) <= (1 << 20) // 40_000 + 1


async def test_steps_of_branches_are_recorded_once_while_others_append_to_the_run(ledger: Ledger) -> None:
    _called.clear()
    async with working(ledger, wide):
        job = await ledger.enqueue(wide)

        async def disturb() -> None:
            for number in range(1_000):
                await ledger.signal(job.ref, note, number)

        disturbing = asyncio.create_task(disturb())
        try:
            assert await job.result(timeout_s=LIMIT_S) == EXPECTED
        finally:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
    assert len(_called) == len(set(_called)) == BRANCHES * STEPS
    assert (await job.snapshot()).signals
    assert (await verify(ledger.log)).violations == ()


async def test_branches_that_are_cut_off_while_they_record_leave_the_others_going(ledger: Ledger) -> None:
    async with working(ledger, raced):
        job = await ledger.enqueue(raced)
        assert await job.result(timeout_s=LIMIT_S) == sum(value * value for value in range(STEPS)) + 9
    assert (await job.snapshot()).attempts_count == 1
    assert (await verify(ledger.log)).violations == ()
