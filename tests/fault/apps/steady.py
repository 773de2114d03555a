"""Runs of children, one after the other, for tests that watch how steadily they go on."""

from __future__ import annotations

from jobledger.ledger import Run, task, workflow

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
