"""Rows of a projection and facts of the server as metrics of one moment, with a bounded number of series.

A limited number of queues, pairs of queue and task, and types of error have series of their own: the first ones in the
ledger, so that a series never changes hands and a counter never goes back. The rest is summed up as `(other)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from prometheus_client.core import Metric

from jobledger.audit.watch import AuditState
from jobledger.ledger.metrics.exposition import OTHER, Distribution, Measure, value, values
from jobledger.ledger.metrics.exposition import histograms as distributions
from jobledger.ledger.model.times import as_utc
from jobledger.projections.metrics import names
from jobledger.projections.metrics.facts import LaneFacts, ServerFacts
from jobledger.projections.metrics.figures import Figures
from jobledger.projections.metrics.recent import recent_metrics
from jobledger.projections.metrics.row_sums import distribution
from jobledger.projections.metrics.runs import running_metrics
from jobledger.projections.metrics.schedules import seconds_since, ticking_metrics
from jobledger.projections.position import Position
from jobledger.projections.queries.demand import CONCURRENCY, Demand
from jobledger.projections.statistics.answers import Histogram, QueueRow, TotalsRow
from jobledger.projections.statistics.held_jobs import HeldRow
from jobledger.projections.statistics.spread import HISTOGRAM_BOUNDS_S

LABEL_VALUES_MAX: Final = 200


class Labels:
    """The queues that are shown under their own names."""

    def __init__(self, shown: Iterable[str], values_max: int) -> None:
        self._values_max = values_max
        self._queues = set(shown)

    def admit(self, queues: Iterable[str]) -> None:
        """Add queues that are not in the ledger yet, while there is room: only for gauges, whose labels may change."""
        room = self._values_max - len(self._queues)
        self._queues |= set(sorted(set(queues) - self._queues)[: max(0, room)])

    def queue(self, queue: str) -> str:
        """Return the label of a queue."""
        return queue if queue in self._queues else OTHER


def figures_metrics(figures: Figures, now: datetime) -> Iterator[Metric]:
    """Return the metrics of a projection; ages are as of `now`."""
    yield value(names.TIMERS_PENDING, figures.timers_pending)
    aside = figures.set_aside
    accepted = {"no": aside.unacknowledged, "yes": aside.count - aside.unacknowledged}
    yield values(names.UNREADABLE, (((said,), count) for said, count in accepted.items()))
    yield values(names.FOLDED, (((label,), count) for label, count in figures.folded.items()))
    yield from _queue_metrics(figures.queues, now)
    yield _paused(figures, now)
    yield from _held_metrics(figures.held, now)
    waits = figures.limit_waits.items()
    yield distributions(names.LIMIT_WAIT, [(limit, distribution(columns)) for limit, columns in waits])
    yield from ticking_metrics(figures.ticking, now)
    yield from running_metrics(figures.running)
    yield values(names.WEBHOOK_DISABLED, [((name,), each) for name, each in figures.hooks.webhooks.items()])
    yield values(names.WATCH_FIRING, [((name,), each) for name, each in figures.hooks.watches.items()])
    yield from _task_metrics(figures.totals)
    yield from recent_metrics(figures.recent)
    for column, measure in names.FAILURES.items():
        rows = figures.failures
        yield values(measure, (((row.queue, row.task, row.error_type), getattr(row, column)) for row in rows))


def _queue_metrics(rows: Sequence[QueueRow], now: datetime) -> Iterator[Metric]:
    jobs = (((row.queue, row.priority, state), count) for row in rows for state, count in row.counts.items())
    yield values(names.JOBS, jobs)
    ages: tuple[tuple[Measure, Callable[[QueueRow], str | None]], ...] = (
        (names.OLDEST_WAITING, lambda row: row.oldest_waiting),
        (names.OLDEST_RUNNING, lambda row: row.oldest_running),
    )
    for measure, since in ages:
        yield values(measure, [((row.queue, row.priority), seconds_since(since(row), now)) for row in rows])


def _paused(figures: Figures, now: datetime) -> Metric:
    """Return the pauses: 1 for a paused queue, 0 for another, 1 for all other queues together if one is paused."""
    found = dict.fromkeys((row.queue for row in figures.queues), 0)
    for queue, state in figures.pauses.items():
        label = queue if queue in figures.shown else OTHER
        found[label] = max(found.get(label, 0), int(state.is_paused(now)))
    return values(names.QUEUE_PAUSED, (((queue,), paused) for queue, paused in found.items()))


def _held_metrics(rows: Sequence[HeldRow], now: datetime) -> Iterator[Metric]:
    yield values(names.HELD, [((row.limit,), row.jobs) for row in rows])
    yield values(names.OLDEST_HELD, [((row.limit,), seconds_since(row.oldest, now)) for row in rows])
    yield values(names.HOLDERS, [((row.limit,), row.holders) for row in rows])
    yield values(names.LIMIT_DEFINED, [((row.limit,), int(row.defined)) for row in rows])


def _task_metrics(rows: Sequence[TotalsRow]) -> Iterator[Metric]:
    for column, measure in names.COUNTERS.items():
        yield values(measure, [((row.queue, row.task), getattr(row, column)) for row in rows])
    for column, measure in names.HISTOGRAMS.items():
        yield distributions(measure, [((row.queue, row.task), _distribution(row, column)) for row in rows])


def _distribution(row: TotalsRow, column: str) -> Distribution:
    histogram: Histogram = getattr(row, column)
    return Distribution(HISTOGRAM_BOUNDS_S, [*histogram.counts, histogram.count], histogram.sum_s)


def place_metrics(position: Position) -> Iterator[Metric]:
    """Return the metrics of the projection's position."""
    yield value(names.POSITION, position.stream_sequence)
    yield value(names.BEGINS, position.begins_at)
    yield value(names.COUNTS_BEGIN, position.counts_begin_at)


