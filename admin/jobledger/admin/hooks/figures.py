"""The figures that watches look at, from the rows of a projection."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from jobledger.admin.rows import View
from jobledger.ledger.model.hooks.watch import Figure, WatchDefinition
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.subjects import INNER_QUEUES
from jobledger.ledger.model.times import as_utc
from jobledger.projections import JobFilter
from jobledger.projections.statistics.answers import Histogram, QueueRow, Statistics

#: The states that a figure counts.
_STATES: Final[dict[Figure, JobState]] = {
    "depth": JobState.QUEUED,
    "dead_letters": JobState.DEAD_LETTERED,
}
_P99: Final = 0.99


def figure_of(view: View, definition: WatchDefinition) -> float | None:
    """Return the figure of a watch, from the rows; None if there is nothing to measure.

    The ledger's own queues do not count: the delivery of a firing must not make a watch fire. Reads files: not for
    an event loop.

    Raises: ProjectionError.
    """
    match definition.figure:
        case "lag":
            return view.position().behind_s
        case "depth" | "dead_letters":
            return float(_count(view, definition, _STATES[definition.figure]))
        case "oldest_wait_s":
            return _oldest_wait_s(_queues(view, definition), view.now)
        case "error_rate" | "success_rate" | "wait_p99_s":
            return _of_window(view, definition)


def _queues(view: View, definition: WatchDefinition) -> list[QueueRow]:
    rows = view.store.queues(definition.queue or None)
    return [row for row in rows if row.queue not in INNER_QUEUES]


def _count(view: View, definition: WatchDefinition, state: JobState) -> int:
    if not definition.task:  # counted as by the projector
        return sum(row.counts[state] for row in _queues(view, definition))
    chosen = JobFilter(queue=definition.queue or None, task=definition.task)
    return view.store.job_counts(chosen).by_state[state]


def _oldest_wait_s(rows: Sequence[QueueRow], now: datetime) -> float:
    since = [datetime.fromisoformat(row.oldest_waiting) for row in rows if row.oldest_waiting is not None]
    return max(0.0, (now - as_utc(min(since))).total_seconds()) if since else 0.0


def _of_window(view: View, definition: WatchDefinition) -> float | None:
    since = view.now - timedelta(seconds=definition.window_s)
    buckets = view.store.buckets(since, queue=definition.queue or None, task=definition.task or None)
    rows: list[Statistics] = [row for row in buckets if row.queue not in INNER_QUEUES]
    if definition.figure == "wait_p99_s":
        return Histogram.merged(row.wait for row in rows).quantile_s(_P99)
    good = sum(row.completed for row in rows)
    bad = sum(row.failed if definition.figure == "error_rate" else row.dead_lettered for row in rows)
    if not good + bad:
        return None
    return (bad if definition.figure == "error_rate" else good) / (good + bad)
