"""The invariants: the state of every job as the ledger grows, and the product's own checker at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.model.simulation.consumers import Consumer
from tests.model.simulation.server import Server

from jobledger.audit.verify import Checker, CheckOptions, Expectation
from jobledger.ledger.model.codec import StoredEvent, decode
from jobledger.ledger.model.events import (
    Completed,
    Failed,
    Interrupted,
    JobEvent,
    Paused,
    Queued,
    Snoozed,
    event_type,
)
from jobledger.ledger.model.job import Job, JobState, evolve

QUEUE = "sim"
_ALIVE = (JobState.QUEUED, JobState.RUNNING)
_OUTCOMES = (Completed, Failed, Interrupted, Snoozed, Paused)


class Witness:
    """Folds the ledger as it grows, and knows at any moment what every job is."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.jobs: dict[str, Job] = {}
        self.stored: list[StoredEvent] = []
        self.trace: list[tuple[Any, ...]] = []
        self.violations: list[str] = []
        self.stray_starts: list[str] = []
        self.acked_alive: list[str] = []
        server.on_stored = self.on_stored
        server.on_acked = self.on_acked

    def on_stored(self, sequence: int) -> None:
        kept = self._server.log._kept[sequence - 1]
        event = decode(kept.data, stream_sequence=sequence)
        stored = StoredEvent(
            subject=kept.subject,
            data=kept.data,
            stream_sequence=sequence,
            stored_at=kept.stored_at,
            event=event,
        )
        self.stored.append(stored)
        self._check_author(event, sequence)
        job = self.jobs[event.job] = evolve(self.jobs.get(event.job), event, sequence)
        detail = f"{event.cause} by {event.by}" if isinstance(event, Queued) else event.by
        line = (self._server.world.now, sequence, event.job, event_type(event), len(job.attempts), detail)
        self.trace.append(line)

    def _check_author(self, event: JobEvent, sequence: int) -> None:
        """Only whoever holds the claim says how the attempt ended."""
        job = self.jobs.get(event.job)
        if not isinstance(event, _OUTCOMES) or job is None or not job.attempts:
            return
        holder = job.attempts[-1].worker
        if event.by != holder:
            self.violations.append(
                f"sequence {sequence}: {event.job}: the outcome of {holder} comes from {event.by}"
            )

    def on_acked(self, consumer: Consumer, sequence: int) -> None:
        """An ack is the end of a work item: it comes after the end of what the item stands for."""
        if not consumer.name.startswith("work_"):
            return
        event = self.stored[sequence - 1].event
        job = self.jobs[event.job]
        if job.dispatch_sequence == sequence and job.state in _ALIVE:
            self.violations.append(
                f"{event.job}: its dispatch at {sequence} is acknowledged while it is {job.state.value}"
            )

    def check_start(self, name: str, attempt: int, worker: str) -> None:
        """Whoever begins to run a job must hold it at this very moment."""
        job = self.jobs[name]
        running = job.running_attempt
        if running is None or (running.number, running.worker) != (attempt, worker):
            holder = "nobody" if running is None else f"{running.worker} (attempt {running.number})"
            self.stray_starts.append(
                f"{name}: attempt {attempt} begins on {worker}, the job is held by {holder}"
            )

    @property
    def all_final(self) -> bool:
        return all(job.is_final for job in self.jobs.values())

    def finish(self, acknowledged: Iterable[str], *, tolerance_s: float) -> list[str]:
        """Return what the product's checker finds in the whole ledger."""
        checker = Checker(self._server.names, options=CheckOptions(timer_tolerance_s=tolerance_s))
        for stored in self.stored:
            checker.feed(stored)
        expected = Expectation(enqueued=[(QUEUE, job) for job in acknowledged], all_final=True)
        report = checker.finish(expected)
        return self.violations + [
            f"sequence {each.stream_sequence}: {each.job}: {each.sentence} [{each.rule}]"
            for each in report.violations
        ]
