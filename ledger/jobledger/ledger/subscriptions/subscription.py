"""A durable subscription at work in one process: pulls what there is room for, keeps it, settles it when told.

Several processes, or several of these in one, share a subscription by its name: each event is handed to one of them.
At least once: what was not acknowledged is handed out again, by the server after the ack wait, or at once when it was
given back. How the server keeps a subscription is in `subscriptions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from datetime import datetime
from types import TracebackType
from typing import Final, Self

import msgspec

from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    InvalidInputError,
    JetStreamDisabledError,
    LedgerError,
    MalformedEventError,
    SequenceGapError,
    ServerUnreachableError,
    SubscriptionNotFoundError,
    UnreachableError,
)
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.log import Log
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.inbox import Inbox, settle
from jobledger.ledger.nats.pull import Delivery, Ended, PullConsumer
from jobledger.ledger.subscriptions.consumers import (
    ACK_WAIT_S_DEFAULT,
    SubscriptionInfo,
    check_begin,
    check_unchanged,
    find_subscription,
    make_subscription,
)
from jobledger.ledger.subscriptions.filter import is_number, shown
from jobledger.ledger.subscriptions.options import SubscriptionConfig

logger = logging.getLogger("jobledger.subscription")

_EXPIRES_S: Final = 30.0
_HEARTBEAT_S: Final = 2.0
_SILENCE_MAX_S: Final = 3 * _HEARTBEAT_S
_LOOKS_MAX: Final = 3
_CLOSE_S: Final = 1.0
_RETRY_S: Final = 0.25
_RETRY_S_MAX: Final = 30.0
_DELAY_S_MAX: Final = 24 * 3600.0
_NANOSECONDS: Final = 1_000_000_000


class _Held(msgspec.Struct):
    """One event on hand; changes while it is."""

    delivery: Delivery  #: the newest one: whose ack subject settles it
    since: float  #: loop time at which it came, or was handed to the handler


class EventDelivery:
    """One event as a subscription handed it out, to be settled once: by `ack`, by `nak`, or as a block.

    `async with delivery:` acknowledges it at the end of the block, and gives it back if the block raises.
    """

    def __init__(self, subscription: Subscription, stored: StoredEvent, delivered: int) -> None:
        self._subscription = subscription
        self.stored = stored
        self.delivered = delivered  #: how often it was handed out, from 1; not how often it was handled
        self.is_settled = False

    @property
    def event(self) -> JobEvent:
        """The event itself, one of the union `JobEvent`: made for `match`."""
        return self.stored.event

    def __repr__(self) -> str:
        """Show which event it is."""
        kind = type(self.event).__name__
        return f"EventDelivery({kind} at {self.stored.stream_sequence}, delivered {self.delivered})"

    async def ack(self) -> None:
        """Say that the event is dealt with; nothing happens the second time.

        Returns when the word is on its way. Should it be lost, the event comes again.
        """
        self._settle(b"+ACK")

    async def nak(self, delay_s: float | None = None) -> None:
        """Give the event back, to be handed out again after `delay_s` seconds, here or in another process.

        None: after 0.25 s the first time, twice as long each further time up to 30 s. 0: at once.

        Raises: InvalidInputError.
        """
        delay_s = growing_s(self.delivered) if delay_s is None else delay_s
        if not is_number(delay_s) or not 0 <= delay_s <= _DELAY_S_MAX:
            raise InvalidInputError(f"delay_s must be 0 to 86400, got {shown(delay_s)}")
        self._settle(_nak(delay_s))

    def _settle(self, word: bytes) -> None:
        if not self.is_settled:
            self.is_settled = True
            self._subscription.settle(self.stored.stream_sequence, word)

    async def __aenter__(self) -> Self:
        """Begin to handle it."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Settle it by how the block ended."""
        if error is None:
            await self.ack()
        else:
            await self.nak(None if isinstance(error, Exception) else 0.0)


def growing_s(delivered: int) -> float:
    """Return how long to wait before the next hand-out, so that what fails again and again does not spin."""
    return min(_RETRY_S * 2.0 ** min(delivered - 1, 10), _RETRY_S_MAX)


