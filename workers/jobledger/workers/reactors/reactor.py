"""Reactors: they read the ledger, or advisories and timers of the server, and append to the ledger.

Several processes run the same reactor and share its durable consumer; none is special or elected. If two of them do the
same at once, the ledger accepts it once, since every append is conditional.
"""

from __future__ import annotations

import abc
import asyncio
import functools
import logging
from typing import Any, Final, Protocol

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    KeyUnavailableError,
    LedgerError,
    LedgerFullError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.subjects import fits
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.consumer import ACK, ConsumerLoop, HeldDeliveries, Source, growing_s, nak, tell
from jobledger.ledger.nats.durables import ensure_consumer, reactor_consumer
from jobledger.ledger.nats.pull import Delivery
from jobledger.workers.services import end, outlive

logger = logging.getLogger("jobledger.workers.reactors.reactor")

IN_FLIGHT_MAX: Final = 256
#: How long the server waits for the process that has a delivery before another one gets it, so a delivery of a process
#: that died or froze is late by this time. A living process extends its deliveries every third of this time.
ACK_WAIT_S: Final = 2.0
_LOOK_EVERY_S: Final = 10.0
_FULL_DELAY_S: Final = 1.0
_UNREADABLE_DELAY_S: Final = 30.0
#: Number of deliveries, and pause between them, for which a message that only a later version asked for is left to
#: others.
_FOREIGN_DELIVERIES_MAX: Final = 12
_FOREIGN_DELAY_S: Final = 10.0


class Reactor(Protocol):
    """The interface of a reactor that a worker hosts."""

    name: str

    async def run(self) -> None:
        """React until cancelled; it survives losses of connection, server, stream and consumer."""
        ...


class Later(msgspec.Struct, frozen=True):
    """A value that `react` returns to get the same delivery again, here or in another process."""

    delay_s: float


