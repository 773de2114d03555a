"""The metrics of one worker process for Prometheus: only figures that it alone knows, so that nothing is counted twice.

Jobs, attempts and outcomes are in the ledger; `jobledger metrics` counts them, once for the whole fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Final

from prometheus_client.core import Metric

from jobledger.ledger.client import Ledger
from jobledger.ledger.metrics.exposition import Distribution, Measure, histograms, info, value
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats.append_stats import AppendMeter, Histogram
from jobledger.ledger.nats.jetstream import JetStreamLog
from jobledger.workers.services import end
from jobledger.workers.worker import Worker

#: Seconds; a lag of 0.25 s does not endanger a lease of 15 s yet.
LAG_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_BEAT_S: Final = 0.25

_BUILD = Measure(
    "jobledger_worker_build_info", "info", "Version of jobledger and identity of this worker process."
)
_APPEND = Measure(
    "jobledger_worker_append_seconds",
    "histogram",
    "Time from an append's call to its acceptance by the server.",
)
_CONFLICTS = Measure(
    "jobledger_worker_append_conflicts_total", "counter", "Appends refused because their chain had gone on."
)
_APPEND_FAILURES = Measure(
    "jobledger_worker_append_failures_total", "counter", "Appends that ended in any other error."
)
_GROUPS = Measure(
    "jobledger_worker_group_commit_messages", "histogram", "Messages in each group commit that was sent."
)
_GROUPING = Measure(
    "jobledger_worker_grouping", "gauge", "1 while appends go out in groups, 0 while one by one."
)
_RUNNING = Measure("jobledger_worker_running", "gauge", "Attempts that run in this process.")
_CONCURRENCY = Measure(
    "jobledger_worker_concurrency", "gauge", "Attempts that may run in this process at once."
)
_FREE = Measure(
    "jobledger_worker_free_slots",
    "gauge",
    "Attempts that could begin now; for a moment below 0 where one was abandoned.",
)
_ABANDONED = Measure(
    "jobledger_worker_abandoned_slots",
    "gauge",
    "Slots held by tasks that run on although their attempts have ended.",
)
_HELD = Measure(
    "jobledger_worker_held_deliveries", "gauge", "Deliveries on hand that are not settled, running included."
)
_ASKED = Measure("jobledger_worker_asked_deliveries", "gauge", "Messages asked for that have not come yet.")
_DELIVERIES = Measure("jobledger_worker_deliveries_total", "counter", "Messages that JetStream delivered.")
_REDELIVERIES = Measure(
    "jobledger_worker_redeliveries_total",
    "counter",
    "Of them, those that it had delivered before, to anybody.",
)
_FENCED = Measure(
    "jobledger_worker_fenced_total",
    "counter",
    "Outcomes of this process refused because their claim was lost.",
)
_LEASE_VALID = Measure(
    "jobledger_worker_lease_valid", "gauge", "1 while nobody may take over what this process holds."
)
_RENEWALS = Measure(
    "jobledger_worker_lease_renewals_total", "counter", "Renewals of the lease that were accepted."
)
_RENEWAL_FAILURES = Measure(
    "jobledger_worker_lease_failures_total", "counter", "Renewals of the lease without an answer in time."
)
_LOSSES = Measure(
    "jobledger_worker_lease_losses_total", "counter", "Leases that were over before their renewal."
)
_CLOCK_APART = Measure(
    "jobledger_worker_clock_apart_seconds",
    "gauge",
    "How far this machine's clock is ahead of the server's; below 0: behind it.",
)
_LAG = Measure(
    "jobledger_worker_loop_lag_seconds", "histogram", "How late the event loop woke a timer, every 0.25 s."
)
_LAG_NOW = Measure(
    "jobledger_worker_loop_late_seconds",
    "gauge",
    "How late the event loop is at this moment, 0 while it is not.",
)

_FLOW_HOSTS = Measure(
    "jobledger_worker_flow_hosting", "gauge", "1 while this process hosts the reactor of limits, else 0."
)
_FLOW_GRANTED = Measure(
    "jobledger_worker_flow_granted_total", "counter", "Jobs that this process gave slots of limits."
)
_FLOW_REFUSED = Measure(
    "jobledger_worker_flow_refused_total", "counter", "Its grants refused because another host was faster."
)
_FLOW_BEHIND = Measure(
    "jobledger_worker_flow_behind_events", "gauge", "Events of limited jobs read and not obeyed yet."
)

#: All metrics of a worker's `/metrics`.
WORKER_METRICS: Final = (
    _BUILD,
    _RUNNING,
    _CONCURRENCY,
    _FREE,
    _ABANDONED,
    _HELD,
    _ASKED,
    _DELIVERIES,
    _REDELIVERIES,
    _FENCED,
    _APPEND,
    _CONFLICTS,
    _APPEND_FAILURES,
    _GROUPS,
    _GROUPING,
    _LEASE_VALID,
    _RENEWALS,
    _RENEWAL_FAILURES,
    _LOSSES,
    _LAG,
    _LAG_NOW,
    _CLOCK_APART,
    _FLOW_HOSTS,
    _FLOW_GRANTED,
    _FLOW_REFUSED,
    _FLOW_BEHIND,
)


class LoopLag:
    """The delay of timers of the event loop."""

    def __init__(self) -> None:
        self._due_at = time.monotonic() + _BEAT_S  # not the loop's own clock, which other threads cannot ask
        self.late_s = Histogram(LAG_BOUNDS_S)

    @property
    def late_now_s(self) -> float:
        """How long the next beat is overdue; from any thread."""
        return max(0.0, time.monotonic() - self._due_at)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._due_at = time.monotonic() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            self.late_s.observe(self.late_now_s)


class WorkerCollector:
    """Collects the metrics of one worker; `collect` may be called from any thread."""

    def __init__(self, worker: Worker, meter: AppendMeter, lag: LoopLag, log: JetStreamLog | None) -> None:
        self._worker = worker
        self._meter = meter
        self._lag = lag
        self._log = log

    def health(self) -> str:
        """Return "" while the worker may take work, else the reason why not."""
        if not self._worker.taking.is_set():
            return "the worker does not take work yet"
        if not self._worker.counts().lease_is_valid:
            return "the worker has no lease: others may take over what it held"
        if self._worker.is_worn_out:
            return "every slot of the worker is held by a task that does not end: restart it"
        return ""

    def collect(self) -> Iterable[Metric]:
        """Return the families as they are now."""
        counts, meter, lag = self._worker.counts(), self._meter, self._lag
        grouping = self._log is not None and self._log.writer.grouping
        yield info(_BUILD, {"version": VERSION, "worker": self._worker.identity})
        for measure, number in (
            (_RUNNING, counts.running),
            (_CONCURRENCY, counts.concurrency),
            (_FREE, counts.free),
            (_ABANDONED, counts.abandoned),
            (_HELD, counts.held),
            (_ASKED, counts.asked),
            (_DELIVERIES, counts.deliveries),
            (_REDELIVERIES, counts.redeliveries),
            (_FENCED, counts.fenced),
            (_CONFLICTS, meter.conflicts),
            (_APPEND_FAILURES, meter.failures),
            (_GROUPING, grouping),
            (_LEASE_VALID, counts.lease_is_valid),
            (_RENEWALS, counts.lease_renewals),
            (_RENEWAL_FAILURES, counts.lease_failures),
            (_LOSSES, counts.lease_losses),
            (_CLOCK_APART, counts.clock_apart_s),
            (_LAG_NOW, lag.late_now_s),
            (_FLOW_HOSTS, counts.flow.hosts),
            (_FLOW_GRANTED, counts.flow.granted),
            (_FLOW_REFUSED, counts.flow.refused),
            (_FLOW_BEHIND, counts.flow.behind),
        ):
            yield value(measure, float(number))
        yield histograms(_APPEND, [((), Distribution.of(meter.latency_s))])
        yield histograms(_GROUPS, [((), Distribution.of(meter.group_messages))])
        yield histograms(_LAG, [((), Distribution.of(lag.late_s))])


@contextlib.asynccontextmanager
async def measured(ledger: Ledger, worker: Worker) -> AsyncGenerator[WorkerCollector, None]:
    """Count what a worker does from here on, and how late its loop is for the length of the block."""
    meter, log = AppendMeter(), ledger.log if isinstance(ledger.log, JetStreamLog) else None
    if log is not None:
        log.count_appends(meter)
    lag = LoopLag()
    beating = asyncio.create_task(lag.run(), name="loop-lag")
    try:
        yield WorkerCollector(worker, meter, lag, log)
    finally:
        await end(beating)
