"""The statistics as frozen Structs ready for JSON, and the statements that fill them.

`Store` hands them out. Times are ISO-8601 text in UTC, by the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Self

import msgspec

from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.times import time_text
from jobledger.projections.errors import ProjectionConfigError
from jobledger.projections.statistics.spread import Spread, all_merged, cumulative, from_text, quantile_us
from jobledger.projections.statistics.tally import (
    COUNTERS,
    HISTOGRAM_WIDTH,
    HISTOGRAMS,
    MINUTE_US,
    QUEUE_COUNTS,
    STATISTICS,
    microseconds,
    moment,
    summed,
)

_MICROSECOND: Final = 1e-6
_MINUTE_S: Final = 60
_EARLIEST: Final = -(1 << 62)
_LATEST: Final = 1 << 62
_NOTHING: Final = cumulative({})


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at one priority, with its jobs by state."""

    queue: str
    priority: str
    counts: dict[str, int]  #: by state; has every state
    oldest_waiting: str | None  #: when the job that waits longest for a worker became `queued`
    oldest_running: str | None  #: start of the attempt that has run longest


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of something."""

    count: int
    sum_s: float
    counts: tuple[int, ...]  #: for each of `HISTOGRAM_BOUNDS_S`: how many took at most that long
    smallest_s: float | None = None  #: None without a duration, like `largest_s`
    largest_s: float | None = None
    #: Number of durations by the upper bound of their bucket in microseconds, ascending; a bucket is at most a tenth
    #: wide.
    spread_us: dict[int, int] = msgspec.field(default_factory=dict[int, int])

    @classmethod
    def merged(cls, histograms: Iterable[Histogram]) -> Self:
        """Return several histograms as one, an empty one for none."""
        several = list(histograms)
        spread = all_merged(_spread_of(each) for each in several)
        return cls._of(sum(each.count for each in several), sum(each.sum_s for each in several), spread)

    @classmethod
    def of_columns(cls, values: Sequence[Any]) -> Self:
        """Return the histogram in the columns `tally.histogram_columns` of a row."""
        count, sum_us, text = values
        return cls._of(count, sum_us * _MICROSECOND, from_text(text))

    @classmethod
    def _of(cls, count: int, sum_s: float, spread: Spread | None) -> Self:
        if spread is None:
            return cls(count=count, sum_s=sum_s, counts=_NOTHING)
        return cls(
            count=count,
            sum_s=sum_s,
            counts=cumulative(spread.counts),
            smallest_s=spread.smallest_us * _MICROSECOND,
            largest_s=spread.largest_us * _MICROSECOND,
            spread_us=spread.counts,
        )

    def quantile_s(self, share: float) -> float | None:
        """Return the duration that a `share` (0 to 1) does not exceed, within a twentieth; None without a duration."""
        spread = _spread_of(self)
        return None if spread is None else quantile_us(spread, share) * _MICROSECOND


def _spread_of(histogram: Histogram) -> Spread | None:
    smallest_s, largest_s = histogram.smallest_s, histogram.largest_s
    if smallest_s is None or largest_s is None:
        return None
    return Spread(round(smallest_s * 1e6), round(largest_s * 1e6), histogram.spread_us)


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts for the jobs of a task in a queue; `tally.COUNTERS` defines them."""

    queue: str
    task: str
    enqueued: int  #: jobs
    started: int  #: attempts
    completed: int
    failed: int  #: attempts
    retried: int  #: dispatches after a failed attempt
    lost: int  #: attempts whose worker died
    interrupted: int
    snoozed: int
    paused: int
    cancelled: int  #: jobs
    dead_lettered: int
    requeued: int
    discarded: int
    fenced: int  #: outcomes refused because their claim was stale
    redispatched: int
    admitted: int  #: jobs that limits admitted
    ungranted: int  #: admitted jobs that wait for their limits again, because no worker took them
    wait: Histogram  #: from becoming queued to the start of an attempt
    run: Histogram  #: from the start of an attempt to its outcome
    total: Histogram  #: from the job's first event to a final state


class TotalsRow(Statistics, frozen=True, kw_only=True):
    """Counts of everything since the projection's `begins_at`."""


class BucketRow(Statistics, frozen=True, kw_only=True):
    """Counts of a span of time."""

    begins_at: str  #: beginning of the span, a multiple of `step_s` since 1970
    step_s: int


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one type of error; beyond the first 100 types of a queue and task they count as `(other)`."""

    queue: str
    task: str
    error_type: str
    failed: int  #: attempts
    dead_lettered: int


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a worker in the ledger; whether it is alive, its lease shows."""

    worker: str
    first_at: str
    last_at: str  #: time of the newest event about its attempts, except their loss
    attempts: int
    completed: int
    failed: int
    lost: int
    interrupted: int
    fenced: int


