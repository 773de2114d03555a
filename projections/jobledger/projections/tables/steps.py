"""The tables of the steps of runs and of the signals sent to them.

A step's state comes from the fold. Its beginning, end and attempt come from its events, which are noted here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import Carried, Failed, Held, Queued
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.events import Joined, StepCompleted, StepFailed, StepStarted
from jobledger.ledger.model.runs.steps import NO_STEPS, Step, StepEvent
from jobledger.ledger.model.times import time_text
from jobledger.projections.table import Index, Row, Table, integer, marks, real, text, timestamp
from jobledger.projections.tables.run_tables import NotedTables, made_table

_Key = tuple[str, str]  # (job id, queue), as in the primary key of jobs

#: Kinds of steps that no process executes: their events carry no duration.
_WAITING: Final = frozenset({"sleep", "wait", "call", "map", "graph"})

STEPS: Final = Table(
    name="steps",
    row="step of a run: what it is, how it ended, how far its children are",
    columns={
        "queue": text("the run's queue"),
        "job_id": text("the run's id"),
        "key": text("the step's key, unique within its run"),
        "number": integer("from 1, in the order in which the steps were recorded first"),
        "kind": text(
            "`step`, `once`, `sleep`, `wait`, `call`, `map`, `graph`, `value`, `patch`, `table` or `undo`"
        ),
        "target": text("what it is about: a function, a task, a signal, a table"),
        "status": text("`started`, `retrying`, `completed` or `failed`"),
        "tries": integer("how often it was executed, as far as that is recorded"),
        "attempt": integer("the run's attempt that recorded its newest event; NULL where that is archived"),
        "started_at": timestamp(
            "when it began: its first event, less the duration that this tells; NULL where that is archived"
        ),
        "finished_at": timestamp("when its end was recorded; NULL before, and where that is archived"),
        "duration_ms": real(
            "milliseconds of its last execution, 0 where none was needed; NULL before its end"
        ),
        "error_type": text("the class name of the newest exception; NULL without any"),
        "error": text("its message; NULL without any"),
        "result_bytes": integer("size of its result as JSON; NULL without any"),
        "until": timestamp("when its wait, or its pause before the next try, is over; NULL without one"),
        "items": integer("how many children it asks for; NULL: none, or not known yet"),
        "items_completed": integer("children that were counted as completed; NULL: it asks for none"),
        "items_failed": integer("children that were counted as ended otherwise; NULL: it asks for none"),
        "items_open": integer(
            "children that may exist and were not counted as ended; NULL: it asks for none"
        ),
        "copied_from": integer(
            "the stream sequence, in the run it was copied from, of the event it repeats; NULL: it is its own"
        ),
        "rows": integer("rows of the [table](tables.md) that it made; NULL: it made none"),
        "sequence": integer("the stream sequence of its newest event, joins of children left out"),
    },
    key=("job_id", "queue", "key"),
    indexes=(Index(("target", "status")),),
    sequence="sequence",
)
SIGNALS: Final = Table(
    name="signals",
    row="message to a run, and the step that took it",
    columns={
        "queue": text("the run's queue"),
        "job_id": text("the run's id"),
        "name": text("what the message is about"),
        "id": text("its sender's id for it, or empty"),
        "sequence": integer("the stream sequence of the event that told it"),
        "by": text("who sent it, as the sender named himself; NULL where that is archived"),
        "at": timestamp("when, by the server's time; NULL where that is archived"),
        "taken_by": text("the key of the step that took it; NULL: none did yet"),
        "refused": text("why the wait for it could not read its value; NULL: it was not refused"),
    },
    key=("job_id", "queue", "sequence"),
    sequence="sequence",
)

#: Columns that the fold does not keep: the value in the file stays until an event replaces it.
_SAID: Final = {
    "result_bytes": "coalesce(excluded.result_bytes, result_bytes)",
    "rows": "coalesce(excluded.rows, rows)",
    "attempt": "coalesce(excluded.attempt, attempt)",
    "started_at": "coalesce(started_at, excluded.started_at)",
    "finished_at": "CASE WHEN excluded.status IN ('completed', 'failed') "
    "THEN coalesce(excluded.finished_at, finished_at) END",
}
_PUT_STEP: Final = (
    f"INSERT INTO steps ({', '.join(STEPS.columns)}) VALUES ({marks(STEPS.columns)}) "  # noqa: S608 - names of columns
    f"ON CONFLICT ({', '.join(STEPS.key)}) DO UPDATE SET "
    + ", ".join(
        f"{name} = {_SAID.get(name, f'excluded.{name}')}" for name in STEPS.columns if name not in STEPS.key
    )
)
_PUT_SIGNAL: Final = (
    f"INSERT INTO signals ({', '.join(SIGNALS.columns)}) VALUES ({marks(SIGNALS.columns)}) "  # noqa: S608
    f"ON CONFLICT ({', '.join(SIGNALS.key)}) DO UPDATE SET taken_by = excluded.taken_by, refused = excluded.refused"
)
_DELETE: Final = tuple(
    f"DELETE FROM {name} WHERE job_id = ? AND queue = ?"  # noqa: S608 - names of tables
    for name in ("steps", "signals", "tables")
)

Select = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run, as a row of the table. Times are ISO-8601 text in UTC."""

    queue: str
    job_id: str
    key: str
    number: int
    kind: str
    target: str
    status: str
    tries: int
    attempt: int | None
    started_at: str | None
    finished_at: str | None
    duration_ms: float | None  #: duration of its last execution; for a wait or children, of the whole step
    error_type: str | None
    error: str | None
    result_bytes: int | None
    until: str | None
    items: int | None
    items_completed: int | None
    items_failed: int | None
    items_open: int | None
    copied_from: int | None
    rows: int | None
    sequence: int


class SignalRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message to a run, as a row of the table."""

    queue: str
    job_id: str
    name: str
    id: str
    sequence: int
    by: str | None
    at: str | None
    taken_by: str | None
    refused: str | None  #: why its value was refused by the wait for it; None: it was not refused


class _StepNotes:
    """Facts from the events of one step, beside its state."""

    __slots__ = ("attempt", "finished_at", "started_at")

    def __init__(self) -> None:
        self.attempt: int | None = None
        self.started_at: str | None = None
        self.finished_at: str | None = None

    def take(self, event: StepEvent, *, ends: bool) -> None:
        self.attempt = event.attempt
        self.finished_at = time_text(event.at) if ends else None
        if self.started_at is None:
            self.started_at = time_text(_begun(event))


class NotedSteps:
    """The steps and signals that the events of one transaction change."""

    def __init__(self) -> None:
        self._steps: dict[_Key, dict[str, _StepNotes]] = {}
        self._signals: dict[_Key, dict[int, tuple[str | None, str | None]]] = {}
        self._tables = NotedTables()

    def add(self, stored: StoredEvent, before: Job | None, after: Job) -> None:
        """Note the facts in an event of a run; `before` is the job before it, None if the run begins with it."""
        if before is None or after.steps is not before.steps:
            self._note_steps(stored, before, after)
        if before is None or after.signals is not before.signals:
            self._note_signals(stored, before, after)

    def _note_steps(self, stored: StoredEvent, before: Job | None, after: Job) -> None:
        event = stored.event
        self._tables.add(stored, after)
        noted = self._steps.setdefault((after.id, after.queue), {})
        match event:
            case StepStarted() | StepCompleted() | StepFailed():
                ends = after.steps[event.step].has_ended
                noted.setdefault(event.step, _StepNotes()).take(event, ends=ends)
            case Joined(step=joined_step):
                noted.setdefault(joined_step, _StepNotes())
            case Queued(joined=joined) | Held(joined=joined) if joined is not None:
                noted.setdefault(joined.step, _StepNotes())
            case Failed() | Carried():
                known = NO_STEPS if before is None else before.steps
                for key, step in after.steps.items():
                    if known.get(key) is not step:
                        each = noted.setdefault(key, _StepNotes())
                        each.finished_at = each.finished_at if step.has_ended else None
            case _:
                pass

    def _note_signals(self, stored: StoredEvent, before: Job | None, after: Job) -> None:
        noted = self._signals.setdefault((after.id, after.queue), {})
        known = () if before is None else before.signals
        for place, signal in enumerate(after.signals):
            if place < len(known) and known[place] is signal:
                continue
            if signal.sequence == stored.stream_sequence:
                noted[signal.sequence] = (stored.event.by, time_text(stored.stored_at))
            else:
                noted.setdefault(signal.sequence, (None, None))

    def forget(self, key: _Key) -> None:
        """Drop what was noted of a job that was archived, since another one has its id."""
        self._steps.pop(key, None)
        self._signals.pop(key, None)
        self._tables.forget(key)

    def step_rows(self, job: Job) -> Iterator[Row]:
        """Yield a row for each step of a run that changed."""
        for key, noted in self._steps.get((job.id, job.queue), {}).items():
            step = job.steps.get(key)
            if step is not None:  # a join may name a step that the run does not have
                yield _step_row(job, step, noted)

    def signal_rows(self, job: Job) -> Iterator[Row]:
        """Yield a row for each signal of a run that was sent, taken or refused."""
        noted = self._signals.get((job.id, job.queue), {})
        for signal in job.signals if noted else ():
            if signal.sequence in noted:
                said = noted[signal.sequence]
                became = signal.taken_by or None, signal.refused or None
                yield job.queue, job.id, signal.name, signal.id, signal.sequence, *said, *became

    def write(self, connection: sqlite3.Connection, job_of: Callable[[_Key], Job]) -> None:
        """Write the rows; `job_of` returns a job as it is after the transaction, which the caller owns."""
        for key in self._steps:
            connection.executemany(_PUT_STEP, self.step_rows(job_of(key)))
        for key in self._signals:
            connection.executemany(_PUT_SIGNAL, self.signal_rows(job_of(key)))
        self._tables.write(connection)


def remove_steps(connection: sqlite3.Connection, key: _Key) -> None:
    """Remove all rows of a run."""
    for statement in _DELETE:
        connection.execute(statement, key)


def step_of(row: Sequence[Any]) -> StepRow:
    """Return a row of the table as a Struct."""
    found = StepRow(**dict(zip(STEPS.columns, row, strict=True)))
    begun, ended = found.started_at, found.finished_at
    if found.kind not in _WAITING or found.copied_from is not None or begun is None or ended is None:
        return found
    took = datetime.fromisoformat(ended) - datetime.fromisoformat(begun)
    return msgspec.structs.replace(found, duration_ms=max(0.0, took / timedelta(milliseconds=1)))


def signal_of(row: Sequence[Any]) -> SignalRow:
    """Return a row of the table as a Struct."""
    return SignalRow(**dict(zip(SIGNALS.columns, row, strict=True)))


def read_steps(select: Select, queue: str, job_id: str) -> list[StepRow]:
    """Return the steps of a run in the order in which they were recorded first; `select` runs a statement on the file."""
    sql = f"SELECT {', '.join(STEPS.columns)} FROM steps WHERE job_id = ? AND queue = ? ORDER BY number"  # noqa: S608
    return [step_of(row) for row in select(sql, (job_id, queue))]


def lean_steps(steps: Mapping[str, Step]) -> Mapping[str, Step]:
    """Return steps without inputs and results, which the fold only passes on, so that a kept run stays small."""
    if not any(_has_values(step) for step in steps.values()):
        return steps
    return {
        key: msgspec.structs.replace(step, result=NO_VALUE, items=NO_VALUE) if _has_values(step) else step
        for key, step in steps.items()
    }


def _has_values(step: Step) -> bool:
    return step.result is not NO_VALUE or step.items is not NO_VALUE


def _begun(event: StepEvent) -> datetime:
    """Return when a step began: if only its end was recorded, its duration before that end."""
    if not isinstance(event, StepCompleted):
        return event.at
    try:
        return event.at - timedelta(milliseconds=max(0.0, event.duration_ms))
    except OverflowError:  # no real duration is that long
        return event.at


def _step_row(job: Job, step: Step, noted: _StepNotes) -> Row:
    error, until = step.error, step.retry_at if step.state == "retrying" else step.until
    table = made_table(step)
    return (
        job.queue,
        job.id,
        step.key,
        step.number,
        step.kind,
        step.target,
        step.state,
        step.tries,
        noted.attempt,
        noted.started_at,
        noted.finished_at,
        step.duration_ms if step.state == "completed" else None,
        None if error is None else error.type,
        None if error is None else error.message,
        _result_bytes(step),
        None if until is None else time_text(until),
        step.count,
        *_items(step),
        None if step.copied is None else step.copied.sequence,
        None if table is None else table.rows,
        step.sequence,
    )


def _items(step: Step) -> tuple[int | None, int | None, int | None]:
    if step.order is None:
        return None, None, None
    ended, failed = step.ended, step.failed
    return (ended & ~failed).bit_count(), failed.bit_count(), step.open.bit_count()


def _result_bytes(step: Step) -> int | None:
    if step.result_ref is not None:
        return step.result_ref.size_bytes
    return None if step.result is NO_VALUE else len(bytes(step.result))
