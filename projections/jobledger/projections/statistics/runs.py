"""Counts of runs: steps by target, joins of children and their delay, diverged runs.

They count from the first event in the rows, like missed ticks of schedules: an archive run does not keep these numbers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from jobledger.ledger.children import child_ref
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import DeadLettered, Held, JoinFact, Queued
from jobledger.ledger.model.job import FINAL_STATES, Job
from jobledger.ledger.model.runs.events import Joined, StepCompleted, StepFailed
from jobledger.ledger.model.runs.orders import bits_of, items_of
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.subjects import JobRef
from jobledger.projections.statistics.tally import (
    SeenJob,
    as_stored,
    declared,
    histogram_columns,
    histogram_values,
    merging,
    microseconds,
)
from jobledger.projections.table import Table, Value, text

STEP_OUTCOMES: Final = ("completed", "failed", "retried")
RUN_COUNTERS: Final = ("joins", "children_completed", "children_failed", "diverged")
_EXECUTED: Final = frozenset({"step", "once", "table", "undo"})
_MILLISECONDS_MAX: Final = 10 * 365 * 86_400 * 1_000


STEP_STATISTICS: Final = (*STEP_OUTCOMES, *histogram_columns("step"))
RUN_STATISTICS: Final = (*RUN_COUNTERS, *histogram_columns("lag"))
_COUNTED: Final = "as in [Statistics of runs](#statistics-of-runs)"
STEP_TOTALS: Final = Table(
    name="step_totals",
    row="queue and target of steps of [runs](#statistics-of-runs): how they ended, and how long they took",
    columns={
        "queue": text("the run's queue"),
        "target": text("what the steps are about: a function, a task, a signal, a table"),
        **declared(STEP_STATISTICS, _COUNTED),
    },
    key=("queue", "target"),
)
RUN_TOTALS: Final = Table(
    name="run_totals",
    row="queue of [runs](#statistics-of-runs): joins, children that were counted, runs that diverged",
    columns={"queue": text("the runs' queue"), **declared(RUN_STATISTICS, _COUNTED)},
    key=("queue",),
)
_ADD_STEPS: Final = STEP_TOTALS.adding(STEP_STATISTICS, *merging(STEP_STATISTICS))
_ADD_RUNS: Final = RUN_TOTALS.adding(RUN_STATISTICS, *merging(RUN_STATISTICS))

#: Returns a job of (id, queue) as it is at the event; None if the rows do not have it.
SeenOf = Callable[[tuple[str, str]], SeenJob | None]


class _Cell:
    __slots__ = ("counts", "durations_us")

    def __init__(self, counters: int) -> None:
        self.counts = [0] * counters
        self.durations_us: list[int] = []

    def values(self) -> tuple[Value, ...]:
        return as_stored((*self.counts, *histogram_values(self.durations_us)))


class RunTally:
    """The sums of the events of runs in one transaction."""

    def __init__(self, seen_of: SeenOf) -> None:
        self._seen_of = seen_of
        self._steps: dict[tuple[str, str], _Cell] = {}
        self._runs: dict[str, _Cell] = {}

    def add(self, stored: StoredEvent, before: Job | None, after: Job) -> None:
        """Count an event of a run; `before` is the run before it, None if the run begins with it."""
        event = stored.event
        match event:
            case StepCompleted() | StepFailed():
                if event.copied is None and (before is None or after.steps is not before.steps):
                    self._step(event)
            case Joined(copied=None):
                self._join(stored, after, event)
            case Queued(joined=JoinFact() as fact) | Held(joined=JoinFact() as fact):
                self._join(stored, after, fact)
            case DeadLettered(reason="diverged"):
                self._run(event.queue).counts[RUN_COUNTERS.index("diverged")] += 1
            case _:
                pass

    def _step(self, event: StepCompleted | StepFailed) -> None:
        cell = self._steps.setdefault((event.queue, event.target), _Cell(len(STEP_OUTCOMES)))
        if isinstance(event, StepFailed):
            cell.counts[STEP_OUTCOMES.index("failed" if event.retry_at is None else "retried")] += 1
            return
        cell.counts[STEP_OUTCOMES.index("completed")] += 1
        if event.kind in _EXECUTED:
            cell.durations_us.append(round(min(max(event.duration_ms, 0.0), _MILLISECONDS_MAX) * 1_000))

    def _run(self, queue: str) -> _Cell:
        return self._runs.setdefault(queue, _Cell(len(RUN_COUNTERS)))

    def _join(self, stored: StoredEvent, run: Job, fact: Joined | JoinFact) -> None:
        completed, failed = bits_of(fact.completed), bits_of(fact.failed)
        cell = self._run(run.queue)
        counted = {
            "joins": 1,
            "children_completed": completed.bit_count(),
            "children_failed": failed.bit_count(),
        }
        for name, count in counted.items():
            cell.counts[RUN_COUNTERS.index(name)] += count
        step = run.steps.get(fact.step)
        if step is not None and step.order is not None and not step.order.is_open:
            now_us = microseconds(stored.stored_at)
            for item in items_of((completed | failed) & step.opened):
                self._lag(cell, run, step, item, now_us)

    def _lag(self, cell: _Cell, run: Job, step: Step, item: int, now_us: int) -> None:
        ref = child_ref(JobRef(queue=run.queue, job_id=run.id), step, item)
        child = self._seen_of((ref.job_id, ref.queue))
        if child is not None and child.job.state in FINAL_STATES:
            cell.durations_us.append(now_us - child.since_us)

    def write(self, connection: sqlite3.Connection) -> None:
        """Add to the rows; the caller owns the transaction."""
        connection.executemany(_ADD_STEPS, ((*key, *cell.values()) for key, cell in self._steps.items()))
        connection.executemany(_ADD_RUNS, ((queue, *cell.values()) for queue, cell in self._runs.items()))
