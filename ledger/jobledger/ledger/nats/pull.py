"""One pull consumer seen from the client: requests, deliveries, statuses, and the silence that means loss.

Our own code, because nats-py's fetch hides status messages, drops a message when cancelled and costs twice as much. It
decides nothing: its user decides how much to request, and what a delivery means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from nats.aio.subscription import Subscription

from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import PermissionRefusedError
from jobledger.ledger.nats.api import pull_subject
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.inbox import header, status_of

_NANOSECONDS: Final = 1_000_000_000
#: How long a request waits at the server, and how often the server confirms meanwhile that it does.
EXPIRES_S: Final = 30.0
HEARTBEAT_S: Final = 2.0
#: The heartbeat of a consumer with several filters. At each one the server looks for the next message, and once 8 MB were
#: appended since its last look it goes through all subjects in use to find it. Source: ADR 004.
_FILTERS_HEARTBEAT_S: Final = 10.0
#: A client that has missed this many heartbeats in a row looks for its consumer again.
SILENT_BEATS: Final = 3
#: Most requests of one client to one consumer at a time: one is served, the next is on its way, and one waits.
REQUESTS_MAX: Final = 3
#: Of `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`.
_OLD_ACK_TOKENS: Final = 9
_NEW_ACK_OFFSET: Final = 2  # $JS.ACK.<domain>.<account>.<stream>... from nats-server 2.16 on

_of_seconds: Final = msgspec.json.Decoder(datetime, strict=False).decode
#: `empty`: there is nothing (more) for a request; `lost`: the consumer is gone or unreachable and must be looked for.
Ended = Literal["empty", "lost"]


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One message that a consumer delivered."""

    data: bytes
    reply: str  #: subject for its ack
    stream_sequence: int
    delivered: int  #: JetStream's count, from 1; not the attempt
    stored_ns: int  #: the server's clock at the append, nanoseconds since 1970
    pending: int  #: number of further messages that the consumer has to deliver
    subject: bytes = b""  #: under which the message is stored

    @property
    def stored_at(self) -> datetime:
        """The server's timestamp, microseconds, UTC."""
        return time_of(self.stored_ns)

    def read(self) -> Message:
        """Return the event that a consumer of the ledger delivered; see `read_message`.

        Raises: UnknownEventError.
        """
        subject = self.subject.decode(errors="replace")
        return read_message(subject, self.data, self.stream_sequence, self.stored_at)


