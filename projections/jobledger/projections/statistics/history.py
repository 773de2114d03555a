"""Counts over time in as few rows as a chart needs: by span and queue, however many tasks there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec

from jobledger.projections.filters import Term, joined
from jobledger.projections.statistics.answers import Histogram, bucket_values
from jobledger.projections.statistics.tally import MINUTE_US, histogram_columns, moment, summed

Select = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]

Counter = Literal["enqueued", "started", "completed", "cancelled", "failed", "dead_lettered"]

_HAPPENED: Final = ("enqueued", "completed", "failed", "dead_lettered")
_WAIT: Final = ", ".join(map(summed, histogram_columns("wait")))
_RUN: Final = ", ".join(map(summed, histogram_columns("run")))
_SUMS: Final = ", ".join(f"sum({name})" for name in _HAPPENED)
_SPANS: Final = (
    f"SELECT minute / ? AS span, queue, {_SUMS} FROM buckets "  # noqa: S608 - columns, here and below
    "WHERE minute >= ? AND minute < ? AND ({}) GROUP BY span, queue ORDER BY span, queue"
)
_SERIES: Final = "SELECT minute / ? AS span, {} FROM buckets WHERE minute >= ? AND minute < ? AND ({}) GROUP BY {} ORDER BY span"
_QUEUES: Final = (
    f"SELECT queue, {_SUMS}, {_WAIT}, {_RUN} FROM buckets "  # noqa: S608
    "WHERE minute >= ? AND minute < ? AND ({}) GROUP BY queue ORDER BY queue"
)


class QueueHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Counts for the jobs of a queue in a span of time."""

    begins_at: datetime  #: beginning of the span, a multiple of its length since 1970
    queue: str
    enqueued: int
    completed: int
    failed: int  #: attempts
    dead_lettered: int


class Point(NamedTuple):
    """The sums of `buckets` in a span of time."""

    begins_at: datetime
    name: str  #: name of the queue or task if points are by these, else ""
    counts: tuple[int, ...]  #: sums of the requested columns
    took: Histogram | None  #: None if no histogram was requested


class QueueHappened(QueueHistory, frozen=True, kw_only=True):
    """Counts and durations of a queue since a moment."""

    wait: Histogram  #: from becoming queued to the start of an attempt
    run: Histogram  #: from the start of an attempt to its outcome


def happened(
    select: Select, since: datetime, until: datetime, *, step_s: int, terms: Sequence[Term] = ()
) -> list[QueueHistory]:
    """Return counts by span and queue, without empty spans; `terms`: conditions on `queue` and `task`.

    Raises: ProjectionConfigError.
    """
    where, values = joined(terms)
    rows = select(_SPANS.format(where), (*_values(since, until, step_s), *values))
    return [
        QueueHistory(begins_at=_begin(span, step_s), queue=queue, **dict(zip(_HAPPENED, sums, strict=True)))
        for span, queue, *sums in rows
    ]


def series(
    select: Select,
    since: datetime,
    until: datetime,
    *,
    step_s: int,
    counts: Sequence[Counter] = (),
    took: Literal["wait", "run", "total"] | None = None,
    by: Literal["queue", "task"] | None = None,
    terms: Sequence[Term] = (),
) -> list[Point]:
    """Return sums of `buckets` by span, and by name if `by` is given; without empty spans.

    Raises: ProjectionConfigError.
    """
    where, values = joined(terms)
    timed = () if took is None else histogram_columns(took)
    columns = ", ".join([*([by] if by else ["''"]), *map(summed, (*counts, *timed))])
    sql = _SERIES.format(columns, where, f"span, {by}" if by else "span")
    width = len(counts)
    return [
        Point(
            _begin(span, step_s),
            name,
            tuple(sums[:width]),
            None if took is None else Histogram.of_columns(sums[width:]),
        )
        for span, name, *sums in select(sql, (*_values(since, until, step_s), *values))
    ]


def by_queue(
    select: Select, since: datetime, until: datetime, terms: Sequence[Term] = ()
) -> list[QueueHappened]:
    """Return counts of each queue between two moments, in whole minutes; `terms`: conditions on `queue` and `task`.

    Raises: ProjectionConfigError.
    """
    width = len(histogram_columns("wait"))
    found: list[QueueHappened] = []
    where, given = joined(terms)
    for queue, *values in select(_QUEUES.format(where), (*_values(since, until, 60)[1:], *given)):
        sums, histograms = values[: len(_HAPPENED)], values[len(_HAPPENED) :]
        found.append(
            QueueHappened(
                begins_at=since,
                queue=queue,
                wait=Histogram.of_columns(histograms[:width]),
                run=Histogram.of_columns(histograms[width:]),
                **dict(zip(_HAPPENED, sums, strict=True)),
            )
        )
    return found


def _values(since: datetime, until: datetime, step_s: int) -> tuple[int, int, int]:
    found = bucket_values(since, until, step_s)
    return found["minutes"], found["since"], found["until"]


def _begin(span: int, step_s: int) -> datetime:
    return moment(span * step_s * MINUTE_US // 60)
