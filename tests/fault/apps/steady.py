"""Runs of children, one after the other, for tests that watch how steadily they go on."""

from __future__ import annotations

from jobledger.ledger import Run, Signal, task, workflow

CHILDREN = 4


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
