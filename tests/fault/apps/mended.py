"""Children that fail one time in five, and workflows over them, for a person who requeues what died.

The workflows themselves outlive the kills of their workers: a run that is given up cancels its open children, and only
beginning it again helps then.
"""

from __future__ import annotations

import asyncio
import functools
import random
from typing import Final

from jobledger.ledger import Run, RunEnd, task, workflow

FAILS: Final = 0.2
CALLS: Final = 4
_chance = random.Random()


@task(queue="kids", max_attempts=1)
async def sheet(n: int) -> int:
    """Sleep on the loop for up to 0.25 s, then fail one time in five."""
    await asyncio.sleep(n * 37 % 100 / 400)
    if _chance.random() < FAILS:
        message = f"sheet {n} is torn"
        raise ValueError(message)
    return n


@task(queue="ears", max_attempts=50)
async def told(end: RunEnd) -> str:
    """Return which run ended."""
    return f"{end.queue}/{end.id}"


@workflow(queue="one", max_attempts=50, on_success=told)
async def maps(run: Run, count: int) -> int:
    """Add up what a job for each item returns."""
    return sum(await run.map(sheet, range(count), limit=10))


@workflow(queue="two", max_attempts=50, on_success=told)
async def calls(run: Run) -> int:
    """Add up what jobs beside each other return."""

    async def branch(n: int) -> int:
        return await run.call(sheet, n)

    return sum(await run.gather(*(functools.partial(branch, n) for n in range(CALLS))))


@workflow(queue="two", max_attempts=50)
async def settles(run: Run, count: int) -> list[str]:
    """Return how a job for each item ended."""
    return [each.state for each in await run.map_settled(sheet, range(count), limit=10)]
