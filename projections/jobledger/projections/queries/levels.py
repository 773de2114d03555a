"""Jobs of queues by state at past moments, to the minute or to the hour, without folding a past state."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from jobledger.ledger.model.times import time_text
from jobledger.projections.queries.lanes import Select
from jobledger.projections.statistics.levels import ALL, DAY_MIN, HOUR_MIN, MINUTES_DAYS, NOTHING, Counts
from jobledger.projections.statistics.tally import MINUTE_US, QUEUE_COUNTS, microseconds, moment

_COUNTS: Final = ", ".join(QUEUE_COUNTS)
_SUMS: Final = ", ".join(f"sum({name})" for name in QUEUE_COUNTS)
_SPAN: Final = "SELECT since, open FROM levels_span WHERE id = 1"
_NOW: Final = f"SELECT queue, {_SUMS} FROM queues GROUP BY queue"  # noqa: S608 - names of columns, here and below
_QUEUES: Final = "SELECT DISTINCT queue FROM queues"
_AT: Final = f"SELECT {_COUNTS} FROM levels WHERE queue = ? AND minute <= ? ORDER BY minute DESC LIMIT 1"  # noqa: S608
_BETWEEN: Final = (
    f"SELECT minute, {_COUNTS} FROM levels WHERE queue = ? AND minute > ? AND minute <= ? ORDER BY minute"  # noqa: S608
)


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """The number of jobs in each state from a moment on, until the next level."""

    at: str  #: moment by the server's clock, ISO-8601 text in UTC
    counts: dict[str, int]  #: by state; has every state


class LevelsAt(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of each queue by state at a moment."""

    at: str  #: a full minute, or long ago a full hour, at or before the requested moment
    queues: dict[str, dict[str, int]]  #: by queue and state; without queues that had no job yet


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The time that the rows of `levels` cover, in minutes since 1970."""

    since: int  #: first minute whose end is known
    open: int  #: minute that is not over

    @property
    def fine_since(self) -> int:
        """The first minute that is kept by itself; before it only the last minute of each hour is kept."""
        return (self.open // DAY_MIN - MINUTES_DAYS) * DAY_MIN

    def end_before(self, at: datetime) -> int:
        """Return the newest minute, among those kept by themselves, that was over at a moment."""
        minute = microseconds(at) // MINUTE_US - 1
        return minute if minute >= self.fine_since else (minute + 1) // HOUR_MIN * HOUR_MIN - 1


def levels_at(select: Select, at: datetime) -> LevelsAt | None:
    """Return the jobs of queues by state at a moment; see `Store.levels_at`."""
    span = _span(select)
    if span is None or (minute := span.end_before(at)) < span.since:
        return None
    if minute >= span.open:  # nothing changed since
        found = _now(select)
    else:
        names = [row[0] for row in select(_QUEUES, ())]
        found = {name: rows[0] for name in names if (rows := select(_AT, (name, minute)))}
    return LevelsAt(at=_end(minute), queues={name: _by_state(counts) for name, counts in found.items()})


def levels(select: Select, since: datetime, until: datetime, queue: str | None) -> list[Level]:
    """Return the changes of the counts of a queue, or of all; see `Store.levels`."""
    found = levels_by_minute(select, since, until, queue)
    return [Level(at=_end(minute), counts=_by_state(counts)) for minute, counts in found]


def levels_by_minute(
    select: Select, since: datetime, until: datetime, queue: str | None
) -> list[tuple[int, Counts]]:
    """Return the same as tuples: a minute, counted from 1970, and the counts at its end in the order of `QUEUE_COUNTS`."""
    span, name = _span(select), ALL if queue is None else queue
    if span is None:
        return []
    first, last = max(span.end_before(since), span.since), microseconds(until) // MINUTE_US - 1
    found: list[tuple[int, Counts]] = []
    if first < span.open:
        begun = select(_AT, (name, first))
        found.append((first, begun[0] if begun else NOTHING))
        found += [(row[0], row[1:]) for row in select(_BETWEEN, (name, first, last))]
    if last >= span.open:  # the present counts stand for the end of the open minute
        now = _now(select)
        counts = (
            tuple(map(sum, zip(*now.values(), strict=True))) if queue is None else now.get(queue, NOTHING)
        )
        if not found or counts != found[-1][1]:
            found.append((max(first, span.open), counts))
    return [each for each in found if each[0] <= last]


def _now(select: Select) -> dict[str, Counts]:
    return {row[0]: row[1:] for row in select(_NOW, ())}


def _span(select: Select) -> Span | None:
    found = select(_SPAN, ())
    return Span(since=found[0][0], open=found[0][1]) if found else None


def _by_state(counts: Counts) -> dict[str, int]:
    return dict(zip(QUEUE_COUNTS, counts, strict=True))


def _end(minute: int) -> str:
    return time_text(moment((minute + 1) * MINUTE_US))