#: Condition on jobs in the index that finds the oldest job of a queue.
OF_INTEREST: Final = "status IN ('queued', 'running')"
_OLDEST: Final = (
    f"SELECT min(since_us) FROM jobs WHERE {OF_INTEREST} "  # noqa: S608 - constants, here and below
    "AND jobs.queue = queues.queue AND jobs.priority = queues.priority AND status ="
)
QUEUES_SQL: Final = (
    f"SELECT queue, priority, {', '.join(QUEUE_COUNTS)}, ({_OLDEST} 'queued'), ({_OLDEST} 'running') "  # noqa: S608
    "FROM queues WHERE ? IS NULL OR queue = ? ORDER BY queue, priority"
)
#: The queues in a JSON list, and then all others together.
QUEUES_SHOWN_SQL: Final = (
    f"SELECT queue, priority, {', '.join(QUEUE_COUNTS)}, ({_OLDEST} 'queued'), ({_OLDEST} 'running') "  # noqa: S608
    "FROM queues WHERE queue IN (SELECT value FROM json_each(?)) ORDER BY queue, priority"
)
QUEUES_OTHER_SQL: Final = (
    f"SELECT ?, priority, {', '.join(f'sum({name})' for name in QUEUE_COUNTS)}, "  # noqa: S608
    f"min(CASE WHEN queued > 0 THEN ({_OLDEST} 'queued') END), "
    f"min(CASE WHEN running > 0 THEN ({_OLDEST} 'running') END) "
    "FROM queues WHERE queue NOT IN (SELECT value FROM json_each(?)) GROUP BY priority ORDER BY priority"
)
TOTALS_SQL: Final = (
    f"SELECT queue, task, {', '.join(STATISTICS)} FROM totals "  # noqa: S608
    "WHERE (? IS NULL OR queue = ?) AND (? IS NULL OR task = ?) ORDER BY queue, task"
)
BUCKETS_SQL: Final = (
    "SELECT minute / ? AS span, queue, task, "  # noqa: S608
    f"{', '.join(map(summed, STATISTICS))} FROM buckets "
    "WHERE minute >= ? AND minute < ? AND (? IS NULL OR queue = ?) AND (? IS NULL OR task = ?) AND ({}) "
    "GROUP BY span, queue, task ORDER BY span, queue, task LIMIT ?"
)
FAILURES_SQL: Final = (
    f"SELECT {', '.join(FailureRow.__struct_fields__)} FROM failures "  # noqa: S608
    "WHERE (? IS NULL OR queue = ?) AND (? IS NULL OR task = ?) ORDER BY queue, task, failed DESC, error_type"
)
WORKERS_SQL: Final = (
    f"SELECT {', '.join(WorkerRow.__struct_fields__)} FROM workers ORDER BY last_at DESC, worker LIMIT ?"  # noqa: S608
)


def queue_row(row: Sequence[Any]) -> QueueRow:
    """Return a row of `QUEUES_SQL`."""
    queue, priority, *counts, waiting, running = row
    by_state = dict(zip((state.value for state in JobState), counts, strict=True))
    return QueueRow(
        queue=queue,
        priority=priority,
        counts=by_state,
        oldest_waiting=_text(waiting),
        oldest_running=_text(running),
    )


def _text(time_us: int | None) -> str | None:
    return None if time_us is None else time_text(moment(time_us))


def totals_row(row: Sequence[Any]) -> TotalsRow:
    """Return a row of `TOTALS_SQL`."""
    queue, task, *values = row
    return TotalsRow(queue=queue, task=task, **_statistics(values))


def bucket_row(row: Sequence[Any], step_s: int) -> BucketRow:
    """Return a row of `BUCKETS_SQL`."""
    span, queue, task, *values = row
    begins_at = time_text(moment(span * step_s * 1_000_000))
    return BucketRow(begins_at=begins_at, step_s=step_s, queue=queue, task=task, **_statistics(values))


def _statistics(values: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(COUNTERS, values, strict=False))
    for place, name in enumerate(HISTOGRAMS):
        first = len(COUNTERS) + place * HISTOGRAM_WIDTH
        found[name] = Histogram.of_columns(values[first : first + HISTOGRAM_WIDTH])
    return found


def bucket_values(since: str | datetime | None, until: str | datetime | None, step_s: int) -> dict[str, int]:
    """Return the minutes that `Store.buckets` reads: from the span that contains `since`, up to before `until`.

    Raises: ProjectionConfigError.
    """
    if step_s < _MINUTE_S or step_s % _MINUTE_S:
        raise ProjectionConfigError(f"step_s must be a multiple of {_MINUTE_S}, got {step_s}")
    minutes = step_s // _MINUTE_S
    first = _EARLIEST if since is None else _time_us("since", since) // MINUTE_US // minutes * minutes
    last = _LATEST if until is None else -(-_time_us("until", until) // MINUTE_US)
    return {"minutes": minutes, "since": first, "until": last}


def _time_us(name: str, at: str | datetime) -> int:
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError as error:
            raise ProjectionConfigError(f"{name} must be an ISO-8601 time, got {at!r}") from error
    return microseconds(at)
