"""The table of acts: acts of people on a job, a queue or an unreadable message, with actor, time and reason.

The actor of an act is the name that its caller gave (`by`), which the ledger cannot prove. Whether an event is an act
depends on the event and on the job before it.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import (
    Cancelled,
    CancelRequested,
    Carried,
    Discarded,
    Held,
    JobEvent,
    Noted,
    Paused,
    PauseRequested,
    Queued,
    RerunOf,
    Scheduled,
    Signalled,
)
from jobledger.ledger.model.identity import is_identity
from jobledger.ledger.model.job import OPERATOR, PENDING_STATES, Job, JobState
from jobledger.ledger.model.rights.marks import REASON
from jobledger.ledger.model.runs.orders import WITH_ITS_RUN
from jobledger.ledger.model.times import time_text
from jobledger.projections.filters import Term, joined, visible
from jobledger.projections.table import Index, Row, Table, integer, text, timestamp

ActName = Literal[
    "cancel",
    "retry",
    "reschedule",
    "requeue",
    "discard",
    "pause",
    "resume",
    "signal",
    "rerun",
    "note",
    "acknowledge",
]

ACTS: Final = Table(
    name="acts",
    row="act of a person on a job, a queue or an unreadable message: who, when and why",
    columns={
        "stream_sequence": integer("of the event"),
        "at": timestamp("the server's time of the event"),
        "by": text("who, as the caller named himself"),
        "act": text(
            "`cancel`, `retry`, `reschedule`, `requeue`, `discard`, `pause`, `resume`, `signal`, `rerun`, `note` or "
            "`acknowledge`"
        ),
        "queue": text("the job's queue, or the one that was paused or resumed; empty of `acknowledge`"),
        "job": text("the job's id; empty of a queue and of `acknowledge`"),
        "task": text("the job's task; empty without a job"),
        "reason": text(
            "why, if somebody said so; the signal's name, the note's text, or what a rerun began from and why"
        ),
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

#: Types of events that can be an act, or show one.
ACT_CLASSES: Final = frozenset[type[JobEvent]](
    {
        Scheduled,
        Queued,
        Held,
        Paused,
        PauseRequested,
        Signalled,
        CancelRequested,
        Cancelled,
        Discarded,
        Noted,
        Carried,
    }
)


class ActRow(msgspec.Struct, frozen=True, kw_only=True):
    """One act on a job or a queue, or the acknowledgement of an unreadable message."""

    stream_sequence: int  #: stream sequence of the event that records it
    at: str  #: time by the server's clock, ISO-8601 text in UTC
    by: str  #: an operator's name, or the identity of the program that acted without naming one
    act: ActName  #: `retry` ends a wait early, `reschedule` moves its end, `requeue` gives a dead letter new attempts
    queue: str  #: queue of the job, or the paused or resumed queue; "" for `acknowledge`
    job: str  #: id of the job; "" for acts on a queue, and for `acknowledge`
    task: str
    reason: Annotated[str, REASON]
    new_input: bool  #: True for a requeue that replaced the job's input


class ActGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One act on one job, or on many jobs at once."""

    newest: ActRow
    count: int  #: number of jobs; 1 also for an act on no job
    queue: str  #: "" if the jobs are of several queues
    task: str  #: "" if the jobs are of several tasks
    is_whole: bool = True  #: False: earlier acts were not read, and may belong to it


class ActGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The newest acts; an act on many jobs is one group."""

    items: list[ActGroup]
    acts: int  #: number of acts in the groups


class ActFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of acts; None sets no condition."""

    by: str | None = None  #: name of the actor
    act: ActName | None = None
    queue: str | None = None
    job: str | None = None  #: id of the job
    since: datetime | None = None  #: only acts at this time or later, by the server's clock
    from_sequence: int = 1  #: only acts at this stream sequence or later
    #: Patterns of the names of queues and tasks; see `JobFilter`.
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
        ] = []  # statements for rows stored as unsure, once it is known whether they were acts

    def add(self, stored: StoredEvent, before: Job | None, after: Job) -> None:
        """Note the act in an event of one of `ACT_CLASSES`; `before` is the job before it, None if unknown."""
        event = stored.event
        match event:
            case Queued() | Held():
                self._ready(stored, event, before)
            case Scheduled() | Paused():
                self._wait(stored, event, before)
            case PauseRequested(reason=reason):
                self._pause(stored, reason)
            case Signalled():
                self._signal(stored, event.name)
            case Noted(text=text):
                self._note(stored, "note", text)
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

    def _ready(self, stored: StoredEvent, event: Queued | Held, before: Job | None) -> None:
        if event.cause == "requeued":
            edited = event.input is not NO_VALUE or event.input_ref is not None
            self._note(stored, "requeue", event.reason, new_input=edited)
        elif event.rerun_of is not None and not event.prev:
            self._rerun(stored, event, event.rerun_of)
        elif event.cause == "cancelling":  # cancels a waiting run, which has steps to undo first
            self._note(stored, "cancel", event.reason)
        elif event.signal is not None:
            self._signal(stored, event.signal.name)
        elif event.cause == "resumed" and _is_resumed(before):
            if before is None or not before.pause_reason.startswith(WITH_ITS_RUN):
                self._note(stored, "resume", event.reason)
        elif event.reason:  # only an act of a person has a reason; timers and reactors give none
            self._note(stored, "retry", event.reason)

    def _wait(self, stored: StoredEvent, event: Scheduled | Paused, before: Job | None) -> None:
        if _is_resumed(before):
            self._note(stored, "resume", event.reason)
        elif isinstance(event, Paused):
            if event.event == OPERATOR and before is not None and _waits(before):
                self._pause(stored, event.reason)
        elif event.rerun_of is not None:
            self._rerun(stored, event, event.rerun_of)
        elif event.reason:  # a first event, and a further call of a debounced job, have no reason
            self._note(stored, "reschedule", event.reason)

    def _pause(self, stored: StoredEvent, reason: str) -> None:
        if not reason.startswith(WITH_ITS_RUN):  # else a reactor paused it as the child of a paused run
            self._note(stored, "pause", reason)

    def _signal(self, stored: StoredEvent, name: str) -> None:
        if not is_identity(stored.event.by):  # not for programs that name no person: they may send very many
            self._note(stored, "signal", name)

    def _rerun(self, stored: StoredEvent, event: Queued | Held | Scheduled, source: RerunOf) -> None:
        if event.member is not None:
            return  # a child of a rerun, which its run made
        why = f": {source.reason}" if source.reason else ""
        self._note(stored, "rerun", f"of {source.queue}/{source.job} {source.words}{why}")

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


def put_act(
    connection: sqlite3.Connection, message: Message, act: ActName, *, by: str, reason: str, queue: str = ""
) -> None:
    """Write an act on something other than a job."""
    told = (by, act, queue, "", "", reason, 0, 0)
    connection.execute(_PUT, (message.stream_sequence, time_text(message.stored_at), *told))


def _is_resumed(before: Job | None) -> bool:
    """Return whether a person had paused the job: then its going on is the act of a person who resumed it."""
    return before is not None and before.state is JobState.PAUSED


def _waits(job: Job) -> bool:
    """Return whether a `paused` of this job is an act; for a running job the act was `pause_requested` before."""
    return job.state in PENDING_STATES and not job.pause_requested


def _waited(job: Job) -> bool:
    """Return whether a `cancelled` of this job ends a wait, so that a person cancelled it.

    The `cancelled` of a running job is appended by its worker, or by one that takes the job over: the task asked for
    it, or it answers a `cancel_requested`, which is an act of its own.
    """
    return job.state in PENDING_STATES and not job.cancel_requested


def _ended_waiting(job: Job) -> bool:
    """Return whether a job that was carried over as cancelled was cancelled while it waited; see `_waited`."""
    return not job.cancel_requested and (not job.attempts or job.attempts[-1].state != "cancelled")
