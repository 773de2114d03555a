"""The guard against starvation: a line that others overtook too often gets the right of way. Pure.

A job that needs two keys can wait for ever while each of them is free in turns. So a line becomes *ripe* once, at each
of its keys, at least `LATER` jobs were granted that were held later than the line's first job. If then a job after it
in the order is granted, the ripe line gets the right of way: others see one slot less at its keys until its first job
is granted or ends its wait. Only one line has the right of way at a time, and it holds no slot by it, so no line blocks
another for ever. The guard depends only on the jobs that were granted, and on their order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from jobledger.ledger.model.limits.lines import Line, Order, Spot

#: A line may get the right of way once at each of its keys this many jobs were granted that were held later.
LATER: Final = 8
_PRUNE_AT: Final = 4_096
_RIPE: Final = " ripe"  # no key has such a name


class Guard:
    """The ripe lines, and the line with the right of way."""

    def __init__(self, later: dict[str, tuple[int, ...]] | None = None) -> None:
        """Begin with the `later` of an earlier guard."""
        #: By key: sorted stream sequences of the `held` of the youngest granted jobs, at most `LATER`.
        self.later: dict[str, tuple[int, ...]] = {} if later is None else dict(later)
        self.first: Line | None = None  #: the line that has the right of way
        self.first_head = 0  #: the `held` of its first job at that moment
        self._unripe: dict[str, list[tuple[int, Line]]] = {}
        self._ripe = tuple(Spot(_RIPE, priority) for priority in range(3))
        self._set_aside: list[Line] = []
        self._prune_at = _PRUNE_AT

    def clear(self) -> None:
        """Forget all lines, but not the granted jobs."""
        self._unripe.clear()
        self._ripe = tuple(Spot(_RIPE, priority) for priority in range(3))
        self._set_aside.clear()

    def add(self, line: Line) -> None:
        """Watch a line from now on; a line with a single key gets its turn there without a guard."""
        if len(line.keys) < 2:  # noqa: PLR2004 - a line needs two keys to starve
            return
        for key in line.keys:
            later = self.later.get(key, ())
            if len(later) < LATER or later[0] < line.head:
                line.ripens_at = key
                heapq.heappush(self._unripe.setdefault(key, []), (line.head, line))
                return
        line.ripens_at = _RIPE
        self._ripe[line.priority].add(line)

    def moved(self, line: Line) -> None:
        """Note that a line has another first job, or none."""
        if line.ripens_at is _RIPE:
            self._ripe[line.priority].discard(line)
            line.ripens_at = ""
            if line.head:
                self.add(line)
        elif not line.head:
            line.ripens_at = ""
        if line is self.first and line.head != self.first_head:
            self.first = None

    def came_before(self, line: Line) -> None:
        """Note that a line got a first job that was held earlier than the previous one."""
        self._ripe[line.priority].discard(line)
        self.add(line)
        if line is self.first:
            self.first = None

    def granted(self, keys: Iterable[str], held: int) -> None:
        """Count a job that was granted."""
        for key in keys:
            later = self.later.get(key, ())
            if len(later) == LATER:
                if held <= later[0]:
                    continue
                later = later[1:]
            is_youngest = not later or held > later[-1]
            self.later[key] = (*later, held) if is_youngest else tuple(sorted((*later, held)))
            if key in self._unripe:
                self._ripen(key)

    def prune(self, lines: Iterable[Line]) -> None:
        """Forget keys without waiting jobs, once there are many: later jobs there are held later than these."""
        if len(self.later) > self._prune_at:
            used = {key for line in lines for key in line.keys}
            self.later = {key: later for key, later in self.later.items() if key in used}
            self._prune_at = _PRUNE_AT + 2 * len(self.later)

    def _ripen(self, key: str) -> None:
        later, heap = self.later[key], self._unripe[key]
        while heap and len(later) == LATER and heap[0][0] < later[0]:
            _, line = heapq.heappop(heap)
            if line.ripens_at == key:
                self.add(line)  # at another key, at this one with a younger head, or ripe
        if not heap:
            del self._unripe[key]

    def passed(self, line: Line, order: Order, turn: Iterable[int], is_stuck: Callable[[Line], bool]) -> None:
        """Note that a line with this place in the order is served; priorities come in the order of `turn`.

        `is_stuck`: returns whether a line cannot be granted even with all slots free; such a line gets no right of way.
        """
        if self.first is not None:
            return
        for priority in turn:
            ripe = self._ripe[priority]
            found = ripe.best()
            while found is not None and is_stuck(found):
                ripe.discard(found)
                self._set_aside.append(found)
                found = ripe.best()
            last = priority == line.priority
            if found is not None and found is not line and (not last or (found.share.v, found.head) < order):
                self.first, self.first_head = found, found.head
                return
            if last:
                return

    def reconsider(self) -> None:
        """Watch lines again that were stuck."""
        for line in self._set_aside:
            if line.head and line.ripens_at is _RIPE:
                self._ripe[line.priority].add(line)
        self._set_aside.clear()
