"""Signals that come at the same time as something else: a time-out, or another branch that waits for the same name."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.support.working import LIMIT_S, types, working

from jobledger.ledger import (
    InvalidInputError,
    JobHandle,
    JobState,
    Ledger,
    Run,
    Signal,
    Unique,
    UnknownSignalError,
    workflow,
)
from jobledger.ledger.model.subjects import JobRef

pytestmark = pytest.mark.anyio

approved = Signal("approved", str)


async def in_state(job: JobHandle[Any], state: JobState) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await job.state() is not state:
            await asyncio.sleep(0.005)


@workflow(queue="runs", max_attempts=1)
async def waits(run: Run, timeout_s: float) -> str:
    try:
        return await run.wait(approved, timeout_s=timeout_s)
    except TimeoutError:
        return "nobody"


async def test_a_signal_that_is_recorded_before_the_time_out_is_taken_though_its_hint_was_lost(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: JobRef) -> None: ...

    monkeypatch.setattr(ledger.hints, "tell_resume", lost)
    async with working(ledger, waits):  # with free slots so short a wait stays in memory
        job = await ledger.enqueue(waits, timeout_s=0.5)
        async with asyncio.timeout(LIMIT_S):
            while "approved" not in (await job.snapshot()).steps:
                await asyncio.sleep(0.005)
        with contextlib.suppress(UnknownSignalError):  # on a machine that is too slow for this test
            await ledger.signal(job, approved, "ada")
        said = await job.result(timeout_s=LIMIT_S)
    found = [each for each in await types(job) if each in ("signalled", "step_completed", "step_failed")]
    assert said == ("ada" if found[0] == "signalled" else "nobody")


@workflow(queue="runs", max_attempts=1)
async def two_wait(run: Run) -> list[str]:
    async def one() -> str:
        return await run.wait(approved)

    return sorted(await run.gather(one, one))


async def test_branches_that_wait_for_one_name_take_a_signal_each(ledger: Ledger) -> None:
    async with working(ledger, two_wait, concurrency=1):
        job = await ledger.enqueue(two_wait)
        await in_state(job, JobState.WAITING)
        for by in ("ada", "eve"):
            await ledger.signal(job, approved, by)
        assert await job.result(timeout_s=LIMIT_S) == ["ada", "eve"]


@workflow(queue="runs", max_attempts=1)
async def order(run: Run, number: str, cents: int = 0) -> str:
    said = await run.wait(approved)
    return f"{number} for {cents}: {said}"


async def test_a_signal_makes_the_run_that_it_is_for_unless_that_exists(ledger: Ledger) -> None:
    for cents, click in ((5, "1"), (6, "1"), (7, "2")):
        start = order.options(priority="high").with_input("77", cents=cents)
        sent = await ledger.signal("order-77", approved, f"click {click}", id=click, start=start)
        assert sent is (cents != 6)
    job = await ledger.job("order-77", task=order)
    assert await types(job) == ["queued", "signalled", "signalled"]
    assert (await job.snapshot()).order.priority == "high"
    async with working(ledger, order):
        assert await job.result(timeout_s=LIMIT_S) == "77 for 5: click 1"
    with pytest.raises(UnknownSignalError):
        await ledger.signal("order-77", approved, "late", start=order.with_input("77"))


async def test_two_that_signal_a_run_at_once_make_one(ledger: Ledger) -> None:
    starts = [order.options(id="order-1").with_input("1", cents=cents) for cents in range(20)]
    sent = [ledger.signal("order-1", approved, "now", id="click", start=start) for start in starts]
    assert sorted(await asyncio.gather(*sent)) == [False] * 19 + [True]
    assert await types(await ledger.job("order-1")) == ["queued", "signalled"]


async def test_a_signal_refuses_to_make_another_run_than_it_is_for(ledger: Ledger) -> None:
    with pytest.raises(InvalidInputError, match="has the id order-2, and the signal is for order-1"):
        await ledger.signal("order-1", approved, "x", start=order.options(id="order-2").with_input("1"))
    with pytest.raises(InvalidInputError, match=r"has no input: give what with_input\(...\) of the task"):
        await ledger.signal("order-1", approved, "x", start=order)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInputError, match="would be in queue runs, not in other"):
        await ledger.signal("order-1", approved, "x", queue="other", start=order.with_input("1"))
    with pytest.raises(InvalidInputError, match="task order is unique"):
        await ledger.signal("order-1", approved, "x", start=order.options(unique=Unique()).with_input("1"))
    with pytest.raises(InvalidInputError, match="number"):
        order.with_input()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    with pytest.raises(InvalidInputError, match="no str"):
        await ledger.signal("order-1", approved, 3, start=order.with_input("1"))  # type: ignore[misc] # pyright: ignore[reportArgumentType]
    assert (await ledger.enqueue(order.options(id="order-1"), "1")).created  # none of them left anything
