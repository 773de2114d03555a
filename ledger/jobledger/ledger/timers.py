"""Timers: a message in the TIMERS stream for each moment at which a waiting job goes on.

A projection: the ledger's events name the moments, and what is lost here is set again from them. A timer fires a
little early, because the server fires at most four times a second; who hears it waits for the rest. Nothing here
decides anything about a job. Source: ADR 009.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from jobledger.ledger.connection import ConnectionLostError
from jobledger.ledger.errors import LedgerError, LedgerFullError, MalformedEventError, ServerUnreachableError
from jobledger.ledger.events import Cause, Failed, JobEvent, Paused, Scheduled, Snoozed
from jobledger.ledger.inbox import Inbox, NoRespondersError, ReplyTimeoutError
from jobledger.ledger.streams import api, ensure_streams, timers_specification
from jobledger.ledger.subjects import TIMERS_CONSUMER_PREFIX, JobRef, Names

#: The consumer on the TIMERS stream, shared by all workers of an environment.
DUE_CONSUMER: Final = "due"
#: The server fires 250 ms after it fired last, at the soonest; a timer is set so much before its moment.
LEAD_S: Final = 0.5
#: No timer is set further ahead: the server's schedules end in the year 2262. One that fires early is set again.
_AHEAD_MAX: Final = timedelta(days=3650)
_PUBLISH_TIMEOUT_S: Final = 5.0
_NO_ROOM: Final = frozenset({10023, 10028, 10047, 10077})
_NAMES_PAGES_MAX: Final = 100


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
    due_at: datetime | None = None
    cause: Cause = "due"
    match event:
        case Scheduled():
            due_at = event.run_at
        case Failed():
            # At the moment of the failure itself the batch goes on with `queued`: nobody waits.
            cause, due_at = "retried", event.retry_at
            due_at = None if due_at is None or due_at <= event.at else due_at
        case Snoozed() | Paused():
            due_at = event.until
        case _:
            pass
    if due_at is None:
        return None
    return Timer(queue=event.queue, job_id=event.job, asked_by=stream_sequence, cause=cause, due_at=due_at)


def read_timer(data: bytes) -> Timer:
    """Return the timer in a fired message.

    Raises: MalformedEventError.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise MalformedEventError(f"a message in the timers' stream is no timer: {error}") from error


def schedule_headers(names: Names, timer: Timer, now: datetime) -> bytes:
    """Return the header block of the message that makes the server fire `timer`."""
    at = min(max(timer.due_at, now), now + _AHEAD_MAX).astimezone(UTC) - timedelta(seconds=LEAD_S)
    moment = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    target = names.timer_due(timer.ref, timer.asked_by)
    return f"NATS/1.0\r\nNats-Schedule: @at {moment}\r\nNats-Schedule-Target: {target}\r\n\r\n".encode()


class Timers:
    """The TIMERS stream of one environment."""

    def __init__(self, inbox: Inbox, names: Names, *, replicas: int) -> None:
        self._inbox = inbox
        self._names = names
        self._specification = timers_specification(names, replicas)

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

        Raises: ServerUnreachableError when there is no answer or no stream, LedgerFullError.
        """
        subject = self._names.timer_at(timer.ref, timer.asked_by)
        headers = schedule_headers(self._names, timer, now)
        try:
            data, _ = await self._inbox.ask(subject, timer, timeout_s=_PUBLISH_TIMEOUT_S, headers=headers)
        except (ConnectionLostError, NoRespondersError, ReplyTimeoutError) as error:
            message = f"the timer of job {timer.job_id} could not be set: the timers' stream gives no answer"
            raise ServerUnreachableError(message) from error
        _check_stored(data, timer)

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


class _PubAck(msgspec.Struct):
    error: dict[str, Any] | None = None


_decode_ack = msgspec.json.Decoder(_PubAck).decode


def _check_stored(data: bytes, timer: Timer) -> None:
    try:
        error = _decode_ack(data).error
    except msgspec.MsgspecError as broken:
        message = f"the timer of job {timer.job_id} got an answer that is no acknowledgement"
        raise ServerUnreachableError(message) from broken
    if error is None:
        return
    text = error.get("description", "no reason given")
    if error.get("err_code") in _NO_ROOM:
        message = f"the server has no room for timers ({text}): raise max_file_store in its configuration"
        raise LedgerFullError(message)
    message = f"the server refused the timer of job {timer.job_id}: {text}"
    raise LedgerError(message)


def _id_of(created: str) -> str:
    """Return the digits of a stream's creation time, always 23 of them, so that ids sort by time."""
    whole, _, fraction = created.rstrip("Z").partition(".")
    return re.sub(r"\D", "", whole) + f"{fraction:0<9}"[:9]
