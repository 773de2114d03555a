"""Shared renderings: a page is rendered again when it is old, and never twice at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

import msgspec

from jobledger.ledger.model.clock import Clock

FRESH_S: Final = 1.5  #: a page that is older than this is rendered again
KEPT_MAX: Final = 64


class _RenderTask(msgspec.Struct, kw_only=True):
    task: asyncio.Task[bytes]
    at: float  #: by the monotonic clock, when it was begun


class SharedPages:
    """The newest renderings, by whatever they depend on."""

    def __init__(self, clock: Clock, *, fresh_s: float = FRESH_S) -> None:
        self._clock = clock
        self._fresh_s = fresh_s
        self._made: OrderedDict[Hashable, _RenderTask] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the rendering for a key: one that is fresh or under way, else a new one.

        A viewer that leaves does not cancel it for the others. Raises: what `make` raises.
        """
        known = self._made.get(key)
        if known is None or self._is_over(known):
            known = _RenderTask(task=asyncio.create_task(_begun(make)), at=self._clock.monotonic())
            self._made[key] = known
            while len(self._made) > KEPT_MAX:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return await asyncio.shield(known.task)

    def forget(self) -> None:
        """Drop every rendering, because somebody has changed something."""
        self._made.clear()

    def _is_over(self, made: _RenderTask) -> bool:
        if not made.task.done():
            return False
        failed = made.task.cancelled() or made.task.exception() is not None
        return failed or self._clock.monotonic() - made.at >= self._fresh_s


async def _begun(make: Callable[[], Awaitable[bytes]]) -> bytes:
    return await make()