def _nak(delay_s: float) -> bytes:
    return b"-NAK " + msgspec.json.encode({"delay": int(delay_s * _NANOSECONDS)}) if delay_s else b"-NAK"


class Subscription:
    """A durable subscription for the length of a block: `async with ledger.subscription(...) as events`.

    Iterate it for deliveries, in one task or in several. At most `max_in_flight` are on hand at a time: with so many
    not settled the next one is waited for. All on hand is kept from others while this process lives, and given back
    when the block ends. Never a delivery twice at once in one process; in stream order, but for what comes again.
    """

    def __init__(
        self, connection: Connection, inbox: Inbox, log: Log, name: str, config: SubscriptionConfig
    ) -> None:
        self.name = name
        self.config = config
        self._connection = connection
        self._loop = connection.loop
        self._inbox = inbox
        self._log = log
        self._created_at: datetime | None = None  # None: not looked for yet
        self._ack_wait_s = ACK_WAIT_S_DEFAULT
        self._acknowledged = 0
        self._held: dict[int, _Held] = {}  # by stream sequence, handed to the handler or not yet
        self._queue: deque[int] = deque()  # of these, those that were not handed over yet
        self._owed: dict[int, str] = {}  # acks that could not be sent: stream sequence -> ack subject
        self._last_acked = ""  # its ack subject
        self._arrived = asyncio.Event()  # for who iterates
        self._wake = asyncio.Event()  # for who pulls
        self._served = False  # pulled before: what is pulled from must be looked for again
        self._lost = False
        self._consumer: PullConsumer | None = None  # while there is one
        self._given = 0  # without `follow`: what the newest request has brought
        self._is_dry = False  # without `follow`: there was nothing more
        self._is_closed = False
        self._failure: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Find the subscription, or make it, and begin to pull.

        Raises: SubscriptionMismatchError, SubscriptionNotFoundError with `create=False`, InvalidInputError,
            SequenceGapError, UnreachableError.
        """
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give back what is on hand."""
        await self.close()

    def __aiter__(self) -> Self:
        """Iterate deliveries."""
        return self

    async def open(self) -> None:
        """Begin; see `__aenter__`."""
        if self._is_closed or self._tasks:
            raise InvalidInputError(f"subscription {self.name} was opened before: make another one")
        await self._look()
        self._tasks = [
            self._loop.create_task(self._run(), name=f"subscription {self.name}"),
            self._loop.create_task(self._keep_alive(), name=f"subscription {self.name} keep-alive"),
        ]

    async def close(self) -> None:
        """Stop pulling and give back what is not settled, in stream order; harmless the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._consumer is not None and self._consumer.asked:
            # What is on its way to us nobody else would get before its ack wait is over: let it come. And being asked
            # about itself the server forgets requests that nobody waits for any more. Otherwise the first event given
            # back would be offered to ours in vain, and then stand behind all others.
            with contextlib.suppress(ConnectionLostError, LedgerError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._consumer.end()
                    await self.info()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pay_owed()
        last = max(self._held, default=None)
        for sequence in sorted(self._held):
            if sequence != last:
                self.settle(sequence, b"-NAK")
        if last is not None:
            await self._tell_for_sure(self._held.pop(last).delivery.reply, b"-NAK")
        elif self._last_acked:
            await self._tell_for_sure(self._last_acked, b"+WPI")  # means nothing for what is acknowledged
        self._arrived.set()

    async def info(self) -> SubscriptionInfo:
        """Return the subscription as the server has it now: lag, in flight."""
        return await find_subscription(self._inbox, self._log.names, self.name)

    async def __anext__(self) -> EventDelivery:
        """Wait for the next delivery.

        Raises: SubscriptionNotFoundError when it was deleted meanwhile, CorruptLedgerError for an event that cannot
            be read, ServerUnreachableError when the connection was closed.
        """
        if self._created_at is None:
            raise InvalidInputError(
                "a subscription is read inside its block: `async with ledger.subscription(...) as deliveries`"
            )
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise StopAsyncIteration
            while self._queue:
                delivery = self._hand_over(self._queue.popleft())
                if delivery is not None:
                    return delivery
            if self._is_dry:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    def _hand_over(self, sequence: int) -> EventDelivery | None:
        """Return one event that came; None for one that is not wanted, or not on hand any more."""
        held = self._held.get(sequence)
        if held is None:
            return None
        raw = held.delivery
        try:
            found = read_message(raw.subject.decode(errors="replace"), raw.data, sequence, raw.stored_at)
            if not isinstance(found, StoredEvent):  # a filter is of jobs alone
                raise MalformedEventError(f"no job's event at {sequence}", stream_sequence=sequence)
        except CorruptLedgerError:
            self.settle(sequence, _nak(growing_s(raw.delivered)))  # a newer process may know it
            raise
        if not self.config.filter.fits(found):
            self.settle(sequence, b"+ACK")
            return None
        held.since = self._loop.time()
        return EventDelivery(self, found, raw.delivered)

    def settle(self, sequence: int, word: bytes) -> None:
        """Tell the server what became of an event; an ack that cannot be told now is told later."""
        held = self._held.pop(sequence, None)
        if held is None:
            return  # it was on hand for too long, and others have it by now
        self._wake.set()
        if word == b"+ACK":
            self._last_acked = held.delivery.reply
        if not self._tell(held.delivery.reply, word) and word == b"+ACK":
            self._owed[sequence] = held.delivery.reply

    def _pay_owed(self) -> None:
        for sequence, reply in list(self._owed.items()):
            if self._tell(reply, b"+ACK"):
                del self._owed[sequence]

    async def _tell_for_sure(self, reply: str, word: bytes) -> None:
        """Send a word and wait a moment for the answer: the server has heeded it by then, and all sent before it."""
        answer: asyncio.Future[None] = self._loop.create_future()

        def on_reply(data: bytes | Exception, _headers: bytes) -> None:
            settle(answer, data if isinstance(data, Exception) else None)

        inbox = self._inbox.expect(reply, on_reply)
        try:
            with contextlib.suppress(ConnectionLostError, LedgerError, TimeoutError):
                self._connection.send(reply, inbox, b"", word)
                async with asyncio.timeout(_CLOSE_S):
                    await answer
        finally:
            self._inbox.forget(inbox)

    def _tell(self, reply: str, word: bytes) -> bool:
        try:
            self._connection.send(reply, "", b"", word)
        except ConnectionLostError:
            return False
        return True

    async def _run(self) -> None:
        """Pull until closed; outlives losses of connection and server."""
        try:
            while not self._is_dry:
                try:
                    await self._serve()
                except (ConnectionLostError, JetStreamDisabledError, UnreachableError) as error:
                    if self._connection.is_closed:
                        message = f"the connection was closed while subscription {self.name} was read"
                        raise ServerUnreachableError(message) from error
                await asyncio.sleep(_RETRY_S)  # one that is lost again and again must not be asked in a spin
        except Exception as error:  # noqa: BLE001 - raised where the subscription is iterated
            self._failure = error
        finally:
            self._arrived.set()

    async def _look(self) -> None:
        """Find the subscription, make it the first time, and see that it is still the same one.

        Raises: as `__aenter__`.
        """
        found = await self._found()
        if self._created_at not in (None, found.created_at):
            raise self._gone("was deleted and made anew")
        check_unchanged(found, self.config.filter, self.config.ack_wait_s)
        last = (await self._log.head()).last_sequence
        if found.delivered_sequence > last:
            raise SequenceGapError(
                f"the ledger ends at stream sequence {last}, and subscription {self.name} was at "
                f"{found.delivered_sequence} before: it was rewound or replaced"
            )
        self._created_at, self._ack_wait_s = found.created_at, found.ack_wait_s
        self._acknowledged = found.acknowledged_sequence

    async def _found(self) -> SubscriptionInfo:
        tries = _LOOKS_MAX if self._created_at is not None else 1  # a cluster that starts may not know it yet
        for left in reversed(range(tries)):
            try:
                return await find_subscription(self._inbox, self._log.names, self.name)
            except SubscriptionNotFoundError:
                if left:
                    await asyncio.sleep(_RETRY_S)
                elif self._created_at is not None:
                    raise self._gone("was deleted") from None
                elif not self.config.create:
                    raise
        check_begin(self.config.start, await self._log.head())
        return await make_subscription(
            self._inbox,
            self._log.names,
            self.name,
            self.config.filter,
            start=self.config.start,
            ack_wait_s=self.config.ack_wait_s or ACK_WAIT_S_DEFAULT,
        )

    def _gone(self, what: str) -> SubscriptionNotFoundError:
        message = (
            f"subscription {self.name} {what} while it was read; when it was last looked at, all events up to stream "
            f"sequence {self._acknowledged} were acknowledged: begin it anew with from_sequence={self._acknowledged + 1}"
        )
        return SubscriptionNotFoundError(self.name, message)

    async def _serve(self) -> None:
        """Pull until the consumer is lost, or has nothing more for who does not follow."""
        if self._served:
            await self._connection.wait_connected(_EXPIRES_S)
            await self._look()
        self._served = True
        consumer = PullConsumer(
            self._connection,
            self._log.names.ledger_stream,
            self._log.names.subscription_consumer(self.name),
            on_delivery=self._on_delivery,
            on_ended=self._on_ended,
        )
        self._lost = False
        await consumer.open()
        self._consumer = consumer
        try:
            self._pay_owed()
            while not self._lost and not self._is_dry:
                self._wake.clear()
                self._ask(consumer)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_HEARTBEAT_S):
                        await self._wake.wait()
                if consumer.asked and self._loop.time() - consumer.heard_at > _SILENCE_MAX_S:
                    logger.warning("subscription %s is silent, looking for it", self.name)
                    return
        finally:
            self._consumer = None
            await consumer.close()

    def _ask(self, consumer: PullConsumer) -> None:
        """Leave requests standing for what there is room for, in portions worth a message."""
        if self._is_closed:
            return
        room = self.config.max_in_flight - len(self._held) - consumer.asked
        if room <= 0 or (consumer.asked and room < self.config.max_in_flight // 4):
            return
        if self.config.follow:
            consumer.request(room, expires_s=_EXPIRES_S, heartbeat_s=_HEARTBEAT_S)
        elif not consumer.asked:
            self._given = 0
            consumer.request(room)

    def _on_delivery(self, delivery: Delivery) -> None:
        sequence = delivery.stream_sequence
        self._given += 1
        if sequence in self._owed:  # acknowledged while there was no connection
            if self._tell(delivery.reply, b"+ACK"):
                del self._owed[sequence]
            self._wake.set()
            return
        held = self._held.get(sequence)
        if held is not None:  # it is on hand already; its ack wait was over while there was no connection
            held.delivery = delivery
            self._wake.set()
            return
        self._held[sequence] = _Held(delivery, self._loop.time())
        self._queue.append(sequence)
        self._arrived.set()
        self._wake.set()

    def _on_ended(self, ended: Ended) -> None:
        if ended == "lost":
            self._lost = True
        elif not self.config.follow and not self._given:
            self._is_dry = True
            self._arrived.set()
        self._wake.set()

    async def _keep_alive(self) -> None:
        """Keep from others what is on hand, but not for ever: its handler may hang."""
        while not self._connection.is_closed:
            await asyncio.sleep(self._ack_wait_s / 3)
            too_old = self._loop.time() - self.config.held_s_max
            for sequence, held in list(self._held.items()):
                if held.since < too_old:
                    logger.warning(
                        "subscription %s: stream sequence %d was not settled within %g s and is handed out again",
                        self.name,
                        sequence,
                        self.config.held_s_max,
                    )
                    self.settle(sequence, b"-NAK")
                else:
                    self._tell(held.delivery.reply, b"+WPI")
