"""Tasks in three queues and workflows over them, for the faults of runs, in workers that end where it hurts.

`GROUPS_CRASH` is the probability with which a worker ends after it counted ends of children and before it made the ones
that they opened; `GROUPS_CRASH_LATER` that of ending once those are made, and before it looks what became of their run.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any, Final

from jobledger.ledger import Run, Signal, task, workflow
from jobledger.workers.reactors.children.creation import ChildOpener
from jobledger.workers.reactors.children.reach import ChildFollower

_CRASH = float(os.environ.get("GROUPS_CRASH", "0"))
_CRASH_LATER = float(os.environ.get("GROUPS_CRASH_LATER", "0"))
_chance = random.Random()
_open, _follow = ChildOpener.open, ChildFollower.follow


async def _crash_or_open(self: ChildOpener, ref: Any, view: Any, key: str, items: int, *, again: bool) -> Any:
    if items and not again and _chance.random() < _CRASH:
        os._exit(9)  # counted, and nobody made the next ones
    return await _open(self, ref, view, key, items, again=again)


async def _crash_or_follow(self: ChildFollower, *given: Any, **options: Any) -> Any:
    if _chance.random() < _CRASH_LATER:
        os._exit(8)  # they are made, and nobody looked
    return await _follow(self, *given, **options)


ChildOpener.open = _crash_or_open  # type: ignore[method-assign]
ChildFollower.follow = _crash_or_follow  # type: ignore[method-assign]


#: Where a worker ended by itself, by its exit code.
ENDS: Final = {9: "ended between counting and making", 8: "ended before the look"}
QUEUE: Final = "flows"  # of the runs
CHILDREN: Final = 6  # of `ask`
go = Signal("go", int)


@task(queue="one", max_attempts=50)
async def page(n: int, seconds: float = 0.0, given: tuple[int, ...] = ()) -> int:
    """Sleep on the loop."""
    await asyncio.sleep(seconds)
    return n + sum(given) % 1_000


@task(queue="two", max_attempts=50)
async def part(n: int, seconds: float = 0.0, given: tuple[int, ...] = ()) -> int:
    """Sleep on the loop."""
    return await page(n, seconds, given)


@task(queue="three", max_attempts=50)
async def rest(n: int, seconds: float = 0.0, given: tuple[int, ...] = ()) -> int:
    """Sleep on the loop."""
    return await page(n, seconds, given)


@task(queue="two", max_attempts=50)
async def sheet(n: int) -> int:
    """Sleep on the loop for up to 0.4 s."""
    await asyncio.sleep(n * 37 % 100 / 250)
    return n


@workflow(queue=QUEUE, max_attempts=50)
async def sync(run: Run, count: int, limit: int) -> int:
    """Add up what a job for each item returns."""
    return sum(await run.map(sheet, range(count), limit=limit))


async def same(n: int) -> int:
    """Return what it is given."""
    return n


@workflow(queue=QUEUE, max_attempts=50)
async def ask(run: Run, n: int, seconds: float) -> int:
    """Wait in each way there is: for a time, a signal, a job of its own and jobs for items."""
    first = await run.step(same, n)
    await run.sleep(seconds)
    told = await run.wait(go)
    child = await run.call(part, n)
    return first + told + child + sum(await run.map(sheet, range(CHILDREN - 1), limit=2))


def answer(n: int) -> int:
    """Return what `ask` returns for a number when its signal says the same one."""
    return 3 * n + sum(range(CHILDREN - 1))
