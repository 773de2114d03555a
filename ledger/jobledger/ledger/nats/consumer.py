"""Taking part in a durable consumer: request messages, hold them, settle each once, and survive every loss.

`keep_serving` is the one place where a consumer reconnects. `ConsumerLoop` takes messages from one consumer as long as
that lasts, `Batches` takes its present ones, `HeldDeliveries` keeps the deliveries. Nothing here relies on the
server's acknowledgements: the user decides what a delivery means. A worker's `intake` decides what the worker takes
next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from jobledger.ledger.model.errors import JetStreamDisabledError, UnreachableError
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.pull import EXPIRES_S, HEARTBEAT_S, Delivery, Ended, PullConsumer, heartbeat_for

logger = logging.getLogger("jobledger.consumer")

K = TypeVar("K")

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"  # the message is delivered again at once
IN_PROGRESS: Final = b"+WPI"
RETRY_S: Final = 0.25
_RETRY_S_MAX: Final = 30.0
_FETCH_S: Final = 5.0
_NANOSECONDS: Final = 1_000_000_000


def nak(delay_s: float) -> bytes:
    """Return the reply that gives a delivery back, to be delivered again after `delay_s` seconds."""
    if delay_s <= 0:
        return NAK
    return b"-NAK " + msgspec.json.encode({"delay": max(1, int(delay_s * _NANOSECONDS))})


def growing_s(delivered: int) -> float:
    """Return the wait before the next delivery, which grows, so that a message that always fails does not spin."""
    return min(RETRY_S * 2.0 ** min(delivered - 1, 10), _RETRY_S_MAX)


def tell(connection: Connection, delivery: Delivery, word: bytes) -> bool:
    """Send a reply on a delivery; return whether it is on its way. If not, the message is delivered again."""
    try:
        connection.send(delivery.reply, "", b"", word)
    except ConnectionLostError:
        return False
    return True


async def keep_serving(
    connection: Connection, serve: Callable[[], Awaitable[bool]], *, retry_s: float = RETRY_S
) -> None:
    """Call `serve` until it returns True, again after each loss of connection, server, stream or consumer.

    So that repeated losses do not spin, `retry_s` seconds lie between the end of a call and the next.

    Raises: ConnectionLostError when the connection is closed for good, and other errors of `serve`.
    """
    while True:
        try:
            await connection.wait_connected(EXPIRES_S)
            if await serve():
                return
        except (ConnectionLostError, JetStreamDisabledError, UnreachableError) as error:
            if connection.is_closed:
                raise ConnectionLostError from error
        await asyncio.sleep(retry_s)


async def woken(wake: asyncio.Event, limit_s: float = HEARTBEAT_S) -> None:
    """Wait for an event within the limit, since the caller has to notice silence, too."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await wake.wait()


class HeldDelivery(msgspec.Struct, gc=False):
    """A delivery on hand: not yet settled with the server."""

    delivery: Delivery  #: the newest one, whose ack subject settles it
    since: float  #: loop time at which it came, or was passed to its handler
    alive_at: float  #: loop time of the last sign of life to the server for it


