"""The ticker: makes the jobs of schedules whose timers are due. Source: ADR 021."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import InvalidInputError, LedgerThrottledError, WrongSequenceError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.nats.consumer import growing_s
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.schedules.changes import KnownSchedule, known_from
from jobledger.ledger.timers import ScheduleTimer, Timers
from jobledger.workers.reactors.lag import lagging
from jobledger.workers.reactors.reactor import Later

# Joint lookups of jobs' first events: one request for many schedules that tick at one moment.

#: Lookups within this time share one request; it is short beside the time before a tick.
_TOGETHER_S: Final = 0.02
#: Most subjects of one request to `Log.present`.
_SUBJECTS_MAX: Final = 1_000


class Looks:
    """Looks up which subjects are in use, with one request for all callers within a moment."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._subjects: list[str] = []
        self._next: asyncio.Task[set[str]] | None = None  # the next request, not sent yet

    async def present(self, subjects: Sequence[str]) -> set[str]:
        """Return the answer of `Log.present`, perhaps with subjects of other callers.

        Raises: UnreachableError.
        """
        if self._next is None or len(self._subjects) + len(subjects) > _SUBJECTS_MAX:
            self._subjects = []
            self._next = asyncio.create_task(self._ask(self._subjects))
            self._next.add_done_callback(_hear_of)
        self._subjects += subjects
        return await asyncio.shield(self._next)  # other callers wait for the same answer

    async def _ask(self, subjects: list[str]) -> set[str]:
        await asyncio.sleep(_TOGETHER_S)
        if self._subjects is subjects:
            self._next = None
        return await self._log.present(subjects)


def _hear_of(asked: asyncio.Task[set[str]]) -> None:
    """Retrieve a failure whose callers are all gone, so that asyncio does not report it."""
    if not asked.cancelled():
        asked.exception()


logger = logging.getLogger("jobledger.workers.reactors.schedules")

_AT_ONCE: Final = 256
_ROOM_PAUSE_S: Final = 5.0  # pause before a tick is tried again in a ledger that takes no new jobs
#: Most schedules whose newest events are kept, and most bytes of such an event.
_KNOWN_MAX: Final = 1_000
_KNOWN_BYTES_MAX: Final = 8 << 10


class Ticker:
    """Acts on the timers of schedules; one per process.

    It keeps the newest events that it has seen. An outdated one costs a refused append, but never a wrong tick, since
    every append is conditional on it.
    """

    def __init__(self, ledger: Ledger, timers: Timers) -> None:
        self._ledger = ledger
        self._timers = timers
        self._schedules = ledger.schedules
        self._known: dict[str, KnownSchedule] = {}
        self._looks = Looks(ledger.log)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._told: set[str] = set()

    def heard(self, message: Message) -> None:
        """Note a schedule's event, so that it need not be read when the schedule is due."""
        (name,) = SCHEDULE.key_in(message.subject)
        known = self._known.get(name)
        if known is None or known.sequence < message.stream_sequence:
            self._keep(name, known_from(message))

    async def prepare(self, timer: ScheduleTimer) -> None:
        """Read a schedule that is about to tick, and make missing jobs, so that the tick itself is quick.

        Raises: LedgerFullError, UnreachableError, CorruptLedgerError.
        """
        known = self._known.get(timer.schedule)
        if known is None or known.sequence < timer.asked_by:
            known = await self._schedules.read(timer.schedule)
        if not known.whole:
            known = await self._schedules.healed(known, self._looks.present)
        self._keep(timer.schedule, known)

    async def tick(self, timer: ScheduleTimer, delivery: Delivery) -> Later | None:
        """Make missing jobs of the schedule's newest event, then tick if that event asked for this tick.

        A machine that does not know the schedule's time zone gives the delivery back, for a worker elsewhere.

        Raises: LedgerFullError, UnreachableError, CorruptLedgerError.
        """
        throttle = self._ledger.throttle
        if not throttle.passes(0):
            try:
                await throttle.require(0)
            except LedgerThrottledError:
                return Later(_ROOM_PAUSE_S)
        async with self._turns:
            known = self._known.get(timer.schedule)
            if known is None or known.sequence < timer.asked_by:
                known = await self._schedules.read(timer.schedule)
            try:
                return await self._tick(timer, delivery, known)
            except WrongSequenceError:  # the schedule has gone on, and another timer asks for its next tick
                self._known.pop(timer.schedule, None)
                self._keep(timer.schedule, await self._heal(timer.schedule))
                return None
            except InvalidInputError as error:
                self._tell(f"{error}; until then other workers make the ticks of schedule {timer.schedule}")
                return Later(growing_s(delivery.delivered))

    def _tell(self, sentence: str) -> None:
        if sentence not in self._told:  # the delivery comes again and again, but is logged once
            self._told.add(sentence)
            logger.error("%s", sentence)

    async def _heal(self, name: str) -> KnownSchedule:
        return await self._schedules.healed(await self._schedules.read(name))

    async def _tick(self, timer: ScheduleTimer, delivery: Delivery, known: KnownSchedule) -> Later | None:
        name, schedule = timer.schedule, known.schedule
        if known.sequence < timer.asked_by:
            return await lagging(self._ledger, timer, delivery)
        if schedule is None or known.sequence > timer.asked_by or schedule.next_at is None:
            self._keep(name, await self._schedules.healed(known))
            return None
        if schedule.next_at > timer.due_at:  # this timer was only for the jobs of its newest event
            self._keep(name, await self._schedules.healed(known))
            later = ScheduleTimer(schedule=name, asked_by=timer.asked_by, due_at=schedule.next_at)
            await self._timers.set(later, self._ledger.clock.now())
            return None
        self._keep(name, await self._schedules.tick(name, known))
        return None

    def _keep(self, name: str, known: KnownSchedule) -> None:
        self._known.pop(name, None)  # the newest ones are last
        if len(known.view.last_data) <= _KNOWN_BYTES_MAX:
            self._known[name] = known
        if len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]
