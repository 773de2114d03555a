"""Taking work: which consumer is asked for how much, in which order, and what is kept alive meanwhile.

A worker asks for no more than its free slots, so a busy one holds no job that an idle one
could do; only an empty lane has a standing request for one message, which goes back if no slot is free then.
It asks high, then normal, then low; but every sixteenth request goes to the lowest priority, for an eighth of
the free slots. Queues share the slots of a priority by their weights. Deliveries on hand, waiting or running, are
kept alive by +WPI every third of the ack wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    LedgerError,
    PermissionRefusedError,
    UnreachableError,
)
from jobledger.ledger.model.events import PRIORITIES, Priority
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.consumer import ACK, HeldDeliveries, keep_serving, nak, woken
from jobledger.ledger.nats.durables import consumer_config, ensure_consumer
from jobledger.ledger.nats.pauses import work_maker
from jobledger.ledger.nats.pull import Delivery, Ended, PullConsumer
from jobledger.ledger.nats.streams import find_stream
from jobledger.workers.attempt.settlement import Settlement
from jobledger.workers.config import WorkerConfig

logger = logging.getLogger("jobledger.workers.attempt.intake")

_LOOK_EVERY_S: Final = 1.0
_LOOK_AGAIN_S: Final = 10.0  # for a consumer that something is wrong with
_ON_ITS_WAY_S: Final = 2.0  # that a stop waits for deliveries on their way
_PROBE_MAX: Final = 512  # messages asked for in one probe
_FAIR_EVERY: Final = 16
_CREDIT_MAX: Final = 10_000.0
_FAIR_SHARE: Final = 8
_NANOSECONDS: Final = 1_000_000_000


class Lane:
    """One queue at one priority: a durable consumer, and what it is asked for at present."""

    def __init__(self, queue: str, priority: Priority, weight: int, consumer: PullConsumer) -> None:
        self.queue = queue
        self.priority: Priority = priority
        self.weight = weight
        self.credit = 0.0  #: slots it is owed by the other lanes of its priority
        self.consumer = consumer
        self.empty = False  # it had nothing when it was last asked
        self.lost = True  # the consumer has to be looked for
        self.look_at = 0.0  # not before this loop time
        self.ack_wait_s = math.inf  # of the consumer, once it is known


def next_lane(tier: list[Lane], wanted: int) -> tuple[Lane, int]:
    """Return which of the lanes of one priority is asked next, and for how many of `wanted` free slots.

    Deficit round robin: a lane that is asked owes that amount to the others by their weights, so the slots over time
    are in the proportion of the weights, for one free slot at a time as for a hundred at once.
    """
    if len(tier) == 1:
        return tier[0], wanted
    total = sum(lane.weight for lane in tier)
    chosen = max(tier, key=lambda lane: lane.credit)
    amount = min(wanted, max(1, round(wanted * chosen.weight / total), int(chosen.credit)))
    for lane in tier:
        lane.credit = min(lane.credit + amount * lane.weight / total, _CREDIT_MAX)
    chosen.credit = max(chosen.credit - amount, -_CREDIT_MAX)
    return chosen, amount


class Intake:
    """Asks the consumers of some queues for work and settles what was delivered.

    `on_work` gets each delivery, from the connection's reader: it starts it or gives it back. `free` says how many more
    could start now. `built_in`: queues of the ledger's own runs, which have one priority.
    """

    def __init__(
        self,
        ledger: Ledger,
        config: WorkerConfig,
        queues: tuple[str, ...],
        *,
        built_in: tuple[str, ...] = (),
        free: Callable[[], int],
        on_work: Callable[[Delivery], None],
    ) -> None:
        self._ledger = ledger
        self._connection = ledger.connection
        self._config = config
        self._free = free
        self._on_work = on_work
        self._wake = asyncio.Event()
        self.wake = self._wake.set  #: says that a slot became free
        self._look_at = 0.0  # loop time of the next look at what is silent
        self._was_answered = False  # a request, by the server
        self._has_lost = False  # one of the lanes has to be looked for
        self._round = 0
        self._portion = max(1, config.concurrency // 4)
        # By ack subject. Its ack wait is the shortest of the consumers', once they are found.
        self._held = HeldDeliveries[str](ledger.connection, config.ack_wait_s)
        self.deliveries = 0  #: messages that came
        self.redeliveries = 0  #: of them, those that JetStream had handed out before
        self._lanes: list[Lane] = []
        for priority in PRIORITIES:
            self._lanes += [self._lane(queue, priority) for queue in queues]
            if priority == "normal":
                self._lanes += [self._lane(queue, priority) for queue in built_in]

    def _lane(self, queue: str, priority: Priority) -> Lane:
        names = self._ledger.names

        def on_delivery(delivery: Delivery) -> None:
            lane.empty = False
            self._held.hold(delivery.reply, delivery)
            self.deliveries += 1
            if delivery.delivered > 1:
                self.redeliveries += 1
            self._on_work(delivery)
            self._wake.set()

        def on_ended(ended: Ended) -> None:
            lane.empty = ended == "empty"
            self._was_answered = self._was_answered or lane.empty
            if ended == "lost":
                lane.lost = self._has_lost = True
            self._wake.set()

        consumer = PullConsumer(
            self._connection,
            names.ledger_stream,
            names.consumer(queue, priority),
            on_delivery=on_delivery,
            on_ended=on_ended,
        )
        lane = Lane(queue, priority, self._config.weights.get(queue, 1), consumer)
        return lane

    async def open(self) -> None:
        """Make or check the consumers and listen for them.

        Raises: StreamMismatchError, UnreachableError.
        """
        for lane in self._lanes:
            await self._find(lane)
            await lane.consumer.open()

    async def _find(self, lane: Lane) -> None:
        names = self._ledger.names
        found = await ensure_consumer(
            self._ledger.inbox,
            names.ledger_stream,
            names.consumer(lane.queue, lane.priority),
            consumer_config(
                names.dispatches(lane.queue, lane.priority),
                ack_wait_s=self._config.ack_wait_s,
                ack_pending_max=self._config.ack_pending_max,
            ),
            make=work_maker(self._ledger.log, lane.queue),
        )
        lane.empty = found.paused  # there is nothing to be had before the end of the pause
        # Another process may have made the consumer with another ack wait: the server's value counts.
        lane.ack_wait_s = int(found.config.get("ack_wait", 0)) / _NANOSECONDS or self._config.ack_wait_s
        self._held.ack_wait_s = min(each.ack_wait_s for each in self._lanes)
        lane.lost = False

    async def close(self) -> None:
        """Ask for nothing any more, and take what is on its way, so that it is given back.

        If the server does not answer in time, other workers get that only after an ack wait.
        """
        if self.asked:
            for lane in self._lanes:
                await lane.consumer.end()
            # The server answers after it has sent the messages that were on their way.
            with contextlib.suppress(LedgerError, ConnectionLostError, TimeoutError):
                async with asyncio.timeout(_ON_ITS_WAY_S):
                    await find_stream(self._ledger.inbox, self._ledger.names.ledger_stream)
        for lane in self._lanes:
            await lane.consumer.close()

    @property
    def held(self) -> int:
        """How many deliveries are on hand, running ones included, and not yet settled."""
        return len(self._held)

    @property
    def asked(self) -> int:
        """How many messages are asked for and have not come, one for each empty lane included."""
        return sum(lane.consumer.asked for lane in self._lanes)

    async def run(self) -> None:
        """Ask for work until cancelled; outlives every loss of connection, server and consumer.

        Raises: ConnectionLostError when the connection is closed for good, PermissionRefusedError as `_look_for`.
        """
        await keep_serving(self._connection, self._serve)

    async def _serve(self) -> bool:
        """Find the lanes that were lost, and ask for work until another one is."""
        for lane in self._lanes:
            if lane.lost:
                await self._look_for(lane)
        self._has_lost = self._has_due()  # perhaps one was lost while another was looked for
        while not self._has_lost:
            self._wake.clear()
            if not self._ask():
                await woken(self._wake)
                self._notice_silence()
        return False

    async def _look_for(self, lane: Lane) -> None:
        """Find a lane that was lost; a fault of its consumer alone does not stop the other lanes.

        Raises: UnreachableError, JetStreamDisabledError; PermissionRefusedError before the server ever answered a
            request of ours: this user may not take jobs.
        """
        lane.consumer.forget()
        lane.empty = False
        try:
            lane.consumer.require_right()
            await self._find(lane)
        except (UnreachableError, JetStreamDisabledError):
            raise
        except LedgerError as error:
            if isinstance(error, PermissionRefusedError) and not (self._was_answered or self.deliveries):
                raise
            logger.error(  # noqa: TRY400 - a sentence
                "no jobs of queue %s (%s) are taken for %g s: %s",
                lane.queue,
                lane.priority,
                _LOOK_AGAIN_S,
                error,
            )
            lane.look_at = self._connection.loop.time() + _LOOK_AGAIN_S

    def pause(self, queue: str) -> None:
        """Ask for nothing of a queue that is paused, but leave a request standing for its end."""
        for lane in self._lanes:
            if lane.queue == queue:
                if lane.consumer.probed:
                    lane.consumer.forget()
                lane.empty = True
        self.wake()

    def resume(self, queue: str) -> None:
        """Ask for a job of a resumed queue: a further request makes the server look at once, not within a second."""
        for lane in self._lanes:
            if lane.queue == queue and lane.consumer.standing and lane.consumer.free and self._free() > 0:
                with contextlib.suppress(ConnectionLostError):
                    lane.consumer.request(1)

    def _has_due(self) -> bool:
        now = self._connection.loop.time()
        return any(lane.lost and lane.look_at <= now for lane in self._lanes)

    def _ask(self) -> bool:
        """Send the next request if one is due; return whether one was.

        Requests overlap: while one is served, slots that became free meanwhile are asked for by the next, in
        portions worth a message. A lane that had nothing is left waiting at the server, so it need not be asked
        again to know that it comes first.
        """
        on_the_way = sum(lane.consumer.probed for lane in self._lanes)
        wanted = self._free() - on_the_way
        if wanted <= 0 or (on_the_way and wanted < self._portion):
            return False
        candidates = [
            lane
            for lane in self._lanes
            if not lane.consumer.standing and lane.consumer.free and not lane.lost
        ]
        if not candidates:
            return False
        tier = [lane for lane in candidates if lane.priority == candidates[0].priority]
        empty = next((lane for lane in tier if lane.empty), None)
        if empty is not None:
            empty.empty = False
            empty.consumer.wait_for(1)
            return True
        self._round += 1
        if self._round % _FAIR_EVERY == 0:
            tier = [lane for lane in candidates if lane.priority == candidates[-1].priority]
            wanted = max(1, wanted // _FAIR_SHARE)
        lane, amount = next_lane(tier, wanted)
        lane.consumer.request(min(amount, _PROBE_MAX))
        return True

    def _notice_silence(self) -> None:
        """Give up on consumers that owe an answer for too long, so that they are looked for."""
        now = self._connection.loop.time()
        if now < self._look_at:  # called with every packet
            return
        self._look_at = now + _LOOK_EVERY_S
        self._has_lost = self._has_lost or self._has_due()
        silent = [lane for lane in self._lanes if lane.consumer.is_silent]
        for lane in silent:
            lane.lost = self._has_lost = True
        if silent:
            names = ", ".join(f"{lane.queue} ({lane.priority})" for lane in silent)
            logger.info("consumers are silent and looked for: %s", names)

    # The methods below settle deliveries. Nothing depends on a settlement: the ledger decides.

    async def keep_alive(self) -> None:
        """Tell the broker, until cancelled, that what is on hand is still on hand."""
        await self._held.keep_alive()

    def is_fresh(self, delivery: Delivery) -> bool:
        """Return whether the broker can still take the delivery to be ours."""
        return self._held.is_fresh(delivery.reply)

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Let a delivery go, and tell the broker what becomes of it."""
        match settlement.word:
            case "ack":
                self._held.settle(delivery.reply, ACK)
            case "nak":
                self._held.settle(delivery.reply, nak(settlement.delay_s))
            case _:
                self._held.drop(delivery.reply)