def ledger_metrics(facts: ServerFacts, position: int | None) -> Iterator[Metric]:
    """Return the server's metrics of the ledger, beside a projection that has reached `position`.

    None for a projection ahead of the ledger's end, which has no lag: events that it counted are lost.
    """
    behind = None if position is None else max(0, facts.head_sequence - position)
    for measure, number in (
        (names.LAG_EVENTS, behind),
        (names.LAG_SECONDS, facts.lag_s if behind else behind),
        (names.LEDGER_BYTES, facts.ledger_bytes),
        (names.LEDGER_COMMITTED, facts.committed_bytes),
        (names.LEDGER_LIMIT, facts.limit_bytes),
        (names.LEDGER_EVENTS, facts.events),
        (names.LEDGER_FIRST, facts.first_sequence),
        (names.LEDGER_HEAD, facts.head_sequence),
        (names.TIMERS_STREAM, facts.timers_messages),
        (names.WORKERS, facts.workers),
    ):
        yield value(measure, number)


def audit_metrics(facts: ServerFacts, now: datetime) -> Iterator[Metric]:
    """Return the metrics of audits and of the keeper; an act that never happened has no sample."""
    audited, now = facts.audited or AuditState(), facts.now or now
    verified, keeper = audited.verified, facts.keeper
    looked_at = None if keeper is None else keeper.looked_at
    for measure, number in (
        (names.SEALED, audited.sealed_through),
        (names.UNSEALED, audited.unsealed),
        (names.SEAL_AGE, _since_s(audited.sealed_at, now)),
        (names.VERIFY_AGE, _since_s(None if verified is None else verified.at, now)),
        (names.VERIFY_SOUND, None if verified is None else float(verified.sound)),
        (names.ARCHIVE_AGE, _since_s(audited.archived_at, now)),
        (names.RETENTION_SUCCESS, None if looked_at is None else looked_at.timestamp()),
        (names.PLACE_UP, None if keeper is None or keeper.place_up is None else float(keeper.place_up)),
    ):
        yield value(measure, number)


def _since_s(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else max(0.0, (now - as_utc(at)).total_seconds())


def lane_metrics(facts: ServerFacts, labels: Labels) -> Iterator[Metric]:
    """Return the server's metrics of queues."""
    labels.admit((*facts.queue_workers, *(lane.queue for lane in facts.lanes)))
    # Zero also for a queue without workers: an alert cannot notice a missing series.
    serving = Counter(
        {labels.queue(queue): 0 for queue in (*facts.queue_workers, *(lane.queue for lane in facts.lanes))}
    )
    for queue, count in facts.queue_workers.items():
        serving[labels.queue(queue)] += count
    yield values(names.QUEUE_WORKERS, (((queue,), count) for queue, count in serving.items()))
    lanes: tuple[tuple[Measure, Callable[[LaneFacts], int]], ...] = (
        (names.UNDELIVERED, lambda lane: lane.undelivered),
        (names.UNSETTLED, lambda lane: lane.unsettled),
        (names.REDELIVERED, lambda lane: lane.redelivered),
    )
    for measure, count_of in lanes:
        counts: Counter[tuple[str, str]] = Counter()
        for lane in facts.lanes:
            counts[labels.queue(lane.queue), lane.priority] += count_of(lane)
        yield values(measure, counts.items())


def wanted_metrics(figures: Figures, facts: ServerFacts) -> Iterator[Metric]:
    """Return how many workers the queues with series of their own need, for workers as large as their present ones."""
    samples: list[tuple[tuple[str], int]] = []
    for queue in figures.shown:
        count, slots = facts.queue_workers.get(queue, 0), facts.queue_slots.get(queue, 0)
        concurrency = max(1, slots // count) if count and slots else CONCURRENCY
        samples.append(((queue,), figures.demand.get(queue, Demand()).workers(concurrency=concurrency)))
    yield values(names.WORKERS_WANTED, samples)
