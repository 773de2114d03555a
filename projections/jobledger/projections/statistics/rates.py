"""Success and speed of jobs between two moments, by queue or by task, from the minutes of `buckets`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec

from jobledger.projections.filters import Term, joined
from jobledger.projections.statistics.answers import Histogram, bucket_values
from jobledger.projections.statistics.tally import HISTOGRAM_WIDTH, histogram_columns, summed

Select = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]

_COUNTED: Final = ("enqueued", "completed", "failed", "dead_lettered")
_TIMED: Final = ("wait", "run")
_SUMS: Final = ", ".join(
    map(summed, (*_COUNTED, *(each for name in _TIMED for each in histogram_columns(name))))
)


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of durations in seconds; None without any duration."""

    count: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of the jobs of a queue or of a task."""

    name: str  #: name of the queue or the task
    enqueued: int
    completed: int
    failed: int  #: attempts
    dead_lettered: int
    success_rate: (
        float | None
    )  #: completed attempts as a part of those that completed or failed; None without any
    wait: Quantiles  #: from becoming queued to the start of an attempt
    run: Quantiles  #: from the start of an attempt to its outcome


class Minute(NamedTuple):
    """The ends of a task's attempts within a minute with any."""

    at: datetime
    share: float  #: share of these attempts that failed


def rates(
    select: Select,
    by: Literal["queue", "task"],
    since: datetime,
    until: datetime,
    terms: Sequence[Term] = (),
) -> list[Rates]:
    """Return the rates between two moments, in whole minutes, by name; `terms`: conditions on `queue` and `task`.

    Raises: ProjectionConfigError.
    """
    minutes = bucket_values(since, until, 60)
    between = Term("", "minute >= ? AND minute < ?", (minutes["since"], minutes["until"]))
    where, values = joined([between, *terms])
    sql = f"SELECT {by}, {_SUMS} FROM buckets WHERE {where} GROUP BY {by} ORDER BY {by}"  # noqa: S608 - columns
    return [_rates(row) for row in select(sql, values)]


def minutes_of(
    select: Select, tasks: Sequence[str], since: datetime, until: datetime, terms: Sequence[Term] = ()
) -> dict[str, list[Minute]]:
    """Return the minutes in which attempts of these tasks ended, the newest first; parameters as of `rates`."""
    found: dict[str, list[Minute]] = {task: [] for task in tasks}
    if not tasks:
        return found
    minutes = bucket_values(since, until, 60)
    between = Term("", "minute >= ? AND minute < ?", (minutes["since"], minutes["until"]))
    chosen = Term("", f"task IN ({', '.join('?' * len(tasks))})", tuple(tasks))
    where, values = joined([between, chosen, *terms])
    sql = (
        f"SELECT task, minute, sum(completed), sum(failed) FROM buckets WHERE {where} "  # noqa: S608 - marks
        "GROUP BY task, minute HAVING sum(completed) + sum(failed) > 0 ORDER BY minute DESC"
    )
    for task, minute, completed, failed in select(sql, values):
        share = 1 - (success_rate(completed, failed) or 0.0)
        found[task].append(Minute(datetime.fromtimestamp(60 * minute, UTC), share))
    return found


def quantiles(of: Histogram) -> Quantiles:
    """Return the quantiles of a histogram that are shown."""
    return Quantiles(
        count=of.count, p50_s=of.quantile_s(0.5), p95_s=of.quantile_s(0.95), p99_s=of.quantile_s(0.99)
    )


def success_rate(completed: int, failed: int) -> float | None:
    """Return completed attempts as a part of those that completed or failed; None without any."""
    return completed / (completed + failed) if completed + failed else None


def _rates(row: Sequence[Any]) -> Rates:
    name, enqueued, completed, failed, dead_lettered, *timed = row
    return Rates(
        name=name,
        enqueued=enqueued,
        completed=completed,
        failed=failed,
        dead_lettered=dead_lettered,
        success_rate=success_rate(completed, failed),
        wait=quantiles(Histogram.of_columns(timed[:HISTOGRAM_WIDTH])),
        run=quantiles(Histogram.of_columns(timed[HISTOGRAM_WIDTH:])),
    )
