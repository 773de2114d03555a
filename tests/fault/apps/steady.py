"""Runs of children, one after the other, for tests that watch how steadily they go on."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from jobledger.ledger import Run, Signal, task, workflow
from jobledger.ledger.model.clock import SystemClock

CHILDREN = 4
#: By how many seconds the machine's clock is ahead, for a process that loads this: workers do before they connect.
AHEAD = "STEADY_CLOCK_AHEAD_S"

if AHEAD in os.environ:

    def _now(_clock: SystemClock) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(os.environ[AHEAD]))

    SystemClock.now = _now  # type: ignore[method-assign, assignment]


@task(queue="work")
async def child(number: int) -> int:
    return number


@workflow(queue="work")
async def family(run: Run) -> int:
    return sum(await run.map(child, range(CHILDREN)))


@task(queue="work")
async def add() -> None:
    """The job of a schedule."""


go = Signal("go", str)


@workflow(queue="work")
async def patient(run: Run) -> str:
    """Wait for a signal that nobody gives."""
    try:
        return await run.wait(go, timeout_s=1.5)
    except TimeoutError:
        return "timed out"
