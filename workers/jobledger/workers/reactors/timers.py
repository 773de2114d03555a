"""The timers: reactors that queue waiting jobs and make ticks of schedules at their moments.

Two reactors. One reads the ledger's waits and sets a timer for each in the TIMERS stream; the other receives fired
timers and dispatches their jobs, on condition that the job is still in that wait. So a job that was cancelled or went
on meanwhile stays as it is, and a timer that is received twice is harmless. Timers of schedules go to the ticker.
Source: ADR 009, ADR 021.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import commit, load, retry_raced
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import CancelJob, Dispatch
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    MalformedEventError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)
from jobledger.ledger.nats.consumer import Source
from jobledger.ledger.nats.fleet_clock import ANSWER_S_MAX, FleetClock
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.nats.timer_stream import DUE_CONSUMER, made_at
from jobledger.ledger.timers import (
    AnyTimer,
    DeadlineTimer,
    KnownWaits,
    ScheduleTimer,
    Timer,
    Timers,
    read_timer,
    read_timers,
    timers_in,
)
from jobledger.workers.reactors.lag import lagging
from jobledger.workers.reactors.reactor import ConsumerReactor, Later, Reactor
from jobledger.workers.reactors.schedules.ticker import Ticker

logger = logging.getLogger("jobledger.workers.reactors.timers")

#: Reason of the cancellation of a run whose deadline has come.
DEADLINE: Final = "deadline"

#: Most deliveries on hand; most of these only wait for the last half second, in memory.
_HELD_MAX: Final = 4_096
#: A tick may be late by twice this time, once in each reactor, if a frozen process has both deliveries.
_ACK_WAIT_S: Final = 1.0
_DISPATCHES_MAX: Final = 256
#: A wait that ends within this time gets no timer: the process with the delivery waits itself.
_NEAR_S: Final = 1.0
#: If the server's clock is behind ours by at most this, we wait for it.
_SKEW_S_MAX: Final = 5.0
#: The same if our clock was set by the server's time: half the travel time of that answer.
_TOLD_SKEW_S_MAX: Final = ANSWER_S_MAX / 2
_CLOCK_KEPT_S: Final = 60.0
_SLEEP_S_MAX: Final = 0.5
#: How long before its tick a schedule is prepared.
_READY_BEFORE: Final = timedelta(seconds=0.2)
_WARN_EVERY_S: Final = 60.0
#: Delay and number of deliveries that seem to come from a lost stream of timers.
_OTHER_STREAM_S: Final = 1.0
_OTHER_STREAM_DELIVERIES_MAX: Final = 3


class TwoClocks:
    """The time until a moment by our clock and by the server's; the later one counts.

    The server's clock is known from its stamps on deliveries: it is never behind the newest of them. So a
    job is early by neither clock while they differ by less than five seconds, and late by as much as they differ. A
    fleet's clock was compared with the server's: they differ by at most a second, even before the first delivery.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s = -_SKEW_S_MAX  # lower bound of how far the server's clock is ahead of ours
        self._kept_until = 0.0

    def heard(self, delivery: Delivery) -> None:
        """Note the server's stamp on a delivery that has just arrived."""
        if delivery.delivered > 1:
            return  # on a redelivery the stamp is too old
        self.told(delivery.stored_at)

    def told(self, moment: datetime) -> None:
        """Note a time that the server's clock showed a moment ago."""
        ahead_s = (moment - self._clock.now()).total_seconds()
        monotonic = self._clock.monotonic()
        if ahead_s >= self._ahead_s or monotonic > self._kept_until:
            self._ahead_s = ahead_s
            self._kept_until = monotonic + _CLOCK_KEPT_S

    @property
    def ahead_s(self) -> float:
        """The least that the server's clock is ahead of ours; below 0: the most that it is behind."""
        return self._ahead_s

    @property
    def are_apart(self) -> bool:
        """Whether the clocks differ by more than these reactors can handle."""
        return abs(self._ahead_s) > _SKEW_S_MAX

    def wait_s(self, moment: datetime) -> float:
        """Return the seconds until `moment` by both clocks; 0 or less if it has come."""
        is_told = isinstance(self._clock, FleetClock) and self._clock.is_told
        behind_s = min(max(0.0, -self._ahead_s), _TOLD_SKEW_S_MAX if is_told else _SKEW_S_MAX)
        return (moment - self._clock.now()).total_seconds() + behind_s

    async def reach(self, moment: datetime) -> None:
        """Return when `moment` has come; a clock that is set meanwhile is followed."""
        left_s = self.wait_s(moment)
        while left_s > 0:
            await asyncio.sleep(min(left_s, _SLEEP_S_MAX))
            left_s = self.wait_s(moment)


