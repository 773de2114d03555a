"""Tasks in three queues for the faults of runs' children, in workers that end where it hurts.

`GROUPS_CRASH` is the probability with which a worker ends after it counted ends of children and before it made the ones
that they opened; `GROUPS_CRASH_LATER` that of ending once those are made, and before it looks what became of their run.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from jobledger.ledger import task
from jobledger.workers.reactors.children.opening import Opening
from jobledger.workers.reactors.children.reaching import Reaching

_CRASH = float(os.environ.get("GROUPS_CRASH", "0"))
_CRASH_LATER = float(os.environ.get("GROUPS_CRASH_LATER", "0"))
_chance = random.Random()
_open, _follow = Opening.open, Reaching.follow


async def _crash_or_open(self: Opening, ref: Any, view: Any, key: str, items: int, *, again: bool) -> Any:
    if items and not again and _chance.random() < _CRASH:
        os._exit(9)  # counted, and nobody made the next ones
    return await _open(self, ref, view, key, items, again=again)


async def _crash_or_follow(self: Reaching, *given: Any, **options: Any) -> Any:
    if _chance.random() < _CRASH_LATER:
        os._exit(8)  # they are made, and nobody looked
    return await _follow(self, *given, **options)


Opening.open = _crash_or_open  # type: ignore[method-assign]
Reaching.follow = _crash_or_follow  # type: ignore[method-assign]


@task(queue="one", max_attempts=50)
async def page(n: int, seconds: float = 0.0) -> int:
    """Sleep on the loop."""
    await asyncio.sleep(seconds)
    return n


@task(queue="two", max_attempts=50)
async def part(n: int, seconds: float = 0.0) -> int:
    """Sleep on the loop."""
    await asyncio.sleep(seconds)
    return n


@task(queue="three", max_attempts=50)
async def rest(n: int, seconds: float = 0.0) -> int:
    """Sleep on the loop."""
    await asyncio.sleep(seconds)
    return n
