"""The lines in which jobs wait for their limits, and the order among them. Pure.

A line has one exact (priority, queue, fairness key, needed keys): at any moment all its jobs could be granted, or none;
they are granted in the order in which they were held. Each line that is not empty stands at one of its keys, at a
`Spot`; while that key is full, the line is not examined. Order among lines of a priority: virtual time of the fairness
key, then age of the first job. Both only grow, so the heaps here are corrected when their top is read, and never
searched.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from jobledger.ledger.model.limits.holders import JobKey

HEADS_MAX: Final = 256  #: most jobs of one line in memory
IN_MEMORY_MAX: Final = 100_000  #: most jobs of all lines in memory, if there are fewer lines
#: A place in the order among lines of one priority: virtual time, then stream sequence of the first job's `held`.
Order = tuple[float, int]
#: The identity of a line: priority (0 is high), queue, fairness key, the keys that its jobs need.
LineKey = tuple[int, str, str, tuple[str, ...]]
#: A waiting job in the spill: stream sequence of its `held`, queue, job id, all limits that it names; () as limits:
#: those of its line, as for nearly all jobs.
SpilledJob = tuple[int, str, str, tuple[str, ...]]


def fairness_of(fair: str, limits: tuple[str, ...]) -> str:
    """Return the fairness key of a job: its own key, or else its first limit with a key, so that tenants take turns."""
    if not fair:
        for limit in limits:
            if ":" in limit:
                return limit
    return fair


class Spill(Protocol):
    """A store for jobs that do not fit in memory, such as a temporary SQLite table.

    Lines have numbers from 1. Within a line jobs are added in the order of their `held` sequence. The content need not
    outlive the process.
    """

    def put(self, line: int, job: SpilledJob) -> None:
        """Add a job to a line."""
        ...

    def page(self, line: int, after: int, most: int) -> Sequence[SpilledJob]:
        """Return up to `most` jobs of a line whose `held` comes after a stream sequence, the oldest first."""
        ...

    def drop(self, line: int, through: int) -> None:
        """Forget the jobs of a line up to a stream sequence of their `held`, which are in memory again."""
        ...

    def find(self, job: JobKey) -> tuple[int, SpilledJob] | None:
        """Return a job's line and its entry, None if it is not here."""
        ...

    def remove(self, line: int, held: int) -> None:
        """Forget one job of a line."""
        ...


class Share:
    """The turn of one fairness key, among jobs of one priority."""

    __slots__ = ("active_since", "fair", "limits", "lines", "priority", "v", "weight")

    def __init__(self, priority: int, fair: str, v: float, limits: tuple[str, ...]) -> None:
        """Begin with a virtual time."""
        self.priority = priority
        self.fair = fair
        self.v = v  #: virtual time: how much it was given, by its weight
        self.limits = limits  #: limits of one of its jobs, which decide its weight
        self.weight = 1.0
        self.lines = 0  #: number of its lines that are not empty
        self.active_since = 0  #: stream sequence of the `held` with which its first line began


class WaitingJob:
    """A job that waits, in memory."""

    __slots__ = ("held", "job", "limits", "line", "queue")

    def __init__(self, held: int, queue: str, job: str, limits: tuple[str, ...], line: Line) -> None:
        """Begin at the end of a line."""
        self.held = held  #: stream sequence of its `held`
        self.queue = queue
        self.job = job
        self.limits = limits  #: all limits that it names
        self.line: Line | None = line  #: None: its wait ended; code that finds it in a line drops it


class Gone(msgspec.Struct, frozen=True, gc=False):
    """A job that ended its wait without a grant."""

    held: int  #: stream sequence of its `held`
    line: LineKey  #: the line in which it waited
    left: int  #: stream sequence of the event that ended the wait


class Line:
    """One line of jobs."""

    __slots__ = (
        "head",
        "heads",
        "key",
        "keys",
        "number",
        "priority",
        "queue",
        "ripens_at",
        "share",
        "spilled",
        "spot",
        "stamp",
        "through",
    )

    def __init__(self, key: LineKey, number: int, share: Share) -> None:
        """Begin empty."""
        self.key = key
        self.priority, self.queue = key[0], key[1]
        self.keys = key[3]  #: keys of which its jobs need a slot
        self.number = number
        self.share = share
        self.heads: deque[WaitingJob] = deque()  #: the oldest jobs
        self.head = 0  #: stream sequence of the first job's `held`; 0: the line is empty
        self.spilled = 0  #: number of further jobs in the spill
        self.through = 0  #: stream sequence of the newest job that was in memory
        self.spot: Spot | None = None  #: the spot where it stands
        self.stamp = 0  #: number of its newest entry at any spot; older entries are stale
        self.ripens_at = ""  #: the key at which the guard counts for it

    def __lt__(self, other: Line) -> bool:
        """Order entries that are otherwise equal: one is stale, so any order will do."""
        return self.number < other.number


