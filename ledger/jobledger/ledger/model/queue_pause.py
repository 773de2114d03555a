"""The events of a queue, the state they add up to, and what may follow: `QueueEvent`, `evolve`, `decide`. Pure.

A queue without events is not paused. Each event holds the whole state, so the newest one *is* the state. The server's
consumers follow it; those that differ are corrected. As with jobs, released fields never change type, meaning or name.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, ArchiveBound, Broken
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope, Moment
from jobledger.ledger.model.errors import InvalidInputError, RefusedError
from jobledger.ledger.model.inputs import keep_utc
from jobledger.ledger.model.times import shown_time


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    """The fields of every fact about a queue."""

    queue: str  #: which queue
    reason: str = ""  #: the operator's reason


class QueuePaused(_Fact, frozen=True, kw_only=True, tag="paused", gc=False):
    """No worker is given a job of the queue any more. Jobs still come in, and timers go on."""

    until: Moment | None = None  #: when the pause ends by itself; none: somebody must resume the queue
    interrupt: bool = False  #: whether running attempts are given back; false: they go on to their end


class QueueResumed(_Fact, frozen=True, kw_only=True, tag="resumed", gc=False):
    """Workers are given the jobs of the queue again."""


QueueEvent = QueuePaused | QueueResumed


class QueueState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A queue after its newest event; the defaults are those of a queue without events."""

    paused: bool = False  #: by its newest event; `is_paused` returns whether the pause still lasts
    since: datetime | None = None  #: when that event was appended, by its appender's clock
    by: str = ""  #: who appended it
    reason: str = ""  #: that person's reason
    until: datetime | None = None  #: when the pause ends by itself; None: it does not
    interrupt: bool = False  #: whether running attempts are given back
    sequence: int = 0  #: stream sequence of that event; 0: there is none

    def words(self, *, tells_since: bool = True) -> str:
        """Return the pause of a queue in words for a person: `paused by ann since ... until ...: reason`."""
        return pause_words(self.by, self.since if tells_since else None, self.until, self.reason)

    def is_paused(self, now: datetime) -> bool:
        """Whether the queue is paused at a moment at or after its newest event."""
        return self.paused and (self.until is None or now < self.until)


def pause_words(by: str, since: datetime | None, until: datetime | None, reason: str) -> str:
    """Return a pause in words for a person: `paused by ann since ... until ...: reason`."""
    begun = "" if since is None else f" since {shown_time(since)}"
    lasts = "" if until is None else f" until {shown_time(until)}"
    return f"paused by {by}{begun}{lasts}" + (f": {reason}" if reason else "")


def evolve(_before: QueueState | None, event: QueueEvent, stream_sequence: int) -> QueueState:
    """Return the queue after `event`, whatever came before it."""
    match event:
        case QueuePaused(until=until, interrupt=interrupt):
            return QueueState(
                paused=True,
                since=event.at,
                by=event.by,
                reason=event.reason,
                until=until,
                interrupt=interrupt,
                sequence=stream_sequence,
            )
        case QueueResumed():
            return QueueState(since=event.at, by=event.by, reason=event.reason, sequence=stream_sequence)


class PauseQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Hand out no job of the queue. If it is paused already, this pause takes the place of the earlier one."""

    until: datetime | None = None
    reason: str = ""
    interrupt: bool = False

    def __post_init__(self) -> None:
        """Keep the time in UTC. Raises: InvalidInputError for one without a zone."""
        keep_utc(self, "until")


class ResumeQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Hand out the jobs of the queue again."""

    reason: str = ""


QueueCommand = PauseQueue | ResumeQueue


def decide(queue: str, state: QueueState | None, command: QueueCommand, stamp: Stamp) -> QueueEvent:
    """Return the event that follows from a command.

    Raises: InvalidInputError for a pause that would be over already; RefusedError for resuming a queue that is not
    paused; AccessDeniedError for a principal that is bound to some tasks, since a pause stops the jobs of all tasks.
    """
    if stamp.authority is not None:
        stamp.authority.require("manage", queue)
        stamp.authority.require_all_tasks()
    match command:
        case PauseQueue(until=until, reason=reason, interrupt=interrupt):
            if until is not None and until <= stamp.at:
                raise InvalidInputError(f"until {shown_time(until)} is past: give a later time, or none")
            return QueuePaused(queue=queue, **stamp.fact, reason=reason, until=until, interrupt=interrupt)
        case ResumeQueue(reason=reason):
            if state is None or not state.paused:
                raise RefusedError(f"queue {queue} is not paused: there is nothing to resume")
            return QueueResumed(queue=queue, **stamp.fact, reason=reason)


def _words(event: QueueEvent) -> str:
    said: list[str] = []
    if isinstance(event, QueuePaused):
        said += [] if event.until is None else [f"until {shown_time(event.until)}"]
        said += ["running attempts are given back"] if event.interrupt else []
    return ", ".join([*said, *([event.reason] if event.reason else [])])


def _check(before: QueueState | None, event: QueueEvent, _stream_sequence: int) -> Iterator[Broken]:
    match event:
        case QueuePaused(until=until):
            if until is not None and until <= event.at:
                yield "transition", "`paused` until a time that was past when it was appended"
        case QueueResumed():
            if before is None or not before.paused:
                yield "transition", "`resumed` of a queue that was not paused"


def _keeps(event: QueueEvent, stream_sequence: int) -> ArchiveBound | None:
    """Keep a pause as long as it lasts; without one the whole chain may go."""
    if isinstance(event, QueueResumed):
        return None
    what = f"queue {event.queue}, which is paused since stream sequence {stream_sequence}"
    return ArchiveBound(stream_sequence, what, until=event.until)


QUEUE: Aggregate[QueueEvent, QueueState] = Aggregate(
    "queue", ("queue",), QueueEvent, state=QueueState, evolve=evolve, words=_words, check=_check, keeps=_keeps
)
