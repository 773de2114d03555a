"""Walks along the indexes of `jobs` in the order of creation: which indexes serve a filter, which conditions remain.

An order is (created_at, rowid): jobs that were made at one microsecond are in the order of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.subjects import INNER_QUEUES
from jobledger.projections.filters import JobFilter, Term, joined, of_fingerprints

Order = Literal["newest", "oldest"]
Place = tuple[str, int]  #: created_at, rowid
Select = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]

#: A query looks up at most this many jobs one by one, for conditions whose index is not in the order of time.
NAMED_MAX: Final = 10_000
#: The most entries that are counted to find the index with the fewest.
_ESTIMATED_MAX: Final = 10_000
_AN_INNER: Final = f"SELECT 1 FROM queues WHERE queue IN ({', '.join('?' * len(INNER_QUEUES))}) LIMIT 1"  # noqa: S608
_STATES: Final = tuple(state.value for state in JobState)
#: Indexes that serve conditions in the order of time: (fields, index, whether its entries are also ordered by state).
_INDEXES: Final[tuple[tuple[tuple[str, ...], str, bool], ...]] = (
    (("correlation",), "jobs_by_correlation_created_at", False),
    (("tenant",), "jobs_by_tenant_created_at", False),
    (("created_by",), "jobs_by_created_by_created_at", False),
    (("task",), "jobs_by_task_status_created_at", True),
    (("queue",), "jobs_by_queue_status_created_at", True),
    ((), "jobs_by_status_created_at", True),
    ((), "jobs_by_created_at", False),
)


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One walk: the jobs that its terms choose, in order."""

    source: str  #: source of the statement: the table and its index
    terms: tuple[Term, ...]  #: conditions that the index serves
    state: str | None = None  #: state of all its jobs; None: various


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """Lanes that together hold every matching job, and the conditions that remain to check in each row."""

    lanes: tuple[Lane, ...]
    left: tuple[Term, ...]  #: conditions that the index of the lanes does not serve
    is_named: bool = False  #: few jobs, looked up one by one, so that any part costs as much as all


class Walk:
    """Walks along lanes from a place on, newest or oldest first."""

    def __init__(self, select: Select, order: Order, after: Place | None) -> None:
        self._select = select
        self.order: Order = order
        self._beyond, self._to = ("<", ">=") if order == "newest" else (">", "<=")
        direction = "DESC" if order == "newest" else "ASC"
        self._tail = f"ORDER BY created_at {direction}, rowid {direction} LIMIT ?"
        self.after = after

    def places(
        self, lane: Lane, left: Sequence[Term], limit: int, *, after: Place | None, to: Place | None = None
    ) -> list[Place]:
        """Return at most `limit` places of matching rows, after `after` and up to `to`."""
        where, values = self._where(lane, left, after, to)
        sql = f"SELECT created_at, rowid FROM {lane.source} WHERE {where} {self._tail}"  # noqa: S608 - our own words
        return [(row[0], row[1]) for row in self._select(sql, (*values, limit))]

    def edge(self, lane: Lane, count: int, *, after: Place | None) -> Place | None:
        """Return the place `count` entries behind `after`; None if there are fewer."""
        where, values = self._where(lane, (), after, None)
        sql = f"SELECT created_at, rowid FROM {lane.source} WHERE {where} {self._tail} OFFSET ?"  # noqa: S608
        found = self._select(sql, (*values, 1, count - 1))
        return (found[0][0], found[0][1]) if found else None

    def counts(
        self, lane: Lane, left: Sequence[Term], *, after: Place | None, to: Place | None
    ) -> dict[str, int]:
        """Return how many rows match, by state, behind `after` and up to `to`."""
        where, values = self._where(lane, left, after, to)
        if lane.state is not None:  # if the index serves all conditions, no row is read
            ((count,),) = self._select(f"SELECT count(*) FROM {lane.source} WHERE {where}", values)  # noqa: S608
            return {lane.state: count}
        sql = f"SELECT status, count(*) FROM {lane.source} WHERE {where} GROUP BY status"  # noqa: S608
        return dict(self._select(sql, values))

    def size(self, lane: Lane, limit: int) -> int:
        """Return how many entries a lane has, at most `limit`."""
        where, values = self._where(lane, (), self.after, None)
        ((count,),) = self._select(
            f"SELECT count(*) FROM (SELECT 1 FROM {lane.source} WHERE {where} LIMIT ?)",  # noqa: S608
            (*values, limit),
        )
        return int(count)

    def first(self, places: Sequence[Place], limit: int) -> list[Place]:
        """Return the first of some places in order."""
        return sorted(places, reverse=self.order == "newest")[:limit]

    def is_before(self, one: Place, other: Place) -> bool:
        """Return whether the walk reaches `one` first, or both are the same."""
        return one >= other if self.order == "newest" else one <= other

    def _where(
        self, lane: Lane, left: Sequence[Term], after: Place | None, to: Place | None
    ) -> tuple[str, list[object]]:
        terms = [*lane.terms, *left]
        if after is not None:
            terms.append(Term("", f"(created_at, rowid) {self._beyond} (?, ?)", after))
        if to is not None:
            terms.append(Term("", f"(created_at, rowid) {self._to} (?, ?)", to))
        return joined(terms)


