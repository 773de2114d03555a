"""One pull consumer seen from the client: requests, deliveries, statuses, and the silence that means loss.

Own, because nats-py's fetch swallows status messages, drops a message when cancelled and costs twice as much.
It decides nothing: who uses it says how much to ask for, and what a delivery means.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
import nats.errors
from nats.aio.subscription import Subscription

from jobledger.ledger.nats.api import pull_subject
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.inbox import header, status_of

_NANOSECONDS: Final = 1_000_000_000
#: How long a request stands at the server, and how often the server says meanwhile that it does.
EXPIRES_S: Final = 30.0
HEARTBEAT_S: Final = 2.0
_SILENCE_MAX_S: Final = 3 * HEARTBEAT_S
#: Of `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`.
_OLD_ACK_TOKENS: Final = 9
_NEW_ACK_OFFSET: Final = 2  # $JS.ACK.<domain>.<account>.<stream>... from nats-server 2.16 on

#: `empty` nothing (more) for a request; `lost` the consumer is gone or unreachable and must be looked for.
Ended = Literal["empty", "lost"]


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One message as a consumer handed it out."""

    data: bytes
    reply: str  #: where its ack goes
    stream_sequence: int
    delivered: int  #: JetStream's count, from 1; not the attempt
    stored_ns: int  #: the server's clock at the append, nanoseconds since 1970
    pending: int  #: how many more the consumer has to deliver
    subject: bytes = b""  #: under which the message is stored

    @property
    def stored_at(self) -> datetime:
        """The server's timestamp, microseconds, UTC."""
        return time_of(self.stored_ns)


def time_of(nanoseconds: int) -> datetime:
    """Return the UTC time of nanoseconds since 1970, cut to microseconds.

    A float of seconds tells microseconds apart until the year 2242, and five times as fast as whole numbers do.
    """
    return datetime.fromtimestamp(nanoseconds // 1_000 / 1_000_000, UTC)


def ack_numbers_at(tokens: list[bytes]) -> int:
    """Return where in an ack subject, of either generation, its five numbers begin.

    They are: deliveries, stream sequence, consumer sequence, nanoseconds since 1970, how many are pending.
    """
    return 4 if len(tokens) == _OLD_ACK_TOKENS else 4 + _NEW_ACK_OFFSET


def parse_delivery(reply: bytes, data: bytes, subject: bytes = b"") -> Delivery:
    """Read what an ack subject says of its message."""
    tokens = reply.split(b".")
    at = ack_numbers_at(tokens)
    return Delivery(
        data,
        reply.decode(),
        int(tokens[at + 1]),
        int(tokens[at]),
        int(tokens[at + 3]),
        int(tokens[at + 4]),
        subject,
    )


class PullConsumer:
    """Asks one consumer for messages and hands on what comes, in the order of the wire.

    `on_delivery` and `on_ended` are called from the connection's reader and must be quick. `asked` counts what
    is asked for and not yet delivered or refused.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: str,
        *,
        on_delivery: Callable[[Delivery], None],
        on_ended: Callable[[Ended], None],
    ) -> None:
        self._connection = connection
        self._loop = connection.loop
        self._subject = pull_subject(stream, consumer)
        self._prefix = f"{connection.new_inbox()}."
        self._on_delivery = on_delivery
        self._on_ended = on_ended
        self._requests: dict[bytes, int] = {}  # token -> messages still owed, oldest first
        self._count = 0
        self._subscription: Subscription | None = None
        self.heard_at = 0.0  #: loop time of the last sign of life
        self.asked = 0

    async def open(self) -> None:
        """Subscribe to the inbox of this consumer."""
        self._subscription = await self._connection.listen(f"{self._prefix}*", self._on_message)
        self._connection.lost_listeners.append(self._on_lost)

    async def end(self) -> None:
        """Let the server send nothing more; what is on its way is still handed on, until `close`."""
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._subscription.unsubscribe()

    async def close(self) -> None:
        """Unsubscribe; what is on its way is dropped and will be delivered again."""
        if self._on_lost in self._connection.lost_listeners:
            self._connection.lost_listeners.remove(self._on_lost)
        if self._subscription is not None:
            await self._connection.unlisten(self._subscription)
            self._subscription = None
        self.forget()

    def forget(self) -> None:
        """Owe nothing any more: whatever was asked for is void."""
        self._requests.clear()
        self.asked = 0

    @property
    def is_silent(self) -> bool:
        """Whether an answer is owed for too long: the consumer, or its server, is not there any more."""
        return self.asked > 0 and self._loop.time() - self.heard_at > _SILENCE_MAX_S

    def request(self, batch: int) -> None:
        """Ask for up to `batch` messages, now or not at all.

        Raises: ConnectionLostError.
        """
        self._ask(batch, {"batch": batch, "no_wait": True})

    def wait_for(self, batch: int) -> None:
        """Ask for up to `batch` messages as they come, for half a minute.

        Raises: ConnectionLostError.
        """
        expires, heartbeat = int(EXPIRES_S * _NANOSECONDS), int(HEARTBEAT_S * _NANOSECONDS)
        self._ask(batch, {"batch": batch, "expires": expires, "idle_heartbeat": heartbeat})

    def _ask(self, batch: int, body: dict[str, int | bool]) -> None:
        self._count += 1
        token = str(self._count)
        self._connection.send(self._subject, self._prefix + token, b"", msgspec.json.encode(body))
        self._requests[token.encode()] = batch
        self.asked += batch
        self.heard_at = self._loop.time()

    def _on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.heard_at = self._loop.time()
        if reply.startswith(b"$JS.ACK."):
            # The server serves requests in order: the oldest one owes a message less.
            for token, owed in self._requests.items():
                self.asked -= 1
                if owed == 1:
                    del self._requests[token]
                else:
                    self._requests[token] = owed - 1
                break
            self._on_delivery(parse_delivery(reply, data, subject))
            return
        status = status_of(headers)
        if status and status != "100":  # 100 is the idle heartbeat
            self._end_request(subject, status, headers)

    def _end_request(self, subject: bytes, status: str, headers: bytes) -> None:
        owed = self._requests.pop(subject[len(self._prefix) :], 0)
        self.asked -= owed
        text = header_text(headers)
        gone = status == "503" or (status == "409" and "batch completed" not in text)
        self._on_ended("lost" if gone else "empty")

    def _on_lost(self) -> None:
        self.forget()
        self._on_ended("lost")


def header_text(headers: bytes) -> str:
    """Return the words of a status line, lower case."""
    line = headers[:200].split(b"\r\n", 1)[0]
    return (
        line[12:].decode(errors="replace").strip().lower() or header(headers, b"Description").decode().lower()
    )
