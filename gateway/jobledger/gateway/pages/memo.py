"""A cache for expensive parts of pages that may be some seconds old."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

from jobledger.ledger.model.clock import Clock

_KEPT_MAX: Final = 64

T = TypeVar("T")


class Memo:
    """The newest values, each by a key of all that it depends on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]], *, fresh_s: float) -> T:
        """Return the value for a key if it is not older than `fresh_s`; else make it. Raises: what `make` raises."""
        now = self._clock.monotonic()
        known = self._made.get(key)
        if known is not None and now - known[0] < fresh_s:
            found: T = known[1]
            return found
        made = await make()
        self._made[key] = (now, made)
        self._made.move_to_end(key)
        while len(self._made) > _KEPT_MAX:
            self._made.popitem(last=False)
        return made

    def forget(self) -> None:
        """Drop everything, because somebody has changed something."""
        self._made.clear()
