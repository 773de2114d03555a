"""Jobs that match a filter, page by page, and their number in each state.

If an index serves the whole filter, answers are complete. Otherwise rows are checked one by one, the newest first (or
the oldest), at most `SearchLimits.rows_max` of them, and the answer says how far the search went.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from jobledger.ledger.model.job import JobState
from jobledger.projections.filters import JobFilter, joined
from jobledger.projections.queries.cursors import make_cursor, read_cursor, without_times
from jobledger.projections.queries.lanes import NAMED_MAX, Lane, Order, Place, Select, Walk, Way, choose_way
from jobledger.projections.queries.rows import JOB_COLUMNS, JobRow, job_row
from jobledger.projections.statistics.tally import QUEUE_COUNTS

_SLICE_FIRST: Final = 500
_SLICE_MAX: Final = 8_000
#: After a slice that took less time than this the next one is larger, after a slower one smaller.
_SLICE_SHORT_S: Final = 0.01
_SLICE_LONG_S: Final = 0.03
_MEMBERS_OF: Final = (
    "FROM jobs INDEXED BY jobs_by_parent_id_parent_queue_parent_step_parent_item WHERE parent_id IS NOT NULL"
)
_A_MEMBER: Final = f"SELECT 1 {_MEMBERS_OF} LIMIT 1"
_MEMBERS: Final = f"SELECT count(*) FROM (SELECT 1 {_MEMBERS_OF} LIMIT ?)"  # noqa: S608 - our own words
_MEMBERS_BY_STATE: Final = f"SELECT status, count(*) {_MEMBERS_OF}"
#: The most children that are counted, to subtract them from the counts of all jobs.
_MEMBERS_MAX: Final = 50_000
_FIRST_ROWID: Final = -(1 << 63)
_LAST_ROWID: Final = (1 << 63) - 1
_UNNAMED: Final = ""  #: no queue's name
_DIGITS_MAX: Final = 10
_NONE: Final = dict.fromkeys((state.value for state in JobState), 0)


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the search for one answer, so that none takes long, however many jobs there are."""

    rows_max: int = 100_000  #: rows that are checked one by one
    entries_max: int = 2_000_000  #: entries of an index that are counted without reading their rows
    #: Time limit: no slice is begun that would probably end after it. Large rows, or rows far apart on the disk, take
    #: longer.
    seconds_max: float = 0.06