def time_of(nanoseconds: int) -> datetime:
    """Return the UTC time of nanoseconds since 1970, cut to microseconds.

    A float of seconds tells microseconds apart until the year 2242, and five times as fast as whole numbers do.
    """
    return datetime.fromtimestamp(nanoseconds // 1_000 / 1_000_000, UTC)


def told_time(nanoseconds: bytes) -> datetime:
    """Return the result of `time_of` for the digits in an ack subject, at half the cost; from a second after 1970."""
    return _of_seconds(nanoseconds[:-9] + b"." + nanoseconds[-9:-3])


def ack_numbers_at(tokens: list[bytes]) -> int:
    """Return where in an ack subject, of either generation, its five numbers begin.

    They are: deliveries, stream sequence, consumer sequence, nanoseconds since 1970, how many are pending.
    """
    return 4 if len(tokens) == _OLD_ACK_TOKENS else 4 + _NEW_ACK_OFFSET


def parse_delivery(reply: bytes, data: bytes, subject: bytes = b"") -> Delivery:
    """Read the numbers in the ack subject of a message."""
    tokens = reply.split(b".")
    # Like `ack_numbers_at`, but written out, since every job comes here.
    at = 4 if len(tokens) == _OLD_ACK_TOKENS else 4 + _NEW_ACK_OFFSET
    return Delivery(
        data,
        reply.decode(),
        int(tokens[at + 1]),
        int(tokens[at]),
        int(tokens[at + 3]),
        int(tokens[at + 4]),
        subject,
    )


def heartbeat_for(filters: Sequence[str]) -> float:
    """Return the seconds between two heartbeats of a request, by its consumer's filters."""
    return _FILTERS_HEARTBEAT_S if len(filters) > 1 else HEARTBEAT_S


class _Channel:
    """An inbox for one request at a time: messages there belong to that request.

    The server serves waiting requests in turns, and a delivery names only its inbox. So with two requests for one
    inbox nobody would know how many messages each still gets.
    """

    __slots__ = ("_consumer", "_prefix", "heard_at", "owed", "reply", "stands", "subscription")

    def __init__(self, consumer: PullConsumer, prefix: str) -> None:
        self._consumer = consumer
        self._prefix = prefix
        self.subscription: Subscription | None = None
        self.reply = ""  #: reply subject of the newest request
        self.owed = 0  #: messages that the request still has to get
        self.stands = False  #: whether the request waits at the server
        self.heard_at = 0.0  #: loop time of the last sign of life

    async def open(self, connection: Connection) -> None:
        self.subscription = await connection.listen(f"{self._prefix}*", self._on_message)

    def name_next(self, number: int) -> str:
        """Return the reply subject of the next request; it distinguishes its end from that of an older request."""
        self.reply = f"{self._prefix}{number}"
        return self.reply

    def _on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        consumer = self._consumer
        self.heard_at = consumer.loop.time()
        if reply.startswith(b"$JS.ACK."):
            if (
                self.owed
            ):  # written out, since every job comes here; else the message belongs to a void request
                self.owed -= 1
                if self.stands:
                    consumer.standing -= 1
                else:
                    consumer.probed -= 1
                if not self.owed:
                    consumer.free.append(self)
            consumer.on_delivery(parse_delivery(reply, data, subject))
            return
        status = status_of(headers)
        # 100 is the idle heartbeat. A void request may end late, which tells nothing of the present one.
        if status and status != "100" and subject == self.reply.encode():
            consumer.end_request(self, status, headers)


class PullConsumer:
    """Asks one consumer for messages and passes them on, in the order of the wire.

    `on_delivery` and `on_ended` are called from the connection's reader and must be quick. No more than `REQUESTS_MAX`
    requests are outstanding. The number of messages that each still gets is known exactly; only after `forget` may
    more come than asked.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: str,
        *,
        on_delivery: Callable[[Delivery], None],
        on_ended: Callable[[Ended], None],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._connection = connection
        self._heartbeat_s = heartbeat_s
        self.loop = connection.loop
        self._subject = pull_subject(stream, consumer)
        self.on_delivery = on_delivery
        self._on_ended = on_ended
        self._channels = [_Channel(self, f"{connection.new_inbox()}.") for _ in range(REQUESTS_MAX)]
        self._count = 0
        self._refused: PermissionRefusedError | None = None
        self.free = list(
            self._channels
        )  #: channels without a request; while it is empty, no request may be made
        self.probed = 0  #: messages asked for by `request`, and neither delivered nor refused yet
        self.standing = 0  #: the same for `wait_for`

    @property
    def asked(self) -> int:
        """The number of requested messages that were neither delivered nor refused yet."""
        return self.probed + self.standing

    async def open(self) -> None:
        """Subscribe to the inboxes of this consumer."""
        for channel in self._channels:
            await channel.open(self._connection)
        self._connection.lost_listeners.append(self._on_lost)
        self._connection.refused_listeners.append(self._on_refused)

    async def end(self) -> None:
        """Stop the server's messages; those on their way are still passed on, until `close`."""
        for channel in self._channels:
            if channel.subscription is not None:
                await self._connection.end_interest(channel.subscription)

    async def close(self) -> None:
        """Unsubscribe; messages on their way are dropped, and will be delivered again."""
        if self._on_lost in self._connection.lost_listeners:
            self._connection.lost_listeners.remove(self._on_lost)
            self._connection.refused_listeners.remove(self._on_refused)
        for channel in self._channels:
            if channel.subscription is not None:
                await self._connection.unlisten(channel.subscription)
                channel.subscription = None
        self.forget()

    def forget(self) -> None:
        """Void all requests. Messages that still come for them are passed on."""
        for channel in self._channels:
            channel.owed = 0
        self.free = list(self._channels)
        self.probed = self.standing = 0

    @property
    def is_silent(self) -> bool:
        """Whether an answer is overdue, so that the consumer, or its server, is probably gone."""
        since = self.loop.time() - SILENT_BEATS * self._heartbeat_s
        return any(channel.owed and channel.heard_at < since for channel in self._channels)

    def request(self, batch: int) -> None:
        """Ask for up to `batch` present messages; only while a channel is `free`.

        Raises: ConnectionLostError.
        """
        self._ask(batch, {"batch": batch, "no_wait": True}, stands=False)
        self.probed += batch

    def wait_for(self, batch: int) -> None:
        """Ask for up to `batch` messages as they come, for half a minute; only while a channel is `free`.

        Raises: ConnectionLostError.
        """
        expires, heartbeat = int(EXPIRES_S * _NANOSECONDS), int(self._heartbeat_s * _NANOSECONDS)
        self._ask(batch, {"batch": batch, "expires": expires, "idle_heartbeat": heartbeat}, stands=True)
        self.standing += batch

    def _ask(self, batch: int, body: dict[str, int | bool], *, stands: bool) -> None:
        channel = self.free[-1]
        self._count += 1
        self._connection.send(self._subject, channel.name_next(self._count), b"", msgspec.json.encode(body))
        self.free.pop()
        channel.owed = batch
        channel.stands = stands
        channel.heard_at = self.loop.time()

    def end_request(self, channel: _Channel, status: str, headers: bytes) -> None:
        """End the newest request of a channel after a status: no more messages will come for it."""
        if channel.owed:
            if channel.stands:
                self.standing -= channel.owed
            else:
                self.probed -= channel.owed
            channel.owed = 0
            self.free.append(channel)
        text = header_text(headers)
        gone = status == "503" or (status == "409" and "batch completed" not in text)
        self._on_ended("lost" if gone else "empty")

    def _on_lost(self) -> None:
        self.forget()
        self._on_ended("lost")

    def _on_refused(self, error: PermissionRefusedError) -> bool:
        if error.subject == self._subject:
            self._refused = error
            self._on_lost()
        return False  # a request for work has no waiting caller

    def require_right(self) -> None:
        """Check that this user may ask the consumer; to be called when it was lost.

        Raises: PermissionRefusedError.
        """
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused


def header_text(headers: bytes) -> str:
    """Return the words of a status line, lower case."""
    line = headers[:200].split(b"\r\n", 1)[0]
    return (
        line[12:].decode(errors="replace").strip().lower() or header(headers, b"Description").decode().lower()
    )
