"""Timers: a message in the TIMERS stream for each moment at which a waiting job goes on.

A projection: the ledger's events name the moments, and what is lost here is set again from them. A timer fires a
little early, because the server fires at most four times a second; who hears it waits for the rest. Nothing here
decides anything about a job. Source: ADR 009.
"""

from __future__ import annotations

import asyncio
import functools
import re
import weakref
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from jobledger.ledger.config import LedgerConfig
from jobledger.ledger.model.chain import JobView, load
from jobledger.ledger.model.errors import (
    LedgerError,
    LedgerFullError,
    MalformedEventError,
    ServerUnreachableError,
)
from jobledger.ledger.model.events import Carried, Cause, Failed, JobEvent
from jobledger.ledger.model.job import WAITING_STATES, Job, JobState, evolve
from jobledger.ledger.model.lifecycle import due_at
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.subjects import TIMERS_CONSUMER_PREFIX, JobRef, Names
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox, ReplyTimeoutError, settle
from jobledger.ledger.nats.publisher import AppendRefusedError, Publisher
from jobledger.ledger.nats.streams import api, ensure_streams, timers_specification
from jobledger.ledger.nats.writer import Writer

#: The consumer on the TIMERS stream, shared by all workers of an environment.
DUE_CONSUMER: Final = "due"
#: The server fires 250 ms after it fired last, at the soonest; a timer is set so much before its moment.
LEAD_S: Final = 0.5
#: No timer is set further ahead: the server's schedules end in the year 2262. One that fires early is set again.
_AHEAD_MAX: Final = timedelta(days=3650)
_NO_ROOM: Final = frozenset({10023, 10028, 10047, 10077})
_NAMES_PAGES_MAX: Final = 100
_SEEN_MAX: Final = 10_000


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """One job's wait and when it is over: the body of a message in TIMERS."""

    queue: str
    job_id: str
    asked_by: int  #: stream sequence of the event that began the wait, `Job.wait_sequence` while it lasts
    cause: Cause  #: of the dispatch to come
    due_at: datetime

    @property
    def ref(self) -> JobRef:
        """The job's chain."""
        return JobRef(queue=self.queue, job_id=self.job_id)


_decoder: msgspec.json.Decoder[Timer] = msgspec.json.Decoder(Timer)


def timer_of(event: JobEvent, stream_sequence: int) -> Timer | None:
    """Return the timer that `event` asks for; None when the job waits for no moment, or goes on at once."""
    moment = due_at(event)
    if moment is None:
        return None
    if isinstance(event, Carried):
        # The wait began with an event that is in an archive; it is still called by that one's sequence.
        job = evolve(None, event, stream_sequence)
        return wait_timer(job) if job.state in WAITING_STATES else None
    is_retry = isinstance(event, Failed)
    if is_retry and moment <= event.at:
        return None  # at the moment of the failure itself the batch goes on with `queued`: nobody waits
    cause: Cause = "retried" if is_retry else "due"
    return Timer(queue=event.queue, job_id=event.job, asked_by=stream_sequence, cause=cause, due_at=moment)


def wait_timer(job: Job) -> Timer:
    """Return the timer of a job that waits for a moment."""
    assert job.due_at is not None, "it waits for a moment"
    failed = bool(job.attempts) and job.attempts[-1].state == "failed"
    cause: Cause = "retried" if job.state is JobState.RETRY_WAIT and failed else "due"
    return Timer(queue=job.queue, job_id=job.id, asked_by=job.wait_sequence, cause=cause, due_at=job.due_at)


def read_timer(data: bytes) -> Timer:
    """Return the timer in a fired message.

    Raises: MalformedEventError.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise MalformedEventError(f"a message in the timers' stream is no timer: {error}") from error


class KnownWaits:
    """Which waits of a job were seen to be over: those stay over, so its chain need not be read for each of them.

    When all timers are set again, a job that was retried a thousand times has a thousand, of which one is not over.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seen: dict[JobRef, tuple[int, int]] = {}  # how far its chain was read, and the wait found there
        # One read of a job at a time: the thousand come together. A lock lives as long as somebody is in there.
        self._locks: weakref.WeakValueDictionary[JobRef, asyncio.Lock] = weakref.WeakValueDictionary()

    async def chain(self, timer: Timer) -> JobView | None:
        """Return the chain of the timer's job as it is stored; None when this wait is over for sure.

        Raises: UnreachableError, CorruptLedgerError.
        """
        lock = self._locks.get(timer.ref)
        if lock is None:
            lock = self._locks[timer.ref] = asyncio.Lock()
        async with lock:
            read_to, wait = self._seen.get(timer.ref, (0, 0))
            if timer.asked_by <= read_to and timer.asked_by != wait:
                return None
            chain = await load(self._log, timer.ref)
            if chain.job is not None:
                self._note(timer.ref, chain.last_sequence, chain.job.wait_sequence)
            return chain

    def _note(self, ref: JobRef, last_sequence: int, wait_sequence: int) -> None:
        self._seen.pop(ref, None)  # the newest stand last
        self._seen[ref] = (last_sequence, wait_sequence)
        if len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]


