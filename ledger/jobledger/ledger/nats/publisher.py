"""Pipelined conditional publishing: many appends on their way at once, each with its own answer.

nats-py's own asynchronous publish never answers when the server refuses, which a conditional append
needs. Here a refusal is an ordinary answer. `jetstream` decides what a missing answer means.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.log import Entry
from jobledger.ledger.nats.api import NO_ROOM
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox, ReplyTimeoutError, status_of
from jobledger.ledger.nats.server_use import ServerUse

REPLY_TIMEOUT_S: Final = 5.0
#: For a cluster: a message to a leader that is gone gets no answer, and the next leader
#: takes it within a second or two of its election.
_CLUSTER_REPLY_TIMEOUT_S: Final = 1.5
#: Codes of a refusal by the condition; ADR 001 says when which of them comes.
WRONG_SEQUENCE_CODES: Final = frozenset({10071, 10164})
_SWEEP_S: Final = 0.25


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: _Error | None = None


_decode_ack = msgspec.json.Decoder(_PubAck).decode


class AppendRefusedError(LedgerError):
    """The server refused an append, by its number."""

    def __init__(self, code: int, description: str) -> None:
        self.code = code
        super().__init__(f"the server refused an append: {description} ({code})")

    @property
    def is_lost_race(self) -> bool:
        """Whether its condition did not hold."""
        return self.code in WRONG_SEQUENCE_CODES

    @property
    def is_full(self) -> bool:
        """Whether there is no room for it, in the stream or on the server."""
        return self.code in NO_ROOM


#: Called once with the stream sequence of the last entry, or with an error.
Answered = Callable[[int | Exception], None]


class _AwaitedAnswer(msgspec.Struct, eq=False):
    """One answer on its way; an object of few fields, since thousands of closures at once keep the collector busy."""

    publisher: Publisher
    answered: Answered
    deadline: float
    reply: str = ""

    def __call__(self, data: bytes | Exception, headers: bytes) -> None:
        publisher = self.publisher
        publisher.awaited.pop(self.reply, None)
        result = data if isinstance(data, Exception) else _read_answer(data, headers)
        if type(result) is ConnectionLostError and result is not data:
            publisher.use.is_useless()
        elif publisher.use.is_doubted:
            publisher.use.is_useful()
        self.answered(result)

    def __repr__(self) -> str:
        """Show nothing that is on its way: an event loop writes callbacks that fail into the log."""
        return f"<{type(self).__name__} {self.reply}>"


class Publisher:
    """Sends entries and routes their answers; every one is answered, by the limit at the latest."""

    def __init__(self, connection: Connection, inbox: Inbox) -> None:
        self.reply_timeout_s = _CLUSTER_REPLY_TIMEOUT_S if connection.is_clustered else REPLY_TIMEOUT_S
        self._connection = connection
        self._inbox = inbox
        self._loop = connection.loop
        self.awaited: dict[str, _AwaitedAnswer] = {}  #: by reply subject, oldest first
        self.use = ServerUse(connection, "took no write")
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """Appends sent and not yet answered."""
        return len(self.awaited)

    def send(self, entries: Sequence[Entry], answered: Answered) -> None:
        """Send one entry plainly, several as one atomic batch; `answered` is called later, never from here."""
        try:
            if len(entries) == 1:
                entry = entries[0]
                self._send(entry, _condition(entry), answered)
            else:
                self._send_batch(entries, answered)
        except ConnectionLostError as error:
            self._loop.call_soon(answered, error)

    def _send(
        self, entry: Entry, headers: bytes, answered: Answered, parts: frozenset[str] | None = None
    ) -> None:
        awaited = _AwaitedAnswer(self, answered, self._loop.time() + self.reply_timeout_s)
        reply = awaited.reply = self._inbox.expect(parts or entry.subject, awaited, once=True)
        self.awaited[reply] = awaited
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)
        try:
            self._connection.send(entry.subject, reply, headers, entry.data)
        except ConnectionLostError:
            self.forget(reply)
            raise

    def forget(self, reply: str) -> None:
        """Wait no more for the answer at `reply`."""
        self.awaited.pop(reply, None)
        self._inbox.forget(reply)

    def _send_batch(self, entries: Sequence[Entry], answered: Answered) -> None:
        """Stage all but the last without reply; the commit is answered for all, refusals of earlier ones included."""
        batch = uuid.uuid4().hex
        last = len(entries)
        for number, entry in enumerate(entries, start=1):
            tail = f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {number}\r\n"
            if number < last:
                self._connection.send(entry.subject, "", _condition(entry, tail), entry.data)
            else:
                subjects = frozenset(each.subject for each in entries)
                self._send(entry, _condition(entry, tail + "Nats-Batch-Commit: 1\r\n"), answered, subjects)

    def _sweep(self) -> None:
        """Answer what is overdue; all limits are equal, so the oldest is first."""
        loop = self._loop
        now = loop.time()
        for awaited in list(self.awaited.values()):
            if awaited.deadline > now:
                break
            self.forget(awaited.reply)
            self.use.is_useless()
            awaited.answered(ReplyTimeoutError(f"no answer to an append within {self.reply_timeout_s:g} s"))
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep) if self.awaited else None

    def close(self) -> None:
        """Stop the timers; what still waits is answered by the connection's end."""
        self.use.is_useful()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None


def _condition(entry: Entry, tail: str = "") -> bytes:
    """Return the header block of an entry: its condition, and what makes it part of a batch."""
    if entry.expected is None:
        return f"NATS/1.0\r\n{entry.headers}{tail}\r\n".encode()
    return (
        f"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {entry.expected}\r\n"
        f"Nats-Expected-Last-Subject-Sequence-Subject: {entry.chain}\r\n{entry.headers}{tail}\r\n"
    ).encode()


def _read_answer(data: bytes, headers: bytes) -> int | Exception:
    if not data:
        if status_of(headers) == "503":  # no stream listens on the subject: it is being made, moved or gone
            return ConnectionLostError()
        return AppendRefusedError(0, "an empty answer")
    try:
        ack = _decode_ack(data)
    except msgspec.MsgspecError:
        return AppendRefusedError(0, "an answer that is no acknowledgement")
    if ack.error is not None:
        return AppendRefusedError(ack.error.err_code, ack.error.description)
    return ack.seq
