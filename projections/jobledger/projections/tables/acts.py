"""The table of what people did to jobs: cancel, retry, reschedule, requeue, discard, each with who, when and why.

An act carries the name its caller gave (`by`); the ledger records it and cannot prove it. Which events are acts is told
from the event and from the job as it was before it.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import Final, Literal

import msgspec

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import (
    Cancelled,
    CancelRequested,
    Carried,
    Discarded,
    Held,
    JobEvent,
    Queued,
    Scheduled,
)
from jobledger.ledger.model.job import WAITING_STATES, Job, JobState
from jobledger.ledger.model.times import time_text
from jobledger.projections.filters import Term, joined, visible
from jobledger.projections.table import Index, Row, Table, integer, text, timestamp

ActName = Literal["cancel", "retry", "reschedule", "requeue", "discard"]

ACTS: Final = Table(
    name="acts",
    columns={
        "stream_sequence": integer("of the event"),
        "at": timestamp("the server's time of the event"),
        "by": text("who, as the caller named himself"),
        "act": text("`cancel`, `retry`, `reschedule`, `requeue` or `discard`"),
        "queue": text("the job's queue"),
        "job": text("the job's id"),
        "task": text("the job's task"),
        "reason": text("why, if somebody said so"),
        "new_input": integer("1: the job was given another input"),
        "unsure": integer(
            "1: a cancel of a job whose beginning was archived, until the ledger tells more of it"
        ),
    },
    key=("stream_sequence",),
    indexes=(Index(("by",)), Index(("job", "queue"))),
    sequence="stream_sequence",
)
_PUT: Final = ACTS.putting()
_WAS_AN_ACT: Final = "UPDATE acts SET unsure = 0 WHERE job = ? AND queue = ? AND unsure = 1"
_WAS_NONE: Final = "DELETE FROM acts WHERE job = ? AND queue = ? AND unsure = 1"

#: Types of event that can be an act, or tell of one.
ACT_CLASSES: Final = frozenset[type[JobEvent]](
    {Scheduled, Queued, Held, CancelRequested, Cancelled, Discarded, Carried}
)


class ActRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that somebody did to one job."""

    stream_sequence: int  #: of the event that records it
    at: str  #: the server's clock, ISO-8601 text in UTC
    by: str  #: an operator's name, or the identity of the program that acted without naming one
    act: ActName  #: `retry` ends a wait early, `reschedule` moves its end, `requeue` gives a dead letter new attempts
    queue: str
    job: str
    task: str
    reason: str
    new_input: bool  #: of a requeue that replaced the job's input


class ActFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which acts; None is no condition."""

    by: str | None = None  #: one actor
    act: ActName | None = None
    queue: str | None = None
    job: str | None = None  #: one job's id
    since: datetime | None = None  #: at this time or later, by the server's clock
    from_sequence: int = 1  #: at this stream sequence or later
    #: Only of queues and tasks with such names; see `JobFilter`.
    visible_queues: tuple[str, ...] = ()
    visible_tasks: tuple[str, ...] = ()

    def where(self) -> tuple[str, list[object]]:
        """Return the condition in SQL, and its values."""
        since = None if self.since is None else time_text(self.since)
        given = {
            "by = ?": self.by,
            "act = ?": self.act,
            "queue = ?": self.queue,
            "job = ?": self.job,
            "at >= ?": since,
        }
        terms = [Term("", "unsure = 0"), Term("", "stream_sequence >= ?", (self.from_sequence,))]
        terms += [Term("", sql, (value,)) for sql, value in given.items() if value is not None]
        return joined([*terms, *visible(self.visible_queues, self.visible_tasks)])


class NotedActs:
    """The acts among the events of one transaction."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._told: list[
            tuple[str, tuple[str, str]]
        ] = []  # what became of acts that were unsure, as statements

    def add(self, stored: StoredEvent, before: Job | None, after: Job) -> None:
        """Note what an event of one of `ACT_CLASSES` tells; `before` is the job before it, None where that is unknown."""
        event = stored.event
        match event:
            case Queued(cause="requeued") | Held(cause="requeued"):
                edited = event.input is not NO_VALUE or event.input_ref is not None
                self._note(stored, "requeue", event.reason, new_input=edited)
            case Queued(reason=reason) | Held(reason=reason):
                if reason:  # a timer or a reactor that dispatches names none
                    self._note(stored, "retry", reason)
            case Scheduled(reason=reason):
                if reason:  # neither a first event nor a further call of a debounced job has one
                    self._note(stored, "reschedule", reason)
            case CancelRequested(reason=reason):
                self._note(stored, "cancel", reason)
            case Discarded(reason=reason):
                self._note(stored, "discard", reason)
            case Cancelled(reason=reason):
                if before is None or _waited(before):
                    self._note(stored, "cancel", reason, unsure=before is None)
            case Carried() if before is None and after.state is JobState.CANCELLED:
                self._told.append(
                    (_WAS_AN_ACT if _ended_waiting(after) else _WAS_NONE, (event.job, event.queue))
                )
            case _:
                pass

    def _note(
        self, stored: StoredEvent, act: ActName, reason: str, *, new_input: bool = False, unsure: bool = False
    ) -> None:
        event = stored.event
        at = time_text(stored.stored_at)
        told = (event.by, act, event.queue, event.job, event.task, reason, int(new_input), int(unsure))
        self._rows.append((stored.stream_sequence, at, *told))

    def write(self, connection: sqlite3.Connection) -> None:
        """Write the rows; the caller owns the transaction."""
        connection.executemany(_PUT, self._rows)
        for statement, key in self._told:
            connection.execute(statement, key)


def _waited(job: Job) -> bool:
    """Whether a `cancelled` of this job ends a wait, which only a person does.

    A running one is ended by whoever runs it or takes it over: because its task wishes so, or obeying a
    `cancel_requested`, which is an act of its own.
    """
    return job.state in WAITING_STATES and not job.cancel_requested


def _ended_waiting(job: Job) -> bool:
    """The same of a cancelled job, as it was carried over."""
    return not job.cancel_requested and (not job.attempts or job.attempts[-1].state != "cancelled")
