"""`Picker`: chooses the next line among those whose keys all have room. Pure.

A line that cannot be granted stands at one full key, and is not examined until that key has room again. So each grant
examines about two lines, however many there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from jobledger.ledger.model.limits.definition import Definition, Terms
from jobledger.ledger.model.limits.guard import Guard
from jobledger.ledger.model.limits.holders import Holders, JobKey
from jobledger.ledger.model.limits.lines import Line, Order, Spot
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.limits.rates import Rates

#: The key of jobs that need no slot, since they hold one of each of their limits already.
FREE: Final = ""
_CLOSED: Final = " closed"  # no key has such a name
_PRUNE_AT: Final = 4_096


class Definitions:
    """The terms of each key: from the definition of its limit, or offered by a caller."""

    def __init__(self) -> None:
        """Begin without definitions, so that nothing is granted."""
        self.limits: dict[str, Definition] = {}
        self.offered: dict[str, Terms] = {}  #: terms by key, used before a definition
        self.sequence = 0  #: stream sequence of the newest event about a limit
        self._before: list[
            tuple[int, str, Definition | None]
        ] = []  # definitions that events newer than a grant replaced

    def set(self, definition: Definition, sequence: int) -> None:
        """Store the newest definition of a limit."""
        self._before.append((sequence, definition.limit, self.limits.get(definition.limit)))
        self.limits[definition.limit] = definition
        self.sequence = sequence

    def replaced_after(self, sequence: int) -> dict[str, Definition | None]:
        """Return the limits that were defined after a stream sequence, as they were at it; older ones are forgotten."""
        self._before = [each for each in self._before if each[0] > sequence]
        return {name: before for _, name, before in reversed(self._before)}

    def of(self, key: str) -> Terms | None:
        """Return the terms of a key, None if nothing is defined."""
        if not key:
            return Terms()
        offered = self.offered.get(key)
        if offered is not None:
            return offered
        name, rest = split(key)
        definition = self.limits.get(name)
        return None if definition is None else definition.of(rest)


class Key:
    """The state of one key of a limit, without its holders."""

    __slots__ = ("alarm", "lines", "name", "spots", "terms", "unstarted")

    def __init__(self, name: str, terms: Terms | None) -> None:
        """Begin without lines."""
        self.name = name
        self.terms = terms
        self.spots = tuple(Spot(name, priority) for priority in range(3))
        self.alarm = 0  #: time of the next check of its rate, in nanoseconds
        self.unstarted: dict[
            JobKey, None
        ] = {}  #: granted jobs not known to have started; only if it has a rate
        self.lines: dict[Line, None] = {}  #: lines that wait for it; only if its mode is not `queue`


class Picker:
    """The lines that wait, each at one of its keys or parked while its queue is closed."""

    def __init__(self, definitions: Definitions, holders: Holders, rates: Rates, guard: Guard) -> None:
        """Begin without lines."""
        self.at = 0  #: time of the present decision, in nanoseconds
        self.any_rate = False  #: whether any key has a rate
        self.looks = 0  #: number of lines that were examined
        self.keys: dict[str, Key] = {}
        self.closed: set[str] = set()  #: queues whose jobs are passed over
        self.parked: dict[str, dict[Line, None]] = {}  #: lines of closed queues, by queue
        self.at_bound: dict[str, None] = {}  #: keys whose rate waits for jobs that have not started
        self._definitions, self._holders, self._rates, self._guard = definitions, holders, rates, guard
        self._by_key = holders.by_key
        self._reserved: tuple[str, ...] = ()  # keys with a slot reserved for the line with the right of way
        self._reserved_for: Line | None = None
        self._ready: tuple[list[tuple[Order, Spot]], ...] = ([], [], [])
        self._alarms: list[tuple[int, str]] = []
        self._prune_at = _PRUNE_AT

    def key(self, name: str) -> Key:
        """Return the state of a key."""
        found = self.keys.get(name)
        if found is None:
            terms = self._definitions.of(name)
            found = self.keys[name] = Key(name, terms)
            self.any_rate |= terms is not None and terms.rate is not None
        return found

    def stand(self, line: Line) -> None:
        """Place a line at its first key; it is examined as soon as that key has room."""
        self._stand_at(line, self.key(line.keys[0]))

    def _stand_at(self, line: Line, key: Key) -> None:
        spot = line.spot = key.spots[line.priority]
        spot.add(line)
        if self.is_full(key, line):
            spot.shown = None  # it may come first here, which `freed` finds out
        else:
            self._show(spot)

    def leave(self, line: Line) -> None:
        """Remove an empty line."""
        if line.spot is not None:
            line.spot.discard(line)
            line.spot = None
        else:
            self.parked.get(line.queue, {}).pop(line, None)

    def freed(self, keys: Iterable[str]) -> None:
        """Examine the lines that stand at these keys again."""
        known = self.keys
        for name in keys:
            key = known.get(name)
            if key is not None:
                for spot in key.spots:
                    # A spot that is on the heap already is corrected in `_pick_of`.
                    if spot.places and spot.shown is None:
                        self._show(spot)

    def rated(self, keys: Iterable[str]) -> dict[str, Terms]:
        """Return those of some keys that have a rate, with their terms."""
        found = ((name, self.key(name).terms) for name in keys)
        return {name: terms for name, terms in found if terms is not None and terms.rate is not None}

    def _show(self, spot: Spot) -> None:
        """Push the place of a spot's first line onto the heap that `pick` reads."""
        line = spot.best()
        if line is not None:
            order = (line.share.v, line.head)
            if spot.shown is None or order < spot.shown:
                spot.shown = order
                heapq.heappush(self._ready[spot.priority], (order, spot))

    def see(self, limits: Mapping[str, Definition | None]) -> None:
        """Use these definitions of some limits; lines stay where they stand."""
        for limit, definition in limits.items():
            if definition is None:
                self._definitions.limits.pop(limit, None)
            else:
                self._definitions.limits[limit] = definition
        for name, key in self.keys.items():
            if split(name)[0] in limits:
                key.terms = self._definitions.of(name)
        self._look_for_rates()

    def redefined(self) -> None:
        """Examine all lines again, after definitions changed."""
        for name, key in self.keys.items():
            key.terms = self._definitions.of(name)
        self._look_for_rates()
        self.freed(self.keys)
        self._guard.reconsider()
        self._drop_first()

    def _drop_first(self) -> None:
        """Take the right of way from a stuck line at once, so that it does not depend on the time of a decision."""
        first = self._guard.first
        if first is not None and self.is_stuck(first):
            self._guard.first = None

    def _look_for_rates(self) -> None:
        terms = (key.terms for key in self.keys.values())
        self.any_rate = any(each is not None and each.rate is not None for each in terms)

    def close(self, queue: str) -> None:
        """Pass over the jobs of a queue from now on."""
        self.closed.add(queue)
        self._drop_first()

    def open(self, queue: str) -> None:
        """Grant jobs of a queue again."""
        if queue in self.closed:
            self.closed.remove(queue)
            for line in self.parked.pop(queue, ()):
                self.stand(line)
            self._guard.reconsider()

    def rebuild(self, lines: Iterable[Line]) -> None:
        """Place every line again, after grants were undone."""
        self._ready = ([], [], [])
        self.parked.clear()
        self._guard.clear()
        for key in self.keys.values():
            key.spots = tuple(Spot(key.name, priority) for priority in range(3))
        for line in lines:
            self._guard.add(line)
            self.stand(line)

    def begin(self, at: int) -> None:
        """Begin a decision at a moment, in nanoseconds."""
        self.at = at
        while self._alarms and self._alarms[0][0] <= at:
            moment, name = heapq.heappop(self._alarms)
            key = self.keys.get(name)
            if key is not None and key.alarm == moment:
                key.alarm = 0
                self.freed((name,))

    @property
    def wake_at(self) -> int:
        """The time at which a rate allows the next waiting job to start, in nanoseconds; 0: none waits for a rate."""
        while self._alarms:
            moment, name = self._alarms[0]
            if name in self.keys and self.keys[name].alarm == moment:
                return moment
            heapq.heappop(self._alarms)
        return 0

    def pick(self, turn: Iterable[int]) -> Line | None:
        """Return the line whose first job is granted next, by priorities in the order of `turn`; None: none can be."""
        self._drop_first()
        first = self._guard.first
        self._reserve(first)
        if first is not None and self._obstacle(first) is None:
            return first
        for priority in turn:
            line = self._pick_of(priority)
            if line is not None:
                return line
        return None

    def _pick_of(self, priority: int) -> Line | None:
        ready = self._ready[priority]
        while ready:
            shown, spot = ready[0]
            line = None
            if spot.shown is shown:
                spot.shown = None
                key = self.keys.get(spot.key)
                line = None if key is None or self.is_full(key, None) else spot.best()
            if line is None:
                heapq.heappop(ready)
                continue
            spot.shown = order = (line.share.v, line.head)
            if order != shown:
                heapq.heapreplace(ready, (order, spot))
                shown = ready[0][0]
                if shown is not order:  # another spot comes first now
                    continue
            self.looks += 1
            obstacle = self._obstacle(line)
            spot.shown = shown
            if obstacle is None:
                return line
            self._move(line, obstacle)
        return None

    def _move(self, line: Line, obstacle: str) -> None:
        assert line.spot is not None, "a line that is looked at stands somewhere"
        line.spot.discard(line)
        if obstacle is _CLOSED:
            line.spot = None
            self.parked.setdefault(line.queue, {})[line] = None
        else:
            self._stand_at(line, self.key(obstacle))

    def _obstacle(self, line: Line) -> str | None:
        """Return a key that prevents a grant of a line, None if there is none."""
        if line.queue in self.closed:
            return _CLOSED
        keys = self.keys
        for name in line.keys:
            if self.is_full(keys.get(name) or self.key(name), line):
                return name
        return None

    def is_full(self, key: Key, line: Line | None) -> bool:
        """Return whether a key has no room for a line; None: for any line without the right of way."""
        terms = key.terms
        if terms is None:
            return True
        name, slots = key.name, terms.slots
        reserved = name in self._reserved and line is not self._reserved_for
        if slots is not None:
            held = self._by_key.get(name)
            if (0 if held is None else len(held)) + reserved >= slots:
                return True
        return terms.rate is not None and (reserved or self._rate_is_full(key, terms))

    def _rate_is_full(self, key: Key, terms: Terms) -> bool:
        if len(key.unstarted) >= terms.burst:
            self.at_bound[key.name] = None
            return True
        free_at = self._rates.free_at(key.name, terms)
        if free_at <= self.at:
            return False
        if key.alarm != free_at:
            key.alarm = free_at
            heapq.heappush(self._alarms, (free_at, key.name))
        return True

    def is_stuck(self, line: Line) -> bool:
        """Return whether a line cannot be granted even with all slots free."""
        if line.queue in self.closed:
            return True
        return any((terms := self.key(name).terms) is None or terms.slots == 0 for name in line.keys)

    def _reserve(self, first: Line | None) -> None:
        """Reserve a slot of each key for the line with the right of way, or only of a key whose rate delays it."""
        if first is None and self._reserved_for is None:
            return
        if first is not None:
            rated = [name for name in first.keys if self._waits_for_rate(name)]
            reserved = tuple(rated) or first.keys
        else:
            reserved = ()
        if first is not self._reserved_for or reserved != self._reserved:
            before, self._reserved, self._reserved_for = self._reserved, reserved, first
            self.freed(before)

    def _waits_for_rate(self, name: str) -> bool:
        key = self.key(name)
        return key.terms is not None and key.terms.rate is not None and self._rate_is_full(key, key.terms)

    def prune(self, in_use: Iterable[Line]) -> None:
        """Forget keys without waiting jobs and holders, once there are many."""
        if len(self.keys) <= self._prune_at:
            return
        used = {name for line in in_use for name in line.keys} | set(self._holders.keys())
        self.keys = {name: key for name, key in self.keys.items() if name in used or key.unstarted}
        self._prune_at = _PRUNE_AT + 2 * len(self.keys)
