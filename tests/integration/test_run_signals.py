"""Signals that come at the same time as something else: a time-out, or another branch that waits for the same name."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.support.working import LIMIT_S, types, working

from jobledger.ledger import JobHandle, JobState, Ledger, Run, Signal, UnknownSignalError, workflow

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
    monkeypatch.setattr(ledger.hints, "tell_resume", lambda _: None)
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
        await in_state(job, JobState.PAUSED)
        for by in ("ada", "eve"):
            await ledger.signal(job, approved, by)
        assert await job.result(timeout_s=LIMIT_S) == ["ada", "eve"]