class HeldDeliveries(Generic[K]):
    """The deliveries that this process holds: kept alive, and settled once. Their holder chooses the keys."""

    def __init__(self, connection: Connection, ack_wait_s: float) -> None:
        self._connection = connection
        self._loop = connection.loop
        self._held: dict[K, HeldDelivery] = {}
        self.ack_wait_s = ack_wait_s  #: how long the server waits, the shortest of several consumers' waits

    def __len__(self) -> int:
        """How many are on hand."""
        return len(self._held)

    def hold(self, key: K, delivery: Delivery) -> None:
        """Keep a delivery."""
        now = self._loop.time()
        self._held[key] = HeldDelivery(delivery, now, now)

    def find(self, key: K) -> HeldDelivery | None:
        """Return the delivery held under a key; None if it was settled or dropped."""
        return self._held.get(key)

    def settle(self, key: K, word: bytes) -> bool:
        """Settle a delivery at the server; return False when it is not held, or the reply could not be sent."""
        held = self._held.pop(key, None)
        if held is None:
            return False
        try:  # as in `tell`, without another call: this is done for every job
            self._connection.send(held.delivery.reply, "", b"", word)
        except ConnectionLostError:
            return False
        return True

    def drop(self, key: K) -> None:
        """Drop a delivery without a reply: the server delivers it again after the ack wait."""
        self._held.pop(key, None)

    def is_fresh(self, key: K) -> bool:
        """Return whether the ack wait of a delivery still runs, so that the server may count it as ours."""
        held = self._held.get(key)
        return held is not None and self._loop.time() - held.alive_at < self.ack_wait_s

    def pop_newest(self) -> Delivery | None:
        """Remove and return the delivery with the highest stream sequence, for its holder to settle."""
        key = max(self._held, key=lambda each: self._held[each].delivery.stream_sequence, default=None)
        return None if key is None else self._held.pop(key).delivery

    def give_back(self) -> None:
        """Give back all deliveries that are held, in stream order, so that others get them at once."""
        for key, _ in sorted(self._held.items(), key=lambda item: item[1].delivery.stream_sequence):
            self.settle(key, NAK)

    async def keep_alive(
        self,
        *,
        held_s_max: float = math.inf,
        on_overdue: Callable[[K], None] | None = None,
        quiet_s: float = 0.0,
    ) -> None:
        """Renew the ack waits of held deliveries until cancelled; `on_overdue` gets those that are held for too long.

        One that was renewed within the last `quiet_s` seconds waits for the next round, a third of the ack wait later.
        """
        while True:
            await asyncio.sleep(self.ack_wait_s / 3)
            now = self._loop.time()
            for key, held in list(self._held.items()):
                if on_overdue is not None and held.since < now - held_s_max:
                    on_overdue(key)
                elif held.alive_at <= now - quiet_s and tell(self._connection, held.delivery, IN_PROGRESS):
                    held.alive_at = now


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A durable consumer, shared by all processes that take from it."""

    stream: str
    consumer: str
    filters: tuple[str, ...] = ()  #: subjects; () is all of the stream


class ConsumerLoop:
    """A loop that takes from one durable consumer: it keeps requests open while there is room.

    `held` has the deliveries; at `in_flight_max` of them it requests no more. `on_delivery` is called by the
    connection's reader and must be quick. A finite loop takes all present messages, then ends.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        held: HeldDeliveries[Any],
        in_flight_max: int,
        on_delivery: Callable[[Delivery], None],
        is_finite: bool = False,
    ) -> None:
        self._connection = connection
        self._loop = connection.loop
        self._name = name
        self._held = held
        self._in_flight_max = in_flight_max
        self._on_delivery = on_delivery
        self._is_finite = is_finite
        self._wake = asyncio.Event()
        self._consumer: PullConsumer | None = None  # while there is one
        self._is_lost = False
        self._is_stopped = False
        self._brought = 0  # by the newest request
        self._pending = 0  # messages that the consumer still had at the newest delivery
        self.is_dry = False  #: there was nothing more

    async def run(
        self,
        find: Callable[[], Awaitable[Source]],
        *,
        ready: Callable[[Source], Awaitable[None]] | None = None,
        look_every_s: float = math.inf,
    ) -> None:
        """Take until cancelled, or until a finite loop has all.

        `find` returns the consumer to take from, at the beginning, after each loss and at intervals: if the answer
        changes, the loop moves there. `ready` is called before the first request to a consumer.

        Raises: ConnectionLostError when the connection is closed for good, what `find` and `ready` raise.
        """

        async def serve() -> bool:
            source = await find()
            if ready is not None:
                await ready(source)
            await self._take(source, find, look_every_s)
            return self.is_dry

        await keep_serving(self._connection, serve)

    def wake(self) -> None:
        """Notify the loop that there is room again."""
        self._wake.set()

    def lose(self) -> None:
        """Treat the consumer as lost, and look for it again."""
        self._is_lost = True
        self._wake.set()

    async def stop_asking(self) -> bool:
        """Stop requests; return whether requested messages may still be on their way."""
        self._is_stopped = True
        if self._consumer is None or not self._consumer.asked:
            return False
        await self._consumer.end()
        return True

    async def _take(self, source: Source, find: Callable[[], Awaitable[Source]], look_every_s: float) -> None:
        """Take from one consumer until it is lost, silent, dry, or not the right one any more."""
        consumer = PullConsumer(
            self._connection,
            source.stream,
            source.consumer,
            on_delivery=self._heard,
            on_ended=self._ended,
            heartbeat_s=heartbeat_for(source.filters),
        )
        self._is_lost = False
        await consumer.open()
        self._consumer = consumer
        look_at = self._loop.time() + look_every_s
        try:
            while not (self._is_lost or self.is_dry):
                self._wake.clear()
                self._ask(consumer)
                await woken(self._wake)
                if consumer.is_silent:
                    logger.info("%s: its consumer is silent, looking for it", self._name)
                    return
                if self._loop.time() >= look_at:
                    look_at = self._loop.time() + look_every_s
                    if await find() != source:
                        return
            consumer.require_right()
        finally:
            self._consumer = None
            await consumer.close()

    def _ask(self, consumer: PullConsumer) -> None:
        """Request present messages for which there is room, in portions worth a request; and the next one to come.

        A request that waits at the server is for one message only: if its process stands still, the request takes
        messages, also redeliveries, that others could handle.
        """
        room = self._in_flight_max - len(self._held) - consumer.asked
        if self._is_stopped or room <= 0 or not consumer.free:
            return
        if self._is_finite:
            if not consumer.asked:
                self._brought = 0
                consumer.request(room)
            return
        there = min(room, self._pending - consumer.asked)
        if there > 0 and (not consumer.probed or there >= self._in_flight_max // 4):
            consumer.request(there)
        elif not consumer.standing:
            consumer.wait_for(1)

    def _heard(self, delivery: Delivery) -> None:
        self._brought += 1
        self._pending = delivery.pending
        self._on_delivery(delivery)
        self._wake.set()

    def _ended(self, ended: Ended) -> None:
        self._pending = 0
        if ended == "lost":
            self._is_lost = True
        elif self._is_finite and not self._brought:
            self.is_dry = True
        self._wake.set()


class Batches:
    """The present messages of a consumer, batch by batch, for callers that read it now and then."""

    def __init__(self, connection: Connection, source: Source) -> None:
        self._got: list[Delivery] = []
        self._ended: Ended | None = None
        self._moved = asyncio.Event()
        self._consumer = PullConsumer(
            connection, source.stream, source.consumer, on_delivery=self._heard, on_ended=self._on_ended
        )

    async def __aenter__(self) -> Self:
        """Listen."""
        await self._consumer.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more."""
        await self._consumer.close()

    def _heard(self, delivery: Delivery) -> None:
        self._got.append(delivery)
        self._moved.set()

    def _on_ended(self, ended: Ended) -> None:
        self._ended = ended
        self._moved.set()

    async def take(self, size: int) -> list[Delivery]:
        """Return up to `size` deliveries; fewer when there are no more.

        Raises: ConnectionLostError.
        """
        self._got, self._ended = [], None
        self._consumer.request(size)
        deadline = asyncio.get_running_loop().time() + _FETCH_S
        while self._consumer.asked and self._ended is None:
            self._moved.clear()
            await woken(self._moved, deadline - asyncio.get_running_loop().time())
            if asyncio.get_running_loop().time() >= deadline:
                self._consumer.forget()
        if self._is_lost():
            self._consumer.require_right()
            raise ConnectionLostError
        return self._got

    def _is_lost(self) -> bool:
        return self._ended == "lost"
