"""Dead letters one by one and by cause, and acts of people: page by page, each with the cursor of the next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.projections.filters import DeadLetterFilter, Term, joined
from jobledger.projections.queries.cursors import make_cursor, read_cursor, without_times
from jobledger.projections.queries.lanes import Order, Select
from jobledger.projections.queries.rows import (
    ACT_COLUMNS,
    DEAD_LETTER_COLUMNS,
    DeadLetterGroup,
    DeadLetterRow,
    act_row,
    struct,
)
from jobledger.projections.tables.acts import ActFilter, ActGroup, ActGroups, ActRow

#: Longest time between two acts that belong to one act on many jobs.
_TOGETHER: Final = timedelta(seconds=10)


class FoundDeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters, by the time of death."""

    items: list[DeadLetterRow]
    next: str | None  #: cursor of the next page, None without one


class FoundGroups(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters by cause, the most frequent first."""

    items: list[DeadLetterGroup]
    next: str | None  #: cursor of the next page, None without one


class FoundActs(msgspec.Struct, frozen=True, kw_only=True):
    """One page of acts of people, the newest first."""

    items: list[ActRow]
    next: str | None  #: cursor of the next page, None without one


def find_letters(
    select: Select, chosen: DeadLetterFilter, *, cursor: str | None, limit: int, order: Order
) -> FoundDeadLetters:
    """Return a page of dead letters; see `Store.dead_letter_page`."""
    question = ("dead letters", without_times(chosen), order)
    terms = chosen.terms()
    sign, direction = ("<", "DESC") if order == "newest" else (">", "ASC")
    if cursor is not None:
        after = read_cursor(question, cursor, str, int)
        terms.append(Term("", f"(dead_at, last_sequence) {sign} (?, ?)", after))
    where, values = joined(terms)
    sql = (
        f"SELECT {DEAD_LETTER_COLUMNS} FROM dead_letters WHERE {where} "  # noqa: S608 - our own columns
        f"ORDER BY dead_at {direction}, last_sequence {direction} LIMIT ?"
    )
    items = [struct(DeadLetterRow, row) for row in select(sql, (*values, limit + 1))]
    end = items[limit - 1] if len(items) > limit else None
    following = None if end is None else make_cursor(question, end.dead_at, end.last_sequence)
    return FoundDeadLetters(items=items[:limit], next=following)


def find_groups(select: Select, chosen: DeadLetterFilter, *, cursor: str | None, limit: int) -> FoundGroups:
    """Return a page of groups; see `Store.dead_letter_group_page`."""
    question = ("groups", without_times(chosen))
    where, values = chosen.where()
    having = "1"
    after: tuple[str | int, ...] = ()
    if cursor is not None:
        count, fingerprint = read_cursor(question, cursor, int, str)
        having, after = "n < ? OR (n = ? AND fingerprint > ?)", (count, count, fingerprint)
    # Count without the rows, which hold tracebacks; then read the newest row of each group.
    counted = (
        "SELECT fingerprint, count(*) AS n, min(dead_at) AS oldest, max(dead_at) AS newest FROM dead_letters "  # noqa: S608
        f"WHERE {where} GROUP BY fingerprint HAVING {having} ORDER BY n DESC, fingerprint LIMIT ?"
    )
    newest = f"SELECT rowid FROM dead_letters WHERE fingerprint = g.fingerprint AND dead_at = g.newest AND {where} LIMIT 1"  # noqa: S608
    sql = (
        "SELECT g.fingerprint, n, task, reason, error_type, error, queue, job_id, pattern, newest, oldest "  # noqa: S608
        f"FROM ({counted}) AS g JOIN dead_letters AS d ON d.rowid = ({newest}) ORDER BY n DESC, g.fingerprint"
    )
    items = [struct(DeadLetterGroup, row) for row in select(sql, (*values, *after, limit + 1, *values))]
    end = items[limit - 1] if len(items) > limit else None
    following = None if end is None else make_cursor(question, end.count, end.fingerprint)
    return FoundGroups(items=items[:limit], next=following)


class _ActGroup:
    """The acts of one person with one reason within seconds of each other, each on another job."""

    def __init__(self, newest: ActRow) -> None:
        self._newest = newest
        self._last_at = datetime.fromisoformat(newest.at)
        self._jobs = {(newest.queue, newest.job)}
        self._tasks = {newest.task}

    def takes(self, act: ActRow) -> bool:
        """Add an act, older than the ones before, if it belongs to the group; return whether it does."""
        job, at = (act.queue, act.job), datetime.fromisoformat(act.at)
        if not act.job or job in self._jobs or self.is_over(at):
            return False
        self._last_at = at
        self._jobs.add(job)
        self._tasks.add(act.task)
        return True

    def is_over(self, at: datetime) -> bool:
        """Return whether acts at this time or earlier no longer belong to the group."""
        return self._last_at - at > _TOGETHER

    def made(self, end: datetime | None) -> ActGroup:
        """Return the group; `end`: time of the newest act that was not read."""
        queues = {queue for queue, _ in self._jobs}
        return ActGroup(
            newest=self._newest,
            count=len(self._jobs),
            queue="" if len(queues) > 1 else self._newest.queue,
            task="" if len(self._tasks) > 1 else self._newest.task,
            is_whole=not self._newest.job or end is None or self.is_over(end),
        )


def group_acts(select: Select, chosen: ActFilter, *, limit: int, together: bool, acts_max: int) -> ActGroups:
    """Return at most `limit` groups of acts, of the newest `acts_max` acts; see `Store.act_groups`."""
    groups: list[_ActGroup] = []
    open_ones: dict[tuple[str, ...], _ActGroup] = {}  # two people may act on many jobs at the same time
    count, end = 0, None
    for number, act in enumerate(_newest_acts(select, chosen, limit)):
        at = datetime.fromisoformat(act.at)
        if number == acts_max:
            end = at
            break
        key = (act.by, act.act, act.reason, str(act.new_input))
        group = open_ones.get(key)
        if group is None or not group.takes(act):
            if len(groups) == limit:
                open_ones = {name: each for name, each in open_ones.items() if not each.is_over(at)}
                if not open_ones:
                    break
                continue
            group = _ActGroup(act)
            groups.append(group)
            if act.job and together:
                open_ones[key] = group
        count += 1
    return ActGroups(items=[each.made(end) for each in groups], acts=count)


def _newest_acts(select: Select, chosen: ActFilter, portion: int) -> Iterator[ActRow]:
    """Yield every matching act, the newest first; they are read in portions as needed."""
    cursor: str | None = None
    while True:
        page = find_acts(select, chosen, cursor=cursor, limit=portion)
        yield from page.items
        if (cursor := page.next) is None:
            return


def find_acts(select: Select, chosen: ActFilter, *, cursor: str | None, limit: int) -> FoundActs:
    """Return a page of acts; see `Store.act_page`."""
    question = ("acts", msgspec.structs.replace(chosen, since=None))
    where, values = chosen.where()
    if cursor is not None:
        where, values = f"{where} AND stream_sequence < ?", [*values, *read_cursor(question, cursor, int)]
    sql = f"SELECT {ACT_COLUMNS} FROM acts WHERE {where} ORDER BY stream_sequence DESC LIMIT ?"  # noqa: S608
    items = [act_row(row) for row in select(sql, (*values, limit + 1))]
    end = items[limit - 1] if len(items) > limit else None
    following = None if end is None else make_cursor(question, end.stream_sequence)
    return FoundActs(items=items[:limit], next=following)