class FoundJobs(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of jobs."""

    items: list[JobRow]
    next: str | None  #: cursor of the next page, None without one
    #: Not None: the search ended at jobs of this time, before the page was full; `next` goes on from there. ISO-8601, UTC.
    searched_back_to: str | None


class JobCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of jobs that match a filter, without its condition on states."""

    by_state: dict[str, int]  #: every state, 0 included
    #: Not None: the count ended at jobs of this time, and older jobs are not counted. ISO-8601, UTC.
    searched_back_to: str | None


class _Ahead:
    """A lane, and the place up to which it was walked."""

    def __init__(self, lane: Lane, start: Place | None) -> None:
        self.lane = lane
        self.at = start  #: place; None: at its beginning
        self.has_begun = self.is_done = False


class _Search:
    """A walk along several lanes, slice by slice, always along the lane that is behind, so that all advance alike."""

    def __init__(self, walk: Walk, way: Way, limits: SearchLimits, *, entries_max: int) -> None:
        self._walk = walk
        self._ahead = [_Ahead(lane, walk.after) for lane in way.lanes]
        self._left = entries_max
        self._stepped_s = time.monotonic()
        self._ends_s = self._stepped_s + limits.seconds_max
        self._slice = NAMED_MAX if way.is_named else _SLICE_FIRST
        self._slice_max = max(self._slice, _SLICE_MAX // len(way.lanes))

    def horizon(self) -> Place | None:
        """Return the place up to which every lane was walked; None: all were walked to the end."""
        least = self._least()
        return None if least is None else least.at

    def _least(self) -> _Ahead | None:
        """Return the lane that is behind the others, among the lanes that are not at their end."""
        least: _Ahead | None = None
        for each in self._ahead:
            if not each.has_begun:
                return each
            if each.at is not None and (
                least is None or least.at is None or self._walk.is_before(each.at, least.at)
            ):
                least = each
        return least

    def step(self) -> tuple[Lane, Place | None, Place | None] | None:
        """Walk one slice; return its lane, the place before it, and its last place, None for the lane's end.

        Returns None at the end of all lanes, or when the limits are reached: after at least one slice of each lane, so
        that a search that goes on from the horizon makes progress.
        """
        each, now_s = self._least(), time.monotonic()
        took_s, self._stepped_s = now_s - self._stepped_s, now_s
        if each is None or (each.has_begun and (self._left <= 0 or now_s + took_s > self._ends_s)):
            return None
        self._adapt(took_s, self._ends_s - now_s)
        count = max(1, min(self._slice, self._left))
        began, each.at = each.at, self._walk.edge(each.lane, count, after=each.at)
        each.has_begun = True
        self._left -= count
        return each.lane, began, each.at

    def _adapt(self, took_s: float, left_s: float) -> None:
        """Choose the size of the next slice by the time of the last one: rows far apart take much longer.

        The size grows only if there is time left.
        """
        if took_s < _SLICE_SHORT_S and 2 * took_s <= left_s:
            self._slice = min(2 * self._slice, self._slice_max)
        elif took_s > _SLICE_LONG_S:
            self._slice = max(self._slice // 2, 1)

    def ends(self) -> list[tuple[Lane, Place | None]]:
        """Return the place up to which each lane was walked, None for its end."""
        return [(each.lane, each.at) for each in self._ahead]


def resolved(select: Select, chosen: JobFilter) -> JobFilter:
    """Return the filter with its `words` as the beginning of ids, if the asker may see a job with such an id."""
    if chosen.words is None or chosen.id_prefix is not None:
        return chosen
    begun = JobFilter(
        id_prefix=chosen.words, visible_queues=chosen.visible_queues, visible_tasks=chosen.visible_tasks
    )
    where, values = begun.where()
    if not select(f"SELECT 1 FROM jobs WHERE {where} LIMIT 1", values):  # noqa: S608 - our own words
        return chosen
    return msgspec.structs.replace(chosen, words=None, id_prefix=chosen.words)


def find_jobs(
    select: Select,
    chosen: JobFilter,
    *,
    cursor: str | None = None,
    limit: int,
    order: Order = "newest",
    limits: SearchLimits,
) -> FoundJobs:
    """Return a page of the jobs that match; see `Store.job_page`."""
    chosen = resolved(select, chosen)
    question = (without_times(chosen), order)
    after = None if cursor is None else _place(select, read_cursor(question, cursor, str, str, str), order)
    walk = Walk(select, order, after)
    way = choose_way(select, walk, _without_members(select, chosen), by_state=False)
    if not way.left:
        found = [each for lane in way.lanes for each in walk.places(lane, (), limit + 1, after=after)]
        return _page(select, walk.first(found, limit + 1), limit, question, None)
    places: list[Place] = []
    search = _Search(walk, way, limits, entries_max=limits.rows_max)
    while (step := search.step()) is not None:
        lane, began, edge = step
        more = walk.places(lane, way.left, limit + 1, after=began, to=edge)
        places = walk.first([*places, *more], limit + 1)
        horizon = search.horizon()
        if len(places) > limit and horizon is not None and walk.is_before(places[-1], horizon):
            break
    horizon = search.horizon()
    if horizon is not None:  # jobs beyond it belong to a later page, as other lanes may have jobs before them
        places = [each for each in places if walk.is_before(each, horizon)]
    return _page(select, places, limit, question, horizon)


def _page(
    select: Select,
    places: Sequence[Place],
    limit: int,
    question: tuple[JobFilter, Order],
    horizon: Place | None,
) -> FoundJobs:
    """Return the rows at some places; one place more than `limit` means: another page follows.

    `horizon`: place where the search ended early; None: everything was searched.
    """
    rows = _rows(select, places[:limit])
    is_full = len(rows) == limit
    following = None
    if len(places) > limit:
        following = cursor_at(rows[-1], *question)
    elif horizon is not None:
        # The cursor holds a number among the jobs of one microsecond, not an id, since the asker might not see that
        # job.
        ((number,),) = select("SELECT count(*) FROM jobs WHERE created_at = ? AND rowid <= ?", horizon)
        following = make_cursor(question, horizon[0], _UNNAMED, str(number))
    return FoundJobs(
        items=rows, next=following, searched_back_to=None if is_full or horizon is None else horizon[0]
    )


def cursor_at(row: JobRow, chosen: JobFilter, order: Order = "newest") -> str:
    """Return the cursor of the jobs that follow a job in a list."""
    return make_cursor((without_times(chosen), order), row.created_at, row.queue, row.id)


def _rows(select: Select, places: Sequence[Place]) -> list[JobRow]:
    wanted = msgspec.json.encode([rowid for _, rowid in places]).decode()
    sql = f"SELECT {JOB_COLUMNS}, rowid FROM jobs WHERE rowid IN (SELECT value FROM json_each(?))"  # noqa: S608
    found = {row[-1]: job_row(row[:-1]) for row in select(sql, (wanted,))}
    return [found[rowid] for _, rowid in places]


def _place(select: Select, place: tuple[str | int, ...], order: Order) -> Place:
    """Return the place of a cursor in this file: behind its job, or before all of its microsecond if that is gone."""
    created_at, queue, name = map(str, place)
    sql = "id = ? AND queue = ? AND created_at = ?"
    values: tuple[object, ...] = (name, queue, created_at)
    if queue == _UNNAMED:
        number = int(name) if name.isascii() and name.isdecimal() and len(name) < _DIGITS_MAX else 0
        sql, values = "created_at = ? ORDER BY rowid LIMIT 1 OFFSET ?", (created_at, max(0, number - 1))
    found = select(f"SELECT rowid FROM jobs WHERE {sql}", values)  # noqa: S608 - our own words
    gone = _LAST_ROWID if order == "newest" else _FIRST_ROWID
    return created_at, found[0][0] if found else gone


def _without_members(select: Select, chosen: JobFilter) -> JobFilter:
    """Return the filter without its term on children of runs, which no index serves, if there are no children."""
    if chosen.members or select(_A_MEMBER, ()):
        return chosen
    return msgspec.structs.replace(chosen, members=True)


def count_jobs(select: Select, chosen: JobFilter, *, limits: SearchLimits) -> JobCounts:
    """Return how many jobs match, by state; see `Store.job_counts`."""
    chosen = _without_members(select, msgspec.structs.replace(resolved(select, chosen), states=()))
    kept = _kept_counts(select, chosen)
    if kept is not None:
        return JobCounts(by_state=kept, searched_back_to=None)
    walk = Walk(select, "newest", None)
    way = choose_way(select, walk, chosen, by_state=True)
    by_index = not way.left and all(lane.state is not None for lane in way.lanes)
    if by_index:
        sizes = {str(lane.state): walk.size(lane, limits.entries_max + 1) for lane in way.lanes}
        if sum(sizes.values()) <= limits.entries_max:
            return JobCounts(by_state={**_NONE, **sizes}, searched_back_to=None)
    return _count(walk, way, limits, entries_max=limits.entries_max if by_index else limits.rows_max)


def _count(walk: Walk, way: Way, limits: SearchLimits, *, entries_max: int) -> JobCounts:
    counts = dict(_NONE)
    search = _Search(walk, way, limits, entries_max=entries_max)
    while (step := search.step()) is not None:
        lane, began, edge = step
        _add(counts, walk.counts(lane, way.left, after=began, to=edge), 1)
    horizon = search.horizon()
    if horizon is not None:  # some lanes are a slice ahead of others
        for lane, end in search.ends():
            _add(counts, walk.counts(lane, way.left, after=horizon, to=end), -1)
    return JobCounts(by_state=counts, searched_back_to=None if horizon is None else horizon[0])


def _add(counts: dict[str, int], more: Mapping[str, int], sign: int) -> None:
    for state, count in more.items():
        counts[state] += sign * count


def _kept_counts(select: Select, chosen: JobFilter) -> dict[str, int] | None:
    """Return the counts that the projector keeps, minus those of children; None if they do not answer the filter."""
    if {each.field for each in chosen.terms()} - {"queue", "visible_queues", "members", "fleet"}:
        return None
    of_queue = [each for each in chosen.terms() if each.field != "members"]
    where, values = joined(of_queue)
    sums = ", ".join(f"coalesce(sum({name}), 0)" for name in QUEUE_COUNTS)
    (found,) = select(f"SELECT {sums} FROM queues WHERE {where}", values)  # noqa: S608 - our own words
    counts = dict(zip(QUEUE_COUNTS, found, strict=True))
    if not chosen.members:
        if select(_MEMBERS, (_MEMBERS_MAX + 1,))[0][0] > _MEMBERS_MAX:
            return None
        members = select(f"{_MEMBERS_BY_STATE} AND {where} GROUP BY status", values)
        _add(counts, dict(members), -1)
    return counts
