"""A durable subscription at work in one process: pulls what there is room for, keeps it, settles it when told.

Several processes, or several of these in one, share a subscription by its name: each event is handed to one of them.
At least once: what was not acknowledged is handed out again, by the server after the ack wait, or at once when it was
given back. How the server keeps a subscription is in `consumers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    InvalidInputError,
    LedgerError,
    SequenceGapError,
    ServerUnreachableError,
)
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.log import Log
from jobledger.ledger.nats.connection import Connection, ConnectionLostError
from jobledger.ledger.nats.consumer import (
    ACK,
    IN_PROGRESS,
    NAK,
    RETRY_S,
    ConsumerLoop,
    HeldDeliveries,
    Source,
    growing_s,
    nak,
    tell,
)
from jobledger.ledger.nats.inbox import Inbox, resolve
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.reader_leases import ReaderLeases
from jobledger.ledger.subscriptions.consumers import (
    ACK_WAIT_S_DEFAULT,
    SubscriptionInfo,
    check_begin,
    check_unchanged,
    find_subscription,
    make_subscription,
)
from jobledger.ledger.subscriptions.errors import SubscriptionNotFoundError
from jobledger.ledger.subscriptions.filter import is_number, shown
from jobledger.ledger.subscriptions.options import SubscriptionConfig

logger = logging.getLogger("jobledger.subscription")

_LOOKS_MAX: Final = 3
_CLOSE_S: Final = 1.0
_DELAY_S_MAX: Final = 24 * 3600.0


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
        """Acknowledge the event; a second call does nothing.

        It returns once the ack is sent. If the server does not get the ack, it delivers the event again.
        """
        self._settle(ACK)

    async def nak(self, delay_s: float | None = None) -> None:
        """Give the event back, to be handed out again after `delay_s` seconds, here or in another process.

        None: after 0.25 s the first time, twice as long each further time up to 30 s. 0: at once.

        Raises: InvalidInputError.
        """
        delay_s = growing_s(self.delivered) if delay_s is None else delay_s
        if not is_number(delay_s) or not 0 <= delay_s <= _DELAY_S_MAX:
            raise InvalidInputError(f"delay_s must be 0 to 86400, got {shown(delay_s)}")
        self._settle(nak(delay_s))

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


class Subscription:
    """A durable subscription for the length of a block: `async with ledger.subscription(...) as events`.

    Iterate it for deliveries, in one task or in several. At most `max_in_flight` are on hand at a time: while
    that many are not settled, the iteration waits. All on hand is kept from others while this process lives, and given back
    when the block ends. One process never holds an event twice at once. Events come in stream order, except those that are
    delivered again.
    """

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        log: Log,
        name: str,
        config: SubscriptionConfig,
        *,
        leases: ReaderLeases,
    ) -> None:
        self.name = name
        self.config = config
        self._connection = connection
        self._loop = connection.loop
        self._inbox = inbox
        self._log = log
        self._leases = leases
        self._created_at: datetime | None = None  # None: not looked for yet
        self._acknowledged = 0
        # By stream sequence, handed to the handler or not yet.
        self._held = HeldDeliveries[int](connection, ACK_WAIT_S_DEFAULT)
        self._queue: deque[int] = deque()  # events on hand that the handler did not get yet
        self._owed: dict[int, Delivery] = {}  # acks that could not be sent, by stream sequence
        self._last_acked: Delivery | None = None
        self._arrived = asyncio.Event()  # for who iterates
        self._pulling = ConsumerLoop(
            connection,
            f"subscription {name}",
            held=self._held,
            in_flight_max=config.max_in_flight,
            on_delivery=self._on_delivery,
            is_finite=not config.follow,
        )
        self._is_found = False  # true right after the consumer was found, so `_run` need not look for it
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
        self._connection.require_here()
        await self._look()
        self._is_found = True
        self._leases.begin("subscription")
        keeping = self._held.keep_alive(held_s_max=self.config.held_s_max, on_overdue=self._give_up)
        self._tasks = [
            self._loop.create_task(self._run(), name=f"subscription {self.name}"),
            self._loop.create_task(keeping, name=f"subscription {self.name} keep-alive"),
        ]

    async def close(self) -> None:
        """Stop pulling and give back what is not settled, in stream order; harmless the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._close()
        finally:
            if self._tasks:
                await self._leases.end("subscription")

    async def _close(self) -> None:
        with contextlib.suppress(ConnectionLostError, LedgerError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                # Events on their way to us reach nobody else before their ack wait ends: let them arrive. A question
                # about the consumer makes the server forget requests that nobody waits for. If it still knew ours, it
                # would send the first event that we give back as an answer to that request. Nobody would take the
                # event, and the server would redeliver it after all others.
                if await self._pulling.stop_asking():
                    await self.info()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pay_owed()
        last = self._held.pop_newest()
        self._held.give_back()
        if last is not None:
            await self._tell_for_sure(last, NAK)
        elif self._last_acked is not None:
            await self._tell_for_sure(
                self._last_acked, IN_PROGRESS
            )  # the server ignores it for an acknowledged event: only its answer matters
        self._arrived.set()

    async def info(self) -> SubscriptionInfo:
        """Return the subscription as the server has it now: lag, in flight."""
        return await find_subscription(self._inbox, self._log.names, self.name)

    async def __anext__(self) -> EventDelivery:
        """Wait for the next delivery.

        Raises: SubscriptionNotFoundError when it was deleted meanwhile, UnknownEventError for an event of a newer
            version, ServerUnreachableError when the connection was closed.
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
            if self._pulling.is_dry:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    def _hand_over(self, sequence: int) -> EventDelivery | None:
        """Return one event that came; None for one that is not wanted, or not on hand any more."""
        held = self._held.find(sequence)
        if held is None:
            return None
        raw = held.delivery
        try:
            found = raw.read()
        except CorruptLedgerError:
            self.settle(sequence, nak(growing_s(raw.delivered)))  # a newer process may know it
            raise
        # Nobody subscribed to a message that is no event: it is acknowledged and passed over.
        if not isinstance(found, StoredEvent) or not self.config.filter.fits(found):
            self.settle(sequence, ACK)
            return None
        held.since = self._loop.time()
        return EventDelivery(self, found, raw.delivered)

    def settle(self, sequence: int, word: bytes) -> None:
        """Send the server the answer for an event; an ack that cannot be sent now is sent later."""
        held = self._held.find(sequence)
        if held is None:
            return  # it was on hand for too long, and others have it by now
        is_told = self._held.settle(sequence, word)
        if word == ACK:
            self._last_acked = held.delivery
            if not is_told:
                self._owed[sequence] = held.delivery
        self._pulling.wake()

    def _give_up(self, sequence: int) -> None:
        """Let another process have an event whose handler hangs."""
        logger.warning(
            "subscription %s: stream sequence %d was not settled within %g s and is handed out again",
            self.name,
            sequence,
            self.config.held_s_max,
        )
        self.settle(sequence, NAK)

    def _pay_owed(self) -> None:
        for sequence, delivery in list(self._owed.items()):
            if tell(self._connection, delivery, ACK):
                del self._owed[sequence]

    async def _tell_for_sure(self, delivery: Delivery, word: bytes) -> None:
        """Send an answer and wait a moment for the reply: by then the server has handled it, and all sent before it."""
        answer: asyncio.Future[None] = self._loop.create_future()

        def on_reply(data: bytes | Exception, _headers: bytes) -> None:
            resolve(answer, data if isinstance(data, Exception) else None)

        inbox = self._inbox.expect(delivery.reply, on_reply)
        try:
            with contextlib.suppress(ConnectionLostError, LedgerError, TimeoutError):
                self._connection.send(delivery.reply, inbox, b"", word)
                async with asyncio.timeout(_CLOSE_S):
                    await answer
        finally:
            self._inbox.forget(inbox)

    async def _run(self) -> None:
        """Pull until closed; outlives losses of connection and server."""
        try:
            await self._pulling.run(self._find_again, ready=self._ready)
        except ConnectionLostError as error:
            message = f"the connection was closed while subscription {self.name} was read"
            self._failure = ServerUnreachableError(message)
            self._failure.__cause__ = error
        except Exception as error:  # noqa: BLE001 - raised where the subscription is iterated
            self._failure = error
        finally:
            self._arrived.set()

    async def _find_again(self) -> Source:
        if not self._is_found:
            await self._look()
        self._is_found = False
        names = self._log.names
        return Source(
            stream=names.ledger_stream,
            consumer=names.subscription_consumer(self.name),
            filters=self.config.filter.subjects(names),
        )

    async def _ready(self, _: Source) -> None:
        self._pay_owed()

    async def _look(self) -> None:
        """Find the subscription, make it the first time, and see that it is still the same one.

        Raises: as `__aenter__`.
        """
        found = await self._found()
        if self._created_at not in (None, found.created_at):
            raise self._gone("was deleted and made again")
        check_unchanged(found, self.config.filter, self.config.ack_wait_s)
        last = (await self._log.head()).last_sequence
        if found.delivered_sequence > last:
            raise SequenceGapError(
                f"the ledger ends at stream sequence {last}, and subscription {self.name} was at "
                f"{found.delivered_sequence} before: it was rewound or replaced"
            )
        self._created_at, self._held.ack_wait_s = found.created_at, found.ack_wait_s
        self._acknowledged = found.acknowledged_sequence

    async def _found(self) -> SubscriptionInfo:
        tries = _LOOKS_MAX if self._created_at is not None else 1  # a cluster that starts may not know it yet
        for left in reversed(range(tries)):
            try:
                return await find_subscription(self._inbox, self._log.names, self.name)
            except SubscriptionNotFoundError:
                if left:
                    await asyncio.sleep(RETRY_S)
                elif self._created_at is not None:
                    raise self._gone("was deleted") from None
                elif not self.config.create:
                    raise
        await check_begin(self.config.start, self._log)
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
            f"sequence {self._acknowledged} were acknowledged: begin it again with from_sequence={self._acknowledged + 1}"
        )
        return SubscriptionNotFoundError(self.name, message)

    def _on_delivery(self, delivery: Delivery) -> None:
        sequence = delivery.stream_sequence
        if sequence in self._owed:  # acknowledged while there was no connection
            if tell(self._connection, delivery, ACK):
                del self._owed[sequence]
            return
        held = self._held.find(sequence)
        if held is not None:  # it is on hand already; its ack wait was over while there was no connection
            held.delivery = delivery
            return
        self._held.hold(sequence, delivery)
        self._queue.append(sequence)
        self._arrived.set()