class ConsumerReactor(abc.ABC):
    """A reactor on one consumer: it pulls deliveries while there is room, extends them, and settles them after `react`.

    A subclass defines its source (`find`) and the handling of one delivery (`react`). Deliveries come at least once, in
    no order, up to `in_flight_max` at a time in this process and more in others, so `react` must accept a delivery that
    was handled before. Its errors are logged and the delivery comes again: soon after a lost race or connection, after
    1 s from a full ledger, after 30 s if something cannot be read, after up to 30 s for any other error. There is no
    limit to deliveries.
    """

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        ack_wait_s: float = ACK_WAIT_S,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self._loop = ledger.connection.loop
        self._ack_wait_s = ack_wait_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._own: tuple[str, ...] = ()  # the filters, if the consumer delivers more
        self._held = HeldDeliveries[str](ledger.connection, ack_wait_s)  # by ack subject
        self._taking = ConsumerLoop(
            ledger.connection,
            f"reactor {name}",
            held=self._held,
            in_flight_max=in_flight_max,
            on_delivery=self._on_delivery,
        )

    @abc.abstractmethod
    async def find(self) -> Source:
        """Make or check the stream to read, and return the source to pull from.

        It is called at the start, after every loss, and every 10 s, so it must be cheap. A different answer makes the
        reactor change to the new consumer, which the caller makes.

        Raises: UnreachableError, JetStreamDisabledError: `find` is called again; any other error ends `run`.
        """

    @abc.abstractmethod
    async def react(self, delivery: Delivery) -> Later | None:
        """Handle one delivery; return None once it is done, and the log has accepted each append."""

    def keep(self, delivery: Delivery) -> Delivery | None:
        """Return the part of a delivery that `react` needs, since it may have to wait; None acknowledges it at once.

        The connection's reader calls it, so it must be quick. Its exceptions are handled like those of `react`.
        """
        return delivery

    def settings(self, source: Source) -> dict[str, Any]:
        """Return the settings of the consumer, which is made with them if it is missing."""
        return reactor_consumer(source.filters, ack_wait_s=self._ack_wait_s)

    def look_again(self) -> None:
        """Make the reactor call `find` now, because its source was replaced."""
        self._taking.lose()

    async def run(self) -> None:
        """React until cancelled; deliveries on hand are then given back.

        Raises: ConnectionLostError if the connection is closed for good, StreamMismatchError.
        """
        name = f"keep-alive of reactor {self.name}"
        # Most deliveries are settled soon: an extension would cost as much as the acknowledgement.
        keep_alive = functools.partial(self._held.keep_alive, quiet_s=self._ack_wait_s / 3)
        keeping = self._loop.create_task(outlive(self.ledger.connection, name, keep_alive), name=name)
        try:
            await self._taking.run(self.find, ready=self._ensure, look_every_s=_LOOK_EVERY_S)
        finally:
            keeping.cancel()
            await self._give_back()

    async def _ensure(self, source: Source) -> None:
        settings = self.settings(source)
        found = await ensure_consumer(
            self.ledger.inbox, source.stream, source.consumer, settings, own_ack_wait=True
        )
        has_more = len(source.filters) > 1 and set(found.filters) > set(source.filters)
        self._own = source.filters if has_more else ()

    def _leave(self, delivery: Delivery) -> bool:
        """Leave a message to processes of the later version that asked for it; if none takes it, acknowledge it."""
        subject = delivery.subject.decode()
        if any(fits(subject, own) for own in self._own):
            return False
        is_last = delivery.delivered >= _FOREIGN_DELIVERIES_MAX
        tell(self.ledger.connection, delivery, ACK if is_last else nak(_FOREIGN_DELAY_S))
        return True

    def _on_delivery(self, delivery: Delivery) -> None:
        if self._own and self._leave(delivery):
            return
        problem: LedgerError | None = None
        kept: Delivery | None = delivery
        try:
            kept = self.keep(delivery)
        except LedgerError as error:
            problem = error
        if kept is None:
            tell(self.ledger.connection, delivery, ACK)
            return
        self._held.hold(kept.reply, kept)
        task = self._loop.create_task(self._handle(kept, problem))
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._taking.wake()

    async def _handle(self, delivery: Delivery, problem: LedgerError | None) -> None:
        """Settle one delivery by the result of `react`; raises nothing but cancellation."""
        try:
            if problem is not None:
                raise problem  # noqa: TRY301 - logged and settled below like any other
            verdict = await self.react(delivery)
        except KeyUnavailableError as error:  # another process may have the key
            level = self.ledger.connection.outage.level(error)
            logger.log(level, "reactor %s leaves sealed values to others: %s", self.name, error)
            verdict = Later(growing_s(delivery.delivered))
        except (UnreachableError, WrongSequenceError, ConnectionLostError) as error:
            logger.debug(
                "reactor %s: stream sequence %d later: %s", self.name, delivery.stream_sequence, error
            )
            verdict = Later(growing_s(delivery.delivered))
        except LedgerFullError as error:
            logger.log(self.ledger.connection.outage.level(error), "reactor %s: %s", self.name, error)
            verdict = Later(_FULL_DELAY_S)
        except CorruptLedgerError as error:
            logger.error("reactor %s: %s", self.name, error)  # noqa: TRY400 - a sentence
            verdict = Later(_UNREADABLE_DELAY_S)
        except Exception:  # after any error the delivery is given back: one that is kept is never redelivered
            logger.exception("reactor %s: stream sequence %d", self.name, delivery.stream_sequence)
            verdict = Later(growing_s(delivery.delivered))
        self._held.settle(delivery.reply, ACK if verdict is None else nak(verdict.delay_s))

    async def _give_back(self) -> None:
        """Stop all work, and give its deliveries to others at once."""
        await end(*self._tasks)
        self._held.give_back()


async def host(ledger: Ledger, reactor: Reactor) -> None:
    """Run a reactor until cancelled, and after a failure again after a pause; a failure never ends the worker.

    It returns only when the connection is closed for good, which the worker notices by itself.
    """
    await outlive(ledger.connection, f"reactor {reactor.name}", reactor.run)