class Dispatcher:
    """Queues a job whose wait is over; one object per process."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._turns = asyncio.Semaphore(_DISPATCHES_MAX)
        self._known = KnownWaits(ledger.log)

    async def dispatch(self, timer: Timer, delivery: Delivery) -> Later | None:
        """Append `queued` unless the job has gone on; None once that is settled.

        Raises: as `Log`; WrongSequenceError after too many lost races.
        """
        async with self._turns:
            return await self._dispatch(timer, delivery)

    async def end(self, timer: DeadlineTimer, delivery: Delivery) -> Later | None:
        """Cancel a run whose deadline has come, unless it has ended; None once settled. Raises: as `dispatch`."""
        log = self._ledger.log

        async def attempt() -> Later | None:
            chain = await load(log, timer.ref)
            if chain.last_sequence < timer.asked_by:
                return await lagging(self._ledger, timer, delivery)
            try:
                events = decide(chain.job, CancelJob(reason=DEADLINE), self._ledger.stamp())
            except (NotFoundError, RefusedError):
                return None  # it has ended, or will end already
            await commit(log, chain, events)
            self._ledger.hints.tell_cancel(timer.ref)
            return None

        async with self._turns:
            return await retry_raced(attempt)

    async def _dispatch(self, timer: Timer, delivery: Delivery) -> Later | None:
        log = self._ledger.log
        command = Dispatch(cause=timer.cause, asked_by=timer.asked_by)
        has_lost = False  # after a lost race the events of the wait's beginning are not enough

        async def attempt() -> Later | None:
            nonlocal has_lost
            chain = await self._known.chain(timer, whole=has_lost)
            has_lost = True
            if chain is None:
                return None
            # Either a replica lags behind, or the timer is from another ledger.
            if chain.last_sequence < timer.asked_by:
                return await lagging(self._ledger, timer, delivery)
            try:
                events = decide(chain.job, command, self._ledger.stamp())
            except (NotFoundError, RefusedError):
                return None  # cancelled, run by a person, or dispatched by another process
            await commit(log, chain, events)
            return None

        return await retry_raced(attempt)


class TimerActor:
    """Waits for a timer's moment, then acts on it by its kind."""

    def __init__(self, clocks: TwoClocks, dispatcher: Dispatcher, ticker: Ticker) -> None:
        self._clocks = clocks
        self._dispatcher = dispatcher
        self._ticker = ticker

    def heard(self, message: Message) -> None:
        """Note an event of a schedule."""
        self._ticker.heard(message)

    async def on(self, timer: AnyTimer, delivery: Delivery) -> Later | None:
        """Act on a timer; None once it is settled. Raises: as `Log`; WrongSequenceError after too many lost races."""
        if isinstance(timer, Timer):
            await self._clocks.reach(timer.due_at)
            return await self._dispatcher.dispatch(timer, delivery)
        if isinstance(timer, DeadlineTimer):
            await self._clocks.reach(timer.due_at)
            return await self._dispatcher.end(timer, delivery)
        # Many schedules tick at one moment, so prepare as much as possible before.
        await self._clocks.reach(timer.due_at - _READY_BEFORE)
        await self._ticker.prepare(timer)
        await self._clocks.reach(timer.due_at)
        return await self._ticker.tick(timer, delivery)


class TimerSetter(ConsumerReactor):
    """Sets a timer for each wait in the ledger; acts itself on waits that are due soon or overdue."""

    def __init__(self, ledger: Ledger, timers: Timers, clocks: TwoClocks, acting: TimerActor) -> None:
        super().__init__(ledger, "timer-setter", in_flight_max=_HELD_MAX, ack_wait_s=_ACK_WAIT_S)
        self._timers = timers
        self._clocks = clocks
        self._acting = acting
        self._turns = asyncio.Semaphore(_DISPATCHES_MAX)
        self.timers_id = ""  #: the id of the stream in which timers are set

    async def find(self) -> Source:
        """Find the timers' stream; a new one is filled from the ledger's beginning, by a new consumer."""
        names = self.ledger.names
        timers_id = await self._timers.ensure()
        if timers_id != self.timers_id:
            if self.timers_id:
                logger.warning("the timers' stream was made again: setting all timers again")
            await self._timers.remove_older_consumers(timers_id)
            # Set only now, so that after a failed removal the next look tries again.
            self.timers_id = timers_id
        return Source(
            stream=names.ledger_stream, consumer=names.timers_consumer(timers_id), filters=names.timed_waits
        )

    def keep(self, delivery: Delivery) -> Delivery | None:
        """Keep the timer only: thousands may wait here, and an event contains the job's input."""
        message = delivery.read()
        timers = timers_in(message)
        if not timers:
            return None
        if any(isinstance(each, ScheduleTimer) for each in timers):
            self._acting.heard(message)
        self._clocks.heard(delivery)
        return msgspec.structs.replace(delivery, data=msgspec.json.encode(timers))

    async def react(self, delivery: Delivery) -> Later | None:
        """Set the timers of one event: of a wait, and of a deadline."""
        later: Later | None = None
        for timer in read_timers(delivery.data):
            later = await self._see_to(timer, delivery) or later
        return later

    async def _see_to(self, timer: AnyTimer, delivery: Delivery) -> Later | None:
        if self._clocks.wait_s(timer.due_at) > _NEAR_S:
            await self._set(timer)
            return None
        return await self._acting.on(timer, delivery)

    async def _set(self, timer: AnyTimer) -> None:
        try:
            async with self._turns:
                await self._timers.set(timer, self.ledger.clock.now())
        except UnreachableError:
            self.look_again()  # the timers' stream may be gone
            raise


