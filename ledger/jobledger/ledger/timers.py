"""Timers: a message in the TIMERS stream for each moment at which a waiting job, or a schedule, goes on.

A projection: the ledger's events name the moments, and lost timers are set again from them. A timer fires a little
early, because the server fires at most four times a second; its reader waits for the rest. No decision on a job or a
schedule is made here. Source: ADR 009, ADR 021.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.model.chain import JobView, load
from jobledger.ledger.model.codec import Message, StoredEvent, Unreadable
from jobledger.ledger.model.errors import (
    LedgerError,
    LedgerFullError,
    MalformedEventError,
    ServerUnreachableError,
)
from jobledger.ledger.model.events import Carried, Cause, Failed, JobEvent, Queued, Scheduled
from jobledger.ledger.model.job import FINAL_STATES, PENDING_STATES, Job, JobState, evolve, retried
from jobledger.ledger.model.lifecycle import due_at
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.schedules.events import Backfilled, ScheduleEvent, Triggered
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.subjects import JobRef, Names, aggregate_of
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.timer_stream import TimerStream
from jobledger.ledger.nats.writer import AppendRefusedError

#: Seconds by which a timer is set before its moment: the server fires at most once in 250 ms.
LEAD_S: Final = 0.5
#: No timer is set further ahead: the server's schedules end in the year 2262. One that fires early is set again.
_AHEAD_MAX: Final = timedelta(days=3650)
_SEEN_MAX: Final = 10_000


class _OfAJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a timer acts on."""

    queue: str
    job_id: str

    @property
    def ref(self) -> JobRef:
        """The job's chain."""
        return JobRef(queue=self.queue, job_id=self.job_id)

    @property
    def chain(self) -> str:
        """The waiting job or schedule, in the form of subjects of timers."""
        return f"job.{self.queue}.{self.job_id}"


class Timer(_OfAJob, frozen=True, kw_only=True):
    """One job's wait, and its end: the body of a message in TIMERS."""

    asked_by: int  #: stream sequence of the event that began the wait, `Job.wait_sequence` while it lasts
    cause: Cause  #: of the dispatch to come
    due_at: datetime

    def __str__(self) -> str:
        """Return its name for a sentence."""
        return f"the timer of job {self.job_id}"


class ScheduleTimer(msgspec.Struct, frozen=True, kw_only=True):
    """The moment for a look at a schedule: the body of a message in TIMERS, as `Timer` is for jobs."""

    schedule: str
    asked_by: int  #: stream sequence of the event that asks for it
    due_at: datetime

    @property
    def chain(self) -> str:
        """The waiting job or schedule, in the form of subjects of timers."""
        return f"schedule.{self.schedule}"

    def __str__(self) -> str:
        """Return its name for a sentence."""
        return f"the timer of schedule {self.schedule}"


class DeadlineTimer(_OfAJob, frozen=True, kw_only=True):
    """The moment at which a run is cancelled unless it has ended: the body of a message in TIMERS, as `Timer`."""

    asked_by: int  #: stream sequence of the event with the deadline
    deadline_at: datetime

    @property
    def due_at(self) -> datetime:
        """The moment at which it acts."""
        return self.deadline_at

    def __str__(self) -> str:
        """Return its name for a sentence."""
        return f"the deadline of run {self.job_id}"


AnyTimer = Timer | ScheduleTimer | DeadlineTimer

#: Stands in the subject of a deadline's timer in place of the wait's sequence: a run has one deadline.
_DEADLINE: Final = "deadline"

_decoder: msgspec.json.Decoder[Timer] = msgspec.json.Decoder(Timer)
_decode_deadline: Final = msgspec.json.Decoder(DeadlineTimer).decode
_decode_several: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_schedule_decoder: msgspec.json.Decoder[ScheduleTimer] = msgspec.json.Decoder(ScheduleTimer)


