"""`Ledger.events`: stored events, one after the other, from a reader of its own or from a durable subscription."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Protocol, Self

from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.log import Log, only_jobs, start_of
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.nats.connection import Connection
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.ordered_reader import OrderedReader
from jobledger.ledger.reader_leases import ReaderLeases
from jobledger.ledger.subscriptions.consumers import check_begin
from jobledger.ledger.subscriptions.filter import Start
from jobledger.ledger.subscriptions.options import SubscriptionConfig, SubscriptionOptions, configured
from jobledger.ledger.subscriptions.subscription import Subscription

_OF_A_DURABLE: Final = ("max_in_flight", "ack_wait_s", "held_s_max", "create")
_CLOSE_S: Final = 5.0  # time in which a cancelled reader surely ends


class EventOptions(SubscriptionOptions, total=False):
    """The options of `Ledger.events`; those of `SubscriptionOptions` need `durable`."""

    durable: str | None  #: read as this named subscription, which resumes where it stopped


class Client(Protocol):
    """The part of a ledger's client that a reader needs."""

    connection: Connection
    inbox: Inbox
    log: Log
    reader_leases: ReaderLeases


class EventStream:
    """An iterator of stored events, for one use; in `async with` it begins at once, and ends with the block.

    Each is a `StoredEvent` whose `event` belongs to the union `JobEvent`, for use with `match`.
    """

    def __init__(
        self,
        begin: Callable[[contextlib.AsyncExitStack], Coroutine[Any, Any, AsyncGenerator[StoredEvent, None]]],
    ) -> None:
        self._begin = begin
        self._events: AsyncGenerator[StoredEvent, None] | None = None
        self._closing = contextlib.AsyncExitStack()
        self._one_at_a_time = asyncio.Lock()
        self._is_closed = False

    def __aiter__(self) -> Self:
        """Iterate the events."""
        return self

    async def __anext__(self) -> StoredEvent:
        """Wait for the next event."""
        async with self._one_at_a_time:
            await self._start()
            if self._events is None:
                raise StopAsyncIteration
            return await anext(self._events)

    async def _start(self) -> None:
        if self._events is None and not self._is_closed:
            self._events = await self._begin(self._closing)

    async def aclose(self) -> None:
        """End the stream; unfinished events of a durable subscription are given back.

        Raises: RuntimeError, as generators do, if another task waits for the next event: cancel that task first.
        """
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._one_at_a_time.acquire()
        except TimeoutError as error:
            raise RuntimeError("another task waits for the next event: cancel it before closing") from error
        try:
            self._is_closed = True
            events, self._events = self._events, None
            if events is not None:
                await events.aclose()
            await self._closing.aclose()
        finally:
            self._one_at_a_time.release()

    async def __aenter__(self) -> Self:
        """Begin now: the stream has all events stored from here on; with `live` only these."""
        async with self._one_at_a_time:
            await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        await self.aclose()


def open_subscription(client: Client, name: str, options: SubscriptionOptions) -> Subscription:
    """Return a named subscription that is not open yet; see `Ledger.subscription`.

    Raises: InvalidError.
    """
    config = configured(options)
    return Subscription(
        client.connection,
        client.inbox,
        client.log,
        check_token("subscription", name),
        config,
        leases=client.reader_leases,
    )


def open_events(client: Client, options: EventOptions) -> EventStream:
    """Return stored events; see `Ledger.events`.

    Raises: InvalidError.
    """
    chosen: dict[str, Any] = dict(options)
    name = chosen.pop("durable", None)
    if name is not None:
        config = configured(chosen)
        check_token("subscription", name)

        async def begin_durable(closing: contextlib.AsyncExitStack) -> AsyncGenerator[StoredEvent, None]:
            subscription = Subscription(
                client.connection, client.inbox, client.log, name, config, leases=client.reader_leases
            )
            await closing.enter_async_context(subscription)
            return _one_by_one(subscription)

        return EventStream(begin_durable)
    misplaced = [option for option in _OF_A_DURABLE if option in chosen]
    if misplaced:
        raise InvalidInputError(f"{misplaced[0]} is for durable subscriptions: give durable= a name as well")
    config = configured(chosen)
    if config.start.live and not config.follow:
        raise InvalidInputError("live=True with follow=False would end before anything could come")

    async def begin(_: contextlib.AsyncExitStack) -> AsyncGenerator[StoredEvent, None]:
        return await _begin(client, config)

    return EventStream(begin)


async def _one_by_one(subscription: Subscription) -> AsyncGenerator[StoredEvent, None]:
    """Acknowledge each event when the next one is asked for; if the caller leaves, the current event is given back."""
    try:
        async for delivery in subscription:
            yield delivery.stored
            await delivery.ack()
    finally:
        await subscription.close()  # also if the garbage collector ends a stream that nobody closed


async def _begin(client: Client, config: SubscriptionConfig) -> AsyncGenerator[StoredEvent, None]:
    subjects = None if config.filter.is_everything else config.filter.subjects(client.log.names)
    batches = await read_from(client, config.start, subjects, follow=config.follow)
    # Held by the generator, so that a stream that nobody closed gives it back, too.
    held = client.reader_leases.held("follower") if config.follow else contextlib.nullcontext()
    return _fitting(batches, config, held)


async def read_from(
    client: Client, start: Start, subjects: tuple[str, ...] | None, *, follow: bool
) -> AsyncGenerator[list[Message], None]:
    """Fix both ends of the range and return its batches; no event between this call and the first read is missed.

    `subjects`: filters that do not overlap; None: everything, and then the sequences must be dense.

    Raises: InvalidInputError for a start beyond the ledger's end, SequenceGapError, UnreachableError.
    """
    names, head = client.log.names, await check_begin(start, client.log)
    first = head.last_sequence + 1 if start.live else start_of(head, start.from_sequence or 1)
    feed = OrderedReader(
        client.connection,
        client.inbox,
        names.ledger_stream,
        from_sequence=first,
        from_time=start.since,
        subject=subjects,
        dense=subjects is None,
    )
    return feed.batches(until=None if follow else head.last_sequence)


async def _fitting(
    batches: AsyncGenerator[list[Message], None],
    config: SubscriptionConfig,
    held: contextlib.AbstractAsyncContextManager[None],
) -> AsyncGenerator[StoredEvent, None]:
    async with held, contextlib.aclosing(only_jobs(batches)) as jobs:
        async for batch in jobs:
            for stored in batch:
                if config.filter.fits(stored):
                    yield stored