def choose_way(select: Select, walk: Walk, chosen: JobFilter, *, by_state: bool) -> Way:
    """Return the lanes that read the fewest rows; `by_state`: the jobs will be counted by state."""
    terms = _needed(select, chosen.terms())
    named = _named(select, chosen)
    if named is not None:
        return Way(lanes=(named,), left=tuple(terms), is_named=True)
    ways = [
        each
        for served, index, split in _INDEXES
        if (each := _way(terms, chosen, served, index, split=split, by_state=by_state)) is not None
    ]
    whole = next((each for each in ways if not each.left), None)
    if whole is not None or len(ways) == 1:
        return whole or ways[0]
    sizes = [sum(walk.size(lane, _ESTIMATED_MAX) for lane in each.lanes) for each in ways]
    return ways[sizes.index(min(sizes))]


def _needed(select: Select, terms: Sequence[Term]) -> list[Term]:
    """Return the conditions; if the ledger's own queues are empty, without the one on these, which no index serves."""
    return [each for each in terms if each.field != "fleet" or select(_AN_INNER, each.values)]


def _way(
    terms: Sequence[Term],
    chosen: JobFilter,
    served: tuple[str, ...],
    index: str,
    *,
    split: bool,
    by_state: bool,
) -> Way | None:
    """Return the lanes of one index; None if it serves no condition of the filter."""
    if not {each.field for each in terms}.issuperset(served):
        return None
    by_index = {*served, "created_at", *(("states",) if split else ())}
    left = tuple(each for each in terms if each.field not in by_index)
    # Each state is a lane of its own if only that serves the filter, or if its entries alone are counted.
    if split and not (chosen.states or served or (by_state and not left)):
        return None
    own = tuple(each for each in terms if each.field in by_index and each.field != "states")
    source = f"jobs INDEXED BY {index}"
    if not split:
        return Way(lanes=(Lane(source=source, terms=own),), left=left)
    lanes = tuple(
        Lane(source=source, terms=(*own, Term("states", "status = ?", (state,))), state=state)
        for state in dict.fromkeys(chosen.states or _STATES)
    )
    return Way(lanes=lanes, left=left)


def _named(select: Select, chosen: JobFilter) -> Lane | None:
    """Return the few jobs that an id prefix, a trace, a run, a cause or a wait names; None without one, or for many."""
    questions: list[tuple[str, tuple[object, ...]]] = []
    if chosen.trace_id is not None:
        trace = "SELECT rowid FROM jobs WHERE trace_id = ? AND trace_id <> '' LIMIT ?"
        questions.append((trace, (chosen.trace_id,)))
    if chosen.id_prefix is not None:
        prefix = "SELECT rowid FROM jobs WHERE id >= ? AND id < ? LIMIT ?"
        questions.append((prefix, (chosen.id_prefix, f"{chosen.id_prefix}~")))
    if chosen.run is not None:
        questions.append(("SELECT rowid FROM jobs WHERE parent_id = ? LIMIT ?", (chosen.run,)))
    if chosen.fingerprints:
        dead, prefixes = of_fingerprints(chosen.fingerprints)
        questions.append((f"SELECT rowid FROM jobs WHERE {dead} LIMIT ?", prefixes))  # noqa: S608 - our own words
    if chosen.awaiting is not None:
        questions.append(("SELECT rowid FROM jobs WHERE awaiting IS NOT NULL LIMIT ?", ()))
    for sql, values in questions:
        rowids = [row[0] for row in select(sql, (*values, NAMED_MAX + 1))]
        if len(rowids) <= NAMED_MAX:
            listed = Term(
                "", "rowid IN (SELECT value FROM json_each(?))", (msgspec.json.encode(rowids).decode(),)
            )
            return Lane(source="jobs NOT INDEXED", terms=(listed,))
    return None