class _Group:
    """The lines of one fairness key at a spot, which move together when the key is served."""

    __slots__ = ("heap", "share", "shown")

    def __init__(self, share: Share) -> None:
        self.share = share
        self.heap: list[tuple[int, int, Line]] = []
        self.shown: Order | None = None  # its valid entry in the spot's heap

    def __lt__(self, other: _Group) -> bool:
        return self.share.fair < other.share.fair


class Spot:
    """The lines of one priority that stand at one place, such as a key that is full."""

    __slots__ = ("_groups", "_heap", "key", "places", "priority", "shown")

    def __init__(self, key: str, priority: int) -> None:
        """Begin empty."""
        self.key = key
        self.priority = priority
        self.shown: Order | None = None  #: the place of this spot in the picker's heap; None: it is not there
        self.places: dict[Line, int] = {}  #: lines that stand here: number of the newest entry of each
        self._groups: dict[str, _Group] = {}
        self._heap: list[tuple[Order, _Group]] = []

    def __lt__(self, other: Spot) -> bool:
        """Order entries that are otherwise equal: one is stale, so any order will do."""
        return self.key < other.key

    def add(self, line: Line) -> None:
        """Place a line here."""
        line.stamp += 1
        self.places[line] = line.stamp
        group = self._groups.get(line.share.fair)
        if group is None:
            group = self._groups[line.share.fair] = _Group(line.share)
        heapq.heappush(group.heap, (line.head, line.stamp, line))
        order = (line.share.v, line.head)
        if group.shown is None or order < group.shown:
            group.shown = order
            heapq.heappush(self._heap, (order, group))

    def discard(self, line: Line) -> None:
        """Remove a line, if it stands here."""
        self.places.pop(line, None)

    def best(self) -> Line | None:
        """Return the line that comes first, None if there is none."""
        heap = self._heap
        while heap:
            shown, group = heap[0]
            if group.shown is not shown:  # stale: the group has a newer entry
                heapq.heappop(heap)
                continue
            line = self._first_of(group)
            if line is None:
                heapq.heappop(heap)
                del self._groups[group.share.fair]
                continue
            order = (group.share.v, line.head)
            if order == shown:
                return line
            group.shown = order
            heapq.heapreplace(heap, (order, group))
            if heap[0][0] is order:  # its place is still right
                return line
        return None

    def _first_of(self, group: _Group) -> Line | None:
        heap, places = group.heap, self.places
        while heap:
            head, stamp, line = heap[0]
            if places.get(line) != stamp:
                heapq.heappop(heap)
            elif line.head != head:  # its first job ended its wait meanwhile
                heapq.heapreplace(heap, (line.head, stamp, line))
            else:
                return line
        return None