def timer_of(event: JobEvent, stream_sequence: int) -> Timer | None:
    """Return the timer that `event` asks for; None: the job waits for no moment, or goes on at once."""
    moment = due_at(event)
    if moment is None:
        return None
    if isinstance(event, Carried):
        # The wait began with an event that is now in an archive; the timer still has that event's sequence.
        job = evolve(None, event, stream_sequence)
        return wait_timer(job) if job.state in PENDING_STATES else None
    is_retry = isinstance(event, Failed)
    if is_retry and moment <= event.at:
        return None  # a retry without delay: the same batch appends `queued`, so nothing waits
    cause: Cause = "retried" if is_retry else "due"
    return Timer(queue=event.queue, job_id=event.job, asked_by=stream_sequence, cause=cause, due_at=moment)


def deadline_at(job: Job) -> datetime | None:
    """Return when a run is cancelled if it has not ended before; None: it has ended, or has no deadline."""
    if job.order.deadline_s is None or job.is_final:
        return None
    return job.created_at + timedelta(seconds=job.order.deadline_s)


def deadline_of(event: JobEvent, stream_sequence: int) -> DeadlineTimer | None:
    """Return the timer of a run's deadline, which its first event asks for; None where it asks for none."""
    if isinstance(event, Scheduled):
        begun, deadline_s = event.at, event.deadline_s
    elif isinstance(event, Carried) and event.job_state.state not in FINAL_STATES:
        begun, deadline_s = event.job_state.created_at, event.job_state.order.deadline_s
    else:
        return None
    if deadline_s is None:
        return None
    at = begun + timedelta(seconds=deadline_s)
    return DeadlineTimer(queue=event.queue, job_id=event.job, asked_by=stream_sequence, deadline_at=at)


def timers_in(message: Message) -> tuple[AnyTimer, ...]:
    """Return the timers that a stored message of any aggregate asks for; () without any.

    Raises: UnknownEventError.
    """
    found: tuple[AnyTimer | None, ...] = ()
    if isinstance(message, StoredEvent):
        event, sequence = message.event, message.stream_sequence
        found = (timer_of(event, sequence), deadline_of(event, sequence))
    elif not isinstance(message, Unreadable) and aggregate_of(message.subject) == SCHEDULE.name:
        found = (schedule_timer(SCHEDULE.decode(message), message.stream_sequence),)
    return tuple(each for each in found if each is not None)


def schedule_timer(event: ScheduleEvent, stream_sequence: int) -> ScheduleTimer | None:
    """Return the timer that an event of a schedule asks for: for its next tick, or at once for jobs beside the ticks."""
    moment = event.at if isinstance(event, Triggered | Backfilled) else event.next_at
    if moment is None:
        return None
    return ScheduleTimer(schedule=event.schedule, asked_by=stream_sequence, due_at=moment)


def wait_timer(job: Job) -> Timer:
    """Return the timer of a job that waits for a moment."""
    assert job.due_at is not None, "it waits for a moment"
    failed = bool(job.attempts) and job.attempts[-1].state == "failed"
    cause: Cause = "retried" if job.state is JobState.RETRY_WAIT and failed else "due"
    return Timer(queue=job.queue, job_id=job.id, asked_by=job.wait_sequence, cause=cause, due_at=job.due_at)


def read_timer(data: bytes) -> AnyTimer:
    """Return the timer in a fired message.

    Raises: MalformedEventError.
    """
    with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
        return _decoder.decode(data)  # most are of jobs
    with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
        return _decode_deadline(data)
    try:
        return _schedule_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise MalformedEventError(f"a message in the timers' stream is no timer: {error}") from error


def read_timers(data: bytes) -> list[AnyTimer]:
    """Return the timers in a JSON array. Raises: MalformedEventError."""
    return [read_timer(bytes(each)) for each in _decode_several(data)]