def schedule_headers(names: Names, timer: Timer, now: datetime) -> str:
    """Return the header lines of the message that makes the server fire `timer`."""
    at = min(max(timer.due_at, now), now + _AHEAD_MAX).astimezone(UTC) - timedelta(seconds=LEAD_S)
    moment = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    target = names.timer_due(timer.ref, timer.asked_by)
    return f"Nats-Schedule: @at {moment}\r\nNats-Schedule-Target: {target}\r\n"


class Timers:
    """The TIMERS stream of one environment."""

    def __init__(self, connection: Connection, inbox: Inbox, names: Names, config: LedgerConfig) -> None:
        self._connection = connection
        self._inbox = inbox
        self._names = names
        self._specification = timers_specification(names, config.replicas)
        # Where each write is fsynced a crowd's timers are stored in groups, as the events that ask for them.
        self._writer = Writer(Publisher(connection, inbox), commit=config.commit)

    async def ensure(self) -> str:
        """Make the stream if it is gone; return its id, which another stream of that name does not have.

        Ids sort by the time their stream was made.

        Raises: StreamMismatchError, JetStreamDisabledError, ServerUnreachableError.
        """
        call = f"STREAM.INFO.{self._names.timers_stream}"
        try:
            info = await api(self._inbox, call, {})
            if "error" in info:
                await ensure_streams(self._inbox, [self._specification])
                info = await api(self._inbox, call, {})
        except ReplyTimeoutError as error:
            raise ServerUnreachableError("the server gave no answer about the timers' stream") from error
        if "error" in info:
            message = f"the timers' stream cannot be had: {info['error'].get('description', '?')}"
            raise ServerUnreachableError(message)
        return _id_of(str(info["created"]))

    async def set(self, timer: Timer, now: datetime) -> None:
        """Store the timer; when this returns, it will fire. Setting the same wait's timer again replaces it.

        Raises: ServerUnreachableError when there is no answer or no stream, LedgerFullError, LedgerError for another
            refusal.
        """
        subject = self._names.timer_at(timer.ref, timer.asked_by)
        headers = schedule_headers(self._names, timer, now)
        answer: asyncio.Future[int] = self._connection.loop.create_future()
        entry = Entry(subject, msgspec.json.encode(timer), subject, None, headers)
        self._writer.append((entry,), functools.partial(settle, answer))
        try:
            await answer
        except (ConnectionLostError, ReplyTimeoutError) as error:
            message = f"the timer of job {timer.job_id} could not be set: the timers' stream gives no answer"
            raise ServerUnreachableError(message) from error
        except AppendRefusedError as error:
            if error.code in _NO_ROOM:
                message = (
                    f"the server has no room for timers ({error}): raise max_file_store in its configuration"
                )
                raise LedgerFullError(message) from error
            message = f"the server refused the timer of job {timer.job_id}: {error}"
            raise LedgerError(message) from error

    async def remove_older_consumers(self, timers_id: str) -> int:
        """Delete the consumers on the ledger that set timers in streams made before this one; return how many.

        Raises: JetStreamDisabledError, ServerUnreachableError.
        """
        stream = self._names.ledger_stream
        old = [name for name in await self._consumers() if name < self._names.timers_consumer(timers_id)]
        for name in old:
            await api(self._inbox, f"CONSUMER.DELETE.{stream}.{name}", {})
        return len(old)

    async def _consumers(self) -> list[str]:
        """Return the names of the consumers on the ledger that set timers."""
        found: list[str] = []
        offset = 0
        for _ in range(_NAMES_PAGES_MAX):
            call = f"CONSUMER.NAMES.{self._names.ledger_stream}"
            answer: dict[str, Any] = await api(self._inbox, call, {"offset": offset})
            page: list[str] = answer.get("consumers") or []
            found += [name for name in page if name.startswith(TIMERS_CONSUMER_PREFIX)]
            offset += len(page)
            if not page or offset >= int(answer.get("total", 0)):
                break
        return found


def _id_of(created: str) -> str:
    """Return the digits of a stream's creation time, always 23 of them, so that ids sort by time."""
    whole, _, fraction = created.rstrip("Z").partition(".")
    return re.sub(r"\D", "", whole) + f"{fraction:0<9}"[:9]