class _DueTimers(ConsumerReactor):
    """Receives fired timers, waits for the rest of their time, and acts on them."""

    def __init__(
        self,
        ledger: Ledger,
        timers: Timers,
        clocks: TwoClocks,
        acting: TimerActor,
        *,
        setter: TimerSetter,
    ) -> None:
        super().__init__(ledger, "due-timers", in_flight_max=_HELD_MAX, ack_wait_s=_ACK_WAIT_S)
        self._timers = timers
        self._clocks = clocks
        self._acting = acting
        self._setter = setter
        self._warn_at = 0.0

    async def find(self) -> Source:
        """Find the timers' stream, and tell the setter of timers if it is another one."""
        timers_id = await self._timers.ensure()
        if self._setter.timers_id not in ("", timers_id):
            self._setter.look_again()
        names = self.ledger.names
        return Source(stream=names.timers_stream, consumer=DUE_CONSUMER, filters=(names.timers_due,))

    async def react(self, delivery: Delivery) -> Later | None:
        """Act on one fired timer, once its moment has come by both clocks."""
        verdict = await self._react(delivery)
        return Later(_OTHER_STREAM_S) if verdict is None and self._is_of_another_stream(delivery) else verdict

    def _is_of_another_stream(self, delivery: Delivery) -> bool:
        """Return whether a delivery seems to come from a timers' stream that is gone.

        The server matches an ack by stream sequence alone, so an ack would remove another timer from the new stream. A
        nak only makes that timer be delivered again. After a few deliveries an ack is sent after all: a server's clock
        that was set back makes timers look older than their stream.
        """
        if not self._setter.timers_id or delivery.delivered > _OTHER_STREAM_DELIVERIES_MAX:
            return False
        return delivery.stored_at < made_at(self._setter.timers_id)

    async def _react(self, delivery: Delivery) -> Later | None:
        try:
            timer = read_timer(delivery.data)
        except MalformedEventError as error:
            logger.error("%s: dropped", error)  # noqa: TRY400 - a sentence
            return None
        self._clocks.heard(delivery)
        left_s = self._clocks.wait_s(timer.due_at)
        if left_s > _NEAR_S:
            return await self._too_early(timer, delivery, left_s)
        return await self._acting.on(timer, delivery)

    async def _too_early(self, timer: AnyTimer, delivery: Delivery, left_s: float) -> Later | None:
        """Set a timer again if it is early by the server's clock, too; else a clock is wrong, perhaps only ours."""
        if (timer.due_at - delivery.stored_at).total_seconds() > _NEAR_S:
            await self._timers.set(timer, self.ledger.clock.now())
            return None
        monotonic = self.ledger.clock.monotonic()
        if monotonic >= self._warn_at:
            self._warn_at = monotonic + _WARN_EVERY_S
            self._warn(timer, left_s)
        return Later(min(left_s, _SKEW_S_MAX))

    def _warn(self, timer: AnyTimer, left_s: float) -> None:
        logger.warning(
            "%s fired %.1f s early by this machine's clock: are the clocks in step?", timer, left_s
        )


def timer_reactors(ledger: Ledger) -> list[Reactor]:
    """Return both reactors of one process."""
    timers = Timers(ledger.connection, ledger.inbox, ledger.names, ledger.config)
    clocks = TwoClocks(ledger.clock)
    acting = TimerActor(clocks, Dispatcher(ledger), Ticker(ledger, timers))
    setter = TimerSetter(ledger, timers, clocks, acting)
    return [setter, _DueTimers(ledger, timers, clocks, acting, setter=setter)]