class KnownWaits:
    """Waits that are known to be over: they stay over, so a job's chain need not be read for each of them.

    When all timers are set again, a job that was retried a thousand times has a thousand waits, of which only one is
    not over.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seen: dict[JobRef, tuple[int, int]] = {}  # sequence of the last look, and the wait found there
        # One read of a job at a time, since its thousand timers come together. A lock lives as long as somebody uses
        # it.
        self._locks: weakref.WeakValueDictionary[JobRef, asyncio.Lock] = weakref.WeakValueDictionary()

    async def chain(self, timer: Timer, *, whole: bool = False) -> JobView | None:
        """Return the stored chain of the timer's job; None: this wait is surely over.

        Unless `whole`, it is the chain at the beginning of the wait, if the events of that moment suffice.

        Raises: UnreachableError, CorruptLedgerError.
        """
        lock = self._locks.get(timer.ref)
        if lock is None:
            lock = self._locks[timer.ref] = asyncio.Lock()
        async with lock:
            read_to, wait = self._seen.get(timer.ref, (0, 0))
            if timer.asked_by <= read_to and timer.asked_by != wait:
                return None
            began = None if whole or timer.cause != "retried" else await self._at_failure(timer)
            chain = began or await load(self._log, timer.ref)
            if chain.job is not None:
                self._note(timer.ref, chain.last_sequence, chain.job.wait_sequence)
            return chain

    async def _at_failure(self, timer: Timer) -> JobView | None:
        """Return the chain that ends with the failure: two reads of one event each cost less than one of a chain."""
        stored = await self._log.get(timer.asked_by)
        if not isinstance(stored, StoredEvent) or not isinstance(failed := stored.event, Failed):
            return None
        dispatch = None if failed.given_back is None else await self._log.get(failed.dispatch)
        if not isinstance(dispatch, StoredEvent) or not isinstance(dispatch.event, Queued):
            return None
        job = retried(dispatch.event, failed, stored.stream_sequence)
        return None if job is None else JobView(job, stored.stream_sequence, stored.data)

    def _note(self, ref: JobRef, last_sequence: int, wait_sequence: int) -> None:
        self._seen.pop(ref, None)  # the newest come last
        self._seen[ref] = (last_sequence, wait_sequence)
        if len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]


def _mark(timer: AnyTimer) -> int | str:
    return _DEADLINE if isinstance(timer, DeadlineTimer) else timer.asked_by


def schedule_headers(names: Names, timer: AnyTimer, now: datetime) -> str:
    """Return the header lines of the message that makes the server fire `timer`."""
    at = min(max(timer.due_at, now), now + _AHEAD_MAX).astimezone(UTC) - timedelta(seconds=LEAD_S)
    moment = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    target = names.timer_due(timer.chain, _mark(timer))
    return f"Nats-Schedule: @at {moment}\r\nNats-Schedule-Target: {target}\r\n"


class Timers(TimerStream):
    """The timers of one environment: their stream, and the content of its messages."""

    def __init__(self, connection: Connection, inbox: Inbox, names: Names, config: LedgerConfig) -> None:
        super().__init__(connection, inbox, names, replicas=config.replicas, commit=config.commit)

    async def set(self, timer: AnyTimer, now: datetime) -> None:
        """Store the timer; when this returns, it will fire. Setting the same wait's timer again replaces it.

        Raises: ServerUnreachableError without an answer or a stream, LedgerFullError, LedgerError for another refusal.
        """
        subject = self.names.timer_at(timer.chain, _mark(timer))
        headers = schedule_headers(self.names, timer, now)
        try:
            await self.store(Entry(subject, msgspec.json.encode(timer), subject, None, headers))
        except ServerUnreachableError as error:
            message = f"{timer} could not be set: {error}"
            raise ServerUnreachableError(message) from error
        except AppendRefusedError as error:
            if error.is_full:
                message = (
                    f"the server has no room for timers ({error}): raise max_file_store in its configuration"
                )
                raise LedgerFullError(message) from error
            message = f"the server refused {timer}: {error}"
            raise LedgerError(message) from error
