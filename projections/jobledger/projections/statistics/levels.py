"""The jobs of each queue by state at the end of each minute; written when the fold enters another minute.

A row is written when a queue's counts differ from its row before, so that rows follow from the events alone,
however these are cut into transactions. The row with the queue "" is the sum of all. Minutes are kept for two to three
days, then the last row of each hour for 90 days; in all at most `ROWS_MAX` rows, however many queues there are.

The caller owns the transaction.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import add, sub
from typing import Final

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.job import JobState
from jobledger.projections.statistics.tally import MINUTE_US, QUEUE_COUNTS, SeenJob, microseconds
from jobledger.projections.table import Table, integer, text

DAY_MIN: Final = 24 * 60
HOUR_MIN: Final = 60
#: Days whose minutes are kept, beside the present day of the rows.
MINUTES_DAYS: Final = 2
KEPT_DAYS: Final = 90
ROWS_MAX: Final = 500_000
ALL: Final = ""  #: the queue of the row that sums up all of them

LEVELS: Final = Table(
    name="levels",
    row='queue (`""`: all) and minute in which its counts changed',
    columns={
        "queue": text('the queue; "": all of them'),
        "minute": integer("since 1970, by the server's time: the row is of its end"),
        **dict.fromkeys(QUEUE_COUNTS, integer("jobs that were in this state")),
    },
    key=("queue", "minute"),
)
LEVELS_SPAN: Final = Table(
    name="levels_span",
    row="file: where `levels` begins and ends",
    columns={
        "id": integer("always 1"),
        "since": integer("the first minute that `levels` tells of"),
        "open": integer(
            "the minute of the server's time that the rows have reached: its row is still to come"
        ),
        "rows": integer("how many rows `levels` has", is_internal=True),
    },
    key=("id",),
)
Counts = tuple[int, ...]  # by state, in the order of `QUEUE_COUNTS`
_Key = tuple[str, str]  # (job id, queue)

NOTHING: Final[Counts] = (0,) * len(QUEUE_COUNTS)
_AT: Final = {state: place for place, state in enumerate(JobState)}
_COUNTS: Final = ", ".join(QUEUE_COUNTS)
_SUMS: Final = ", ".join(f"sum({name})" for name in QUEUE_COUNTS)
_PUT: Final = LEVELS.putting()
_PUT_SPAN: Final = LEVELS_SPAN.putting()
_SPAN: Final = "SELECT since, open, rows FROM levels_span WHERE id = 1"
_NAMES: Final = "SELECT DISTINCT queue FROM queues"
_NOW: Final = f"SELECT {_SUMS} FROM queues WHERE queue = ?"  # noqa: S608 - names of columns, here and below
_NEWEST: Final = f"SELECT {_COUNTS} FROM levels WHERE queue = ? ORDER BY minute DESC LIMIT 1"  # noqa: S608
#: Deletes rows except the last one of each hour.
_THIN: Final = (
    "DELETE FROM levels WHERE minute >= ? AND minute < ? AND EXISTS (SELECT 1 FROM levels AS later "  # noqa: S608
    f"WHERE later.queue = levels.queue AND later.minute > levels.minute "
    f"AND later.minute / {HOUR_MIN} = levels.minute / {HOUR_MIN})"
)
#: Deletes rows except the ones valid at the beginning of the kept part.
_FORGET: Final = (
    "DELETE FROM levels WHERE minute < ? AND EXISTS (SELECT 1 FROM levels AS later "
    "WHERE later.queue = levels.queue AND later.minute > levels.minute AND later.minute <= ?)"
)
_MINUTE_AT: Final = "SELECT minute FROM levels ORDER BY minute LIMIT 1 OFFSET ?"


class Levels:
    """The writer of one file's minutes; call `forget` after another writer changed the rows."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.forget()

    def forget(self) -> None:
        """Drop the facts about the rows from memory."""
        self._is_read = False
        self._open: int | None = None
        self._since = self._rows = 0
        self._touched: set[str] | None = None  # queues that may have changed in the open minute; None: any

    def begin(self) -> LevelNotes:
        """Begin a transaction."""
        if not self._is_read:
            found = self._connection.execute(_SPAN).fetchone()
            self._since, self._open, self._rows = found if found is not None else (0, None, 0)
            self._is_read = True
        return LevelNotes(self._open)

    def write(self, notes: LevelNotes, moved: Iterable[str]) -> None:
        """Write the notes of a transaction before its rows of `queues`; `moved`: queues whose rows will change."""
        if notes.open_minute is None:
            return
        if self._open is None:
            self._since = notes.over[0][0] if notes.over else notes.open_minute
            self._touched = set()
        if notes.over:
            self._write_over(notes)
            self._touched = {queue for _, changed in notes.over for queue in changed}
        if notes.open_minute != self._open:
            self._open = notes.open_minute
            self._connection.execute(_PUT_SPAN, (1, self._since, self._open, self._rows))
        if self._touched is not None:
            self._touched.update(moved)

    def _write_over(self, notes: LevelNotes) -> None:
        now = _KnownCounts(self._connection, _NOW)
        newest = _KnownCounts(self._connection, _NEWEST)
        touched: set[str] = self._touched or set()
        if self._touched is None:
            touched = {row[0] for row in self._connection.execute(_NAMES)}
        ends = [*(minute for minute, _ in notes.over[1:]), notes.open_minute]
        rows: list[tuple[object, ...]] = []
        for (minute, changed), following in zip(notes.over, ends, strict=True):
            assert following is not None, "it follows a minute"
            rows += _of_minute(minute, sorted({*touched, *changed}), changed, now, newest)
            touched = set()
            if following // HOUR_MIN != minute // HOUR_MIN:
                self._put(rows)
                self._retain(minute, following)
                rows = []
        self._put(rows)

    def _put(self, rows: Sequence[tuple[object, ...]]) -> None:
        self._connection.executemany(_PUT, rows)
        self._rows += len(rows)

    def _retain(self, minute: int, following: int) -> None:
        """After each hour drop rows that are too old; of more than `ROWS_MAX` keep the newest half."""
        day, before = following // DAY_MIN, minute // DAY_MIN
        if day != before:
            fine, known = ((each - MINUTES_DAYS) * DAY_MIN for each in (day, before))
            self._delete(_THIN, known, fine)
            self._forget_before((day - KEPT_DAYS) * DAY_MIN)
        if self._rows > ROWS_MAX:
            middle = self._connection.execute(_MINUTE_AT, (self._rows - ROWS_MAX // 2,)).fetchone()[0]
            self._forget_before(middle // HOUR_MIN * HOUR_MIN)

    def _forget_before(self, minute: int) -> None:
        if minute > self._since:
            self._delete(_FORGET, minute, minute)
            self._since = minute

    def _delete(self, statement: str, *minutes: int) -> None:
        self._rows -= self._connection.execute(statement, minutes).rowcount


def _of_minute(
    minute: int,
    queues: Sequence[str],
    changed: Mapping[str, Counts],
    now: _KnownCounts,
    newest: _KnownCounts,
) -> list[tuple[object, ...]]:
    """Return the rows of a minute that is over, for the queues whose counts differ from their newest rows."""
    rows: list[tuple[object, ...]] = []
    total = newest[ALL]
    for queue in queues:
        counts = tuple(map(add, now[queue], changed.get(queue, NOTHING)))
        if counts != newest[queue]:
            total = tuple(map(add, total, map(sub, counts, newest[queue])))
            newest[queue] = counts
            rows.append((queue, minute, *counts))
    if rows:
        newest[ALL] = total
        rows.append((ALL, minute, *total))
    return rows


class _KnownCounts(dict[str, Counts]):
    """Counts by queue, read when they are first asked for."""

    def __init__(self, connection: sqlite3.Connection, statement: str) -> None:
        super().__init__()
        self._connection = connection
        self._statement = statement

    def __missing__(self, queue: str) -> Counts:
        found = self._connection.execute(self._statement, (queue,)).fetchone()
        self[queue] = counts = NOTHING if found is None or found[0] is None else tuple(found)
        return counts


class LevelNotes:
    """Notes on minutes that ended within the events of one transaction."""

    def __init__(self, open_minute: int | None) -> None:
        self.open_minute = open_minute  #: the minute that is not over; None: there was no event yet
        #: Minutes that are over; for each, the differences of changed queues from their counts in the rows.
        self.over: list[tuple[int, dict[str, Counts]]] = []
        self._place = 0
        self._states: dict[_Key, JobState] = {}
        self._changes: dict[str, list[int]] = {}

    def timed(
        self,
        events: Sequence[StoredEvent],
        after: Mapping[_Key, SeenJob],
        begun: Callable[[_Key], SeenJob | None],
    ) -> Iterator[tuple[StoredEvent, int]]:
        """Yield each event with its server time in microseconds; note the counts of queues when a minute is over.

        `after`: the jobs after the events yielded so far; `begun`: returns a job as it is in the rows.
        """
        ends_us = -(1 << 62) if self.open_minute is None else (self.open_minute + 1) * MINUTE_US
        for stored in events:
            now_us = microseconds(stored.stored_at)
            if now_us >= ends_us:  # a clock that was set back keeps the minute
                self._pass(events, stored, after, begun)
                self.open_minute = now_us // MINUTE_US
                ends_us = (self.open_minute + 1) * MINUTE_US
            yield stored, now_us

    def _pass(
        self,
        events: Sequence[StoredEvent],
        stored: StoredEvent,
        after: Mapping[_Key, SeenJob],
        begun: Callable[[_Key], SeenJob | None],
    ) -> None:
        if self.open_minute is None:
            return
        place = bisect_left(events, stored.stream_sequence, key=_sequence)
        changed: set[str] = set()
        for key in dict.fromkeys((each.event.job, each.event.queue) for each in events[self._place : place]):
            seen = after.get(key)
            if seen is not None and self._moved(key, seen.job.state, begun):
                changed.add(key[1])
        self.over.append((self.open_minute, {queue: tuple(self._changes[queue]) for queue in changed}))
        self._place = place

    def _moved(self, key: _Key, state: JobState, begun: Callable[[_Key], SeenJob | None]) -> bool:
        known = begun(key)
        before = self._states.get(key, None if known is None else known.job.state)
        self._states[key] = state
        if state is before:
            return False
        changes = self._changes.setdefault(key[1], [0] * len(QUEUE_COUNTS))
        changes[_AT[state]] += 1
        if before is not None:
            changes[_AT[before]] -= 1
        return True


def _sequence(stored: StoredEvent) -> int:
    return stored.stream_sequence
