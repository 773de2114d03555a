"""Reactors: they read the ledger, or advisories and timers of the server, and append to the ledger.

Several processes run the same reactor and share its durable consumer; none is special, none is elected. Whatever
two of them do at once the ledger accepts once, since every append is conditional.
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
#: How long the server waits for the process that has a delivery before another gets it: so late is a delivery whose
#: process died or froze. A living process keeps its deliveries alive every third of this time.
ACK_WAIT_S: Final = 2.0
_LOOK_EVERY_S: Final = 10.0
_FULL_DELAY_S: Final = 1.0
_UNREADABLE_DELAY_S: Final = 30.0
#: How often, and how long after each other, a message that only a later version asked for is left to others.
_FOREIGN_DELIVERIES_MAX: Final = 12
_FOREIGN_DELAY_S: Final = 10.0


class Reactor(Protocol):
    """What a worker hosts."""

    name: str

    async def run(self) -> None:
        """React until cancelled; outlives losses of connection, server, stream and consumer by itself."""
        ...


class Later(msgspec.Struct, frozen=True):
    """What `react` returns to have the same delivery again, here or in another process."""

    delay_s: float


class ConsumerReactor(abc.ABC):
    """A reactor on one consumer: pulls what there is room for, keeps it alive, settles it after `react`.

    A subclass says what it reads (`find`) and what it does about one delivery (`react`). At least once, in no
    order, up to `in_flight_max` at a time in this process and more in others: `react` must bear a delivery that
    was dealt with before. What it raises is logged and the delivery comes again: soon after a lost race or
    connection, after 1 s from a full ledger, after 30 s when something cannot be read, growing to 30 s after
    anything else. There is no limit to deliveries.
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
        self._own: tuple[str, ...] = ()  # the filters, where the consumer lets more through
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
        """Make or check the stream that is read, and say what to pull from.

        Called at the start, after every loss, and every 10 s: must be cheap. Another answer than before makes the
        reactor move to the new consumer. The consumer itself is made by the caller.

        Raises: UnreachableError, JetStreamDisabledError: tried again; anything else ends `run`.
        """

    @abc.abstractmethod
    async def react(self, delivery: Delivery) -> Later | None:
        """Deal with one delivery; return None once it is done with, and the log has accepted each append."""

    def keep(self, delivery: Delivery) -> Delivery | None:
        """Return what `react` needs of a delivery, for it may have to wait; None acknowledges it at once.

        Called by the connection's reader: must be quick. An exception of it is dealt with as one of `react`.
        """
        return delivery

    def settings(self, source: Source) -> dict[str, Any]:
        """Return the settings of the consumer, which is made with them where it is missing."""
        return reactor_consumer(source.filters, ack_wait_s=self._ack_wait_s)

    def look_again(self) -> None:
        """Make the reactor call `find` now: something it reads from was replaced."""
        self._taking.lose()

    async def run(self) -> None:
        """React until cancelled; what is on hand then is given back.

        Raises: ConnectionLostError when the connection is closed for good, StreamMismatchError.
        """
        name = f"keep-alive of reactor {self.name}"
        # Most is settled soon: a word of it in between would cost as much as its acknowledgement.
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
        """Leave a message to the processes of a later version that asked for it; where none takes it, nobody needs it."""
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
        """Settle one delivery by what `react` makes of it; never raises but for cancellation."""
        try:
            if problem is not None:
                raise problem  # noqa: TRY301 - told and settled below like any other
            verdict = await self.react(delivery)
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
        except Exception:  # whatever it is, the delivery is given back: one that is kept is never redelivered
            logger.exception("reactor %s: stream sequence %d", self.name, delivery.stream_sequence)
            verdict = Later(growing_s(delivery.delivered))
        self._held.settle(delivery.reply, ACK if verdict is None else nak(verdict.delay_s))

    async def _give_back(self) -> None:
        """Stop what is under way and let others have it at once."""
        await end(*self._tasks)
        self._held.give_back()


async def host(ledger: Ledger, reactor: Reactor) -> None:
    """Run a reactor until cancelled, and again after a pause when it fails; its failure never ends its worker.

    Returns only when the connection is closed for good, which the worker hears of by itself.
    """
    await outlive(ledger.connection, f"reactor {reactor.name}", reactor.run)