class Lines:
    """Every line that is not empty, and the jobs in them: some in memory by name, the others in the spill."""

    def __init__(
        self, spill: Spill | None, *, heads_max: int = HEADS_MAX, in_memory_max: int = IN_MEMORY_MAX
    ) -> None:
        """Begin empty; without a spill all jobs stay in memory."""
        self.lines: dict[LineKey, Line] = {}
        self.jobs: dict[JobKey, WaitingJob] = {}  #: waiting jobs that are kept in memory
        self.spilled = 0  #: number of jobs in the spill
        self._numbered: dict[int, Line] = {}
        self._numbers = 0
        self._spill = spill
        self._heads_max = heads_max
        self._in_memory_max = in_memory_max

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return len(self.jobs) + self.spilled

    def line(self, key: LineKey, share: Share) -> Line:
        """Return a line, which may be new and empty."""
        line = self.lines.get(key)
        if line is None:
            self._numbers += 1
            line = self.lines[key] = self._numbered[self._numbers] = Line(key, self._numbers, share)
        return line

    def add(self, line: Line, held: int, job: JobKey, limits: tuple[str, ...]) -> None:
        """Add a job to its line by its `held`: as the last one, unless its `held` is older, as for a carried job."""
        if held < line.through:
            self._insert(line, held, job, limits)
            return
        is_usual = limits == line.keys
        if (
            line.head
            and self._spill is not None
            and (line.spilled or len(line.heads) >= self._heads_max or len(self.jobs) >= self._in_memory_max)
        ):
            self._spill.put(line.number, (held, *job, () if is_usual else limits))
            line.spilled += 1
            self.spilled += 1
            return
        self._remember(line, held, job, line.keys if is_usual else limits)
        if not line.head:
            line.head = held

    def _remember(self, line: Line, held: int, job: JobKey, limits: tuple[str, ...]) -> None:
        entry = self.jobs[job] = WaitingJob(held, *job, limits, line)
        line.heads.append(entry)
        line.through = max(line.through, held)

    def _insert(self, line: Line, held: int, job: JobKey, limits: tuple[str, ...]) -> None:
        """Add a job before those in memory that were held later."""
        heads = line.heads
        at = len(heads)
        while at and heads[at - 1].held > held:
            at -= 1
        entry = self.jobs[job] = WaitingJob(held, *job, limits, line)
        heads.insert(at, entry)
        if not at:
            line.head = held
        if len(heads) > self._heads_max or len(self.jobs) > self._in_memory_max:
            self._put_aside(line)

    def _put_aside(self, line: Line) -> None:
        """Move a line's youngest job in memory to the spill, if another job of the line remains in memory."""
        heads = line.heads
        while heads[-1].line is None:
            heads.pop()
        if self._spill is None or len(heads) == 1:
            return
        last = heads.pop()
        del self.jobs[last.queue, last.job]
        self._spill.put(line.number, (last.held, last.queue, last.job, last.limits))
        line.through = heads[-1].held
        line.spilled += 1
        self.spilled += 1

    def find(self, job: JobKey) -> WaitingJob | None:
        """Return a waiting job, None if it does not wait; for a job in the spill, a copy."""
        entry = self.jobs.get(job)
        if entry is not None or not self.spilled or self._spill is None:
            return entry
        found = self._spill.find(job)
        if found is None:
            return None
        line, (held, _, _, limits) = self._numbered[found[0]], found[1]
        return WaitingJob(held, *job, limits or line.keys, line)

    def remove(self, entry: WaitingJob) -> None:
        """Take a job out of its line; a line that is empty then gets the `head` 0, and is forgotten."""
        line = entry.line
        assert line is not None, "a job leaves its line once"
        in_memory = self.jobs.pop((entry.queue, entry.job), None)
        if in_memory is None:
            assert self._spill is not None, "what is not in memory is in the spill"
            self._spill.remove(line.number, entry.held)
            line.spilled -= 1
            self.spilled -= 1
            return
        in_memory.line = None  # maybe another object, if the job was in the spill when `entry` was made
        if entry.held == line.head:
            self._advance(line)

    def _advance(self, line: Line) -> None:
        """Make the next job of a line its first; forget a line without one."""
        heads = line.heads
        while heads and heads[0].line is None:
            heads.popleft()
        if not heads and line.spilled:
            self._page_in(line)
        if heads:
            line.head = heads[0].held
            return
        line.head = 0
        del self.lines[line.key]
        del self._numbered[line.number]

    def _page_in(self, line: Line) -> None:
        assert self._spill is not None, "only a spill has jobs that are not in memory"
        room = max(1, min(self._heads_max, self._in_memory_max - len(self.jobs)))
        page = self._spill.page(line.number, line.through, room)
        for held, queue, job, limits in page:
            self._remember(line, held, (queue, job), limits or line.keys)
        self._spill.drop(line.number, line.through)
        line.spilled -= len(page)
        self.spilled -= len(page)

    def put_back(self, line: Line, entry: WaitingJob) -> None:
        """Undo the removal of a line's first job."""
        self.lines[line.key] = self._numbered[line.number] = line
        entry.line = line
        self.jobs[entry.queue, entry.job] = entry
        line.heads.appendleft(entry)
        line.head = entry.held

    def oldest(self) -> Iterator[tuple[WaitingJob, LineKey]]:
        """Yield every waiting job, the oldest first, as it is now."""
        yield from heapq.merge(*(self._all_of(line) for line in self.lines.values()), key=_held_of)

    def of(self, line: Line) -> Iterator[WaitingJob]:
        """Yield the jobs of one line, the oldest first; jobs from the spill are copies."""
        return (entry for entry, _ in self._all_of(line))

    def _all_of(self, line: Line) -> Iterator[tuple[WaitingJob, LineKey]]:
        for entry in list(line.heads):
            if entry.line is not None:
                yield entry, line.key
        after = line.through
        while line.spilled and self._spill is not None:
            page = self._spill.page(line.number, after, HEADS_MAX)
            if not page:
                return
            for held, queue, job, limits in page:
                yield WaitingJob(held, queue, job, limits or line.keys, line), line.key
            after = page[-1][0]


def _held_of(found: tuple[WaitingJob, LineKey]) -> int:
    return found[0].held
