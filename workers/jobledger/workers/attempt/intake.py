"""The intake of work: it chooses which consumer to ask for how many jobs, and keeps deliveries alive.

A worker asks for no more than its free slots and, while jobs are short, for what it begins in the next moment
(`at_hand`), so a busy worker holds no job that an idle one could do. Only an empty lane has a waiting request, for one
message, which is given back if there is no room for it then. It asks high, then normal, then low; but every sixteenth
request goes to the lowest priority, for an eighth of the free slots. Queues share the slots of a priority by their
weights. Deliveries on hand, waiting or running, are kept alive by +WPI every third of the ack wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import (
    JetStreamDisabledError,
    LedgerError,
    PermissionRefusedError,
    UnreachableError,
)
from jobledger.ledger.model.events import PRIORITIES, Priority
from jobledger.ledger.model.subjects import ENDINGS
from jobledger.ledger.model.times import server_time
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.consumer import ACK, HeldDeliveries, keep_serving, nak, woken
from jobledger.ledger.nats.durables import consumer_config, ensure_consumer, find_consumer
from jobledger.ledger.nats.floors import Note, holds, make_bucket, mark_of, write_floor
from jobledger.ledger.nats.pauses import work_maker
from jobledger.ledger.nats.pull import HEARTBEAT_S, Delivery, Ended, PullConsumer
from jobledger.ledger.nats.streams import find_stream
from jobledger.workers.attempt.lanes import Lane, Tier
from jobledger.workers.attempt.settlement import Settlement
from jobledger.workers.config import WorkerConfig

logger = logging.getLogger("jobledger.workers.attempt.intake")

_LOOK_EVERY_S: Final = 1.0
_LOOK_AGAIN_S: Final = 10.0  # pause before a faulty consumer is looked at again
_ON_ITS_WAY_S: Final = 2.0  # a stop waits this long for deliveries on their way
_PROBE_MAX: Final = 512  # messages asked for in one probe
_FAIR_EVERY: Final = 16
_FAIR_SHARE: Final = 8
_LANES_A_SECOND: Final = 40  # lanes whose heartbeats the server sends in one second
_HEARTBEAT_S_MAX: Final = 14.0  # the server allows at most half of the time that a request waits
_LOOKS_AT_ONCE: Final = 32  # the most searches for consumers at a time
#: Time between two notes of floors, one lane after the other: dispatches settled since the last note are delivered
#: once more if the server loses the consumer.
_NOTE_EVERY_S: Final = 5.0
_NOTE_PAUSE_S: Final = 0.02
_ENDS_MAX: Final = 1_000 // len(ENDINGS)  # jobs whose end is looked for at once
_NANOSECONDS: Final = 1_000_000_000


class Intake:
    """Asks the consumers of some queues for work and settles what was delivered.

    `on_work` gets each delivery, from the connection's reader, and starts it, keeps it or gives it back. `free`
    returns how many more are wanted now. `built_in`: queues of the ledger's own runs, which have one priority.
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
        self.wake = self._wake.set  #: called when a slot becomes free
        self._look_at = 0.0  # loop time of the next look at silent consumers
        self._was_answered = False  # whether the server ever answered a request
        self._in_memory = False  # whether consumers created here are kept in memory
        self._made_again_ns = 0  # creation of the newest consumer that does not begin at the first dispatch
        self._old: deque[Delivery] = deque()  # deliveries of dispatches older than that creation
        self._has_lost = False  # whether a lane has to be looked for
        self._round = 0
        self._portion = max(1, config.concurrency // 4)
        # Deliveries by ack subject. The ack wait is the shortest of the consumers', once those are found.
        self._held = HeldDeliveries[str](ledger.connection, config.ack_wait_s)
        self.deliveries = 0  #: messages that came
        self.redeliveries = 0  #: messages that JetStream had delivered before
        self._lanes: list[Lane] = []
        self._tiers = {priority: Tier() for priority in PRIORITIES}  # the highest first
        self._probed: set[Lane] = set()  # lanes that were asked for their present messages
        # At each heartbeat of a lane the server searches all events since its last look for work: many lanes together
        # would cost it more than the jobs. Source: ADR 059.
        lanes = len(PRIORITIES) * len(queues) + len(built_in)
        self._heartbeat_s = min(max(HEARTBEAT_S, lanes / _LANES_A_SECOND), _HEARTBEAT_S_MAX)
        for priority in PRIORITIES:
            self._lanes += [self._lane(queue, priority) for queue in queues]
            if priority == "normal":
                self._lanes += [self._lane(queue, priority) for queue in built_in]

    def _lane(self, queue: str, priority: Priority) -> Lane:
        names = self._ledger.names

        def on_delivery(delivery: Delivery) -> None:
            lane.empty = False
            lane.moved = True
            if lane.turn is None:
                self._place(lane)
            self._held.hold(delivery.reply, delivery)
            self.deliveries += 1
            if delivery.delivered > 1:
                self.redeliveries += 1
            if delivery.stored_ns < self._made_again_ns:
                self._old.append(delivery)
            else:
                self._on_work(delivery)
            self._wake.set()

        def on_ended(ended: Ended) -> None:
            lane.empty = ended == "empty"
            self._was_answered = self._was_answered or lane.empty
            if ended == "lost":
                lane.lost = self._has_lost = True
            self._place(lane)
            self._wake.set()

        consumer = PullConsumer(
            self._connection,
            names.ledger_stream,
            names.consumer(queue, priority),
            on_delivery=on_delivery,
            on_ended=on_ended,
            heartbeat_s=self._heartbeat_s,
        )
        lane = Lane(queue, priority, self._config.weights.get(queue, 1), consumer)
        return lane

    async def open(self) -> None:
        """Create or check the consumers and listen for them.

        Raises: StreamMismatchError, UnreachableError.
        """
        ledger = self._ledger
        # The servers of a cluster create a lost consumer again by themselves, at its original start.
        self._in_memory = not self._connection.is_clustered and await make_bucket(
            ledger.inbox, ledger.names, replicas=ledger.config.replicas
        )

        async def find_and_listen(lane: Lane) -> None:
            await self._find(lane)
            await lane.consumer.open()

        await self._each(self._lanes, find_and_listen)

    async def _each(self, lanes: Iterable[Lane], look: Callable[[Lane], Awaitable[None]]) -> None:
        """Look at lanes, some at once, up to the first failure. Raises: as `look`."""
        left = deque(lanes)

        async def some() -> None:
            while left:
                try:
                    await look(left.popleft())
                except BaseException:
                    left.clear()
                    raise

        looks = (some() for _ in range(min(_LOOKS_AT_ONCE, len(left))))
        for outcome in await asyncio.gather(*looks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        # Another process may have created a consumer with another ack wait: the server's value counts.
        self._held.ack_wait_s = min(lane.ack_wait_s for lane in self._lanes)

    def _place(self, lane: Lane) -> None:
        """Record whether a lane may be asked for messages, after it changed."""
        self._tiers[lane.priority].place(lane, may_be_asked=lane.may_be_asked)

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
                in_memory=self._in_memory,
            ),
            make=work_maker(self._ledger.log, lane.queue),
        )
        lane.empty = found.paused  # the lane delivers nothing before the end of the pause
        lane.ack_wait_s = int(found.config.get("ack_wait", 0)) / _NANOSECONDS or self._config.ack_wait_s
        if found.created and found.config.get("deliver_policy") == "by_start_sequence":
            made_ns = int(server_time(found.created).timestamp() * _NANOSECONDS)
            self._made_again_ns = max(self._made_again_ns, made_ns)
        lane.lost = False
        self._place(lane)

    async def close(self) -> None:
        """Stop requests, and take messages that are on their way, so that they are given back.

        If the server does not answer in time, other workers get these only after an ack wait.
        """
        if self.asked:
            for lane in self._lanes:
                await lane.consumer.end()
            # The server answers after it has sent the messages that were on their way.
            with contextlib.suppress(LedgerError, ConnectionLostError, TimeoutError):
                async with asyncio.timeout(_ON_ITS_WAY_S):
                    await find_stream(self._ledger.inbox, self._ledger.names.ledger_stream)
        while self._old:
            self._on_work(self._old.popleft())
        for lane in self._lanes:
            await lane.consumer.close()

    @property
    def held(self) -> int:
        """The number of deliveries that are not settled yet, with running ones."""
        return len(self._held)

    @property
    def asked(self) -> int:
        """The number of requested messages that have not come, with one for each empty lane."""
        return sum(lane.consumer.asked for lane in self._lanes)

    async def run(self) -> None:
        """Ask for work until cancelled; survives every loss of connection, server and consumer.

        Raises: ConnectionLostError when the connection is closed for good, PermissionRefusedError as `_look_for`.
        """
        await keep_serving(self._connection, self._serve)

    async def _serve(self) -> bool:
        """Find lost lanes, and ask for work until another one is lost."""
        await self._each([lane for lane in self._lanes if lane.lost], self._look_for)
        self._has_lost = self._has_due()  # a lane may have been lost during the search for another
        while not self._has_lost:
            self._wake.clear()
            if self._old:
                await self._sift()
            elif not self._ask():
                await woken(self._wake)
                self._notice_silence()
        return False

    async def _sift(self) -> None:
        """Settle deliveries of jobs that have ended, and pass on the others.

        A consumer that was created again delivers dispatches that its predecessor had settled. A claim on each would
        be refused after a read of its whole chain; here one request finds the ends of hundreds.
        """
        asked = [self._old.popleft() for _ in range(min(len(self._old), _ENDS_MAX))]
        chains = [each.subject.decode(errors="replace").rpartition(".queued.")[0] for each in asked]
        ended: set[str] = set()
        try:
            ended = await self._ledger.log.present(
                [chain + ending for chain in dict.fromkeys(chains) for ending in ENDINGS]
            )
        except LedgerError:
            pass  # a claim that meets the error handles it
        except BaseException:  # the worker stops: the deliveries are given back with the others
            self._old.extendleft(reversed(asked))
            raise
        for each, chain in zip(asked, chains, strict=True):
            if any(chain + ending in ended for ending in ENDINGS):
                self._held.settle(each.reply, ACK)
            else:
                self._on_work(each)

    async def _look_for(self, lane: Lane) -> None:
        """Find a lane that was lost; a fault of its consumer alone does not stop the other lanes.

        Raises: UnreachableError, JetStreamDisabledError; PermissionRefusedError if the server never answered a request
        of ours before: this user may not take jobs.
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
        """Stop requests for a paused queue, except one that waits for the end of the pause."""
        for lane in self._lanes:
            if lane.queue == queue:
                if lane.consumer.probed:
                    lane.consumer.forget()
                lane.empty = True
                self._place(lane)
        self.wake()

    def resume(self, queue: str) -> None:
        """Ask for a job of a resumed queue: a further request makes the server look at once, not within a second."""
        for lane in self._lanes:
            if lane.queue == queue and lane.consumer.standing and lane.consumer.free and self._free() > 0:
                with contextlib.suppress(ConnectionLostError):
                    self._request(lane, 1)

    def _has_due(self) -> bool:
        now = self._connection.loop.time()
        return any(lane.lost and lane.look_at <= now for lane in self._lanes)

    def _ask(self) -> bool:
        """Send the next request if one is due; return whether one was.

        Requests overlap: while one is served, slots that became free meanwhile are asked for by the next, in portions
        worth a request. An empty lane keeps a request waiting at the server, so it need not be asked again to get its
        turn first.
        """
        on_the_way = self._on_the_way() + len(self._old)
        wanted = self._free() - on_the_way
        if wanted <= 0 or (on_the_way and wanted < self._portion):
            return False
        tiers = [tier for tier in self._tiers.values() if tier]
        if not tiers:
            return False
        if tiers[0].empty:
            lane = next(iter(tiers[0].empty))
            lane.empty = False
            lane.consumer.wait_for(1)
            self._place(lane)
            return True
        self._round += 1
        if self._round % _FAIR_EVERY == 0:
            lane, amount = tiers[-1].next_of_all(max(1, wanted // _FAIR_SHARE))
        else:
            lane, amount = tiers[0].next(wanted)
        self._request(lane, min(amount, _PROBE_MAX))
        return True

    def _on_the_way(self) -> int:
        """Return how many messages were asked for that lanes may have now."""
        found = 0
        for lane in tuple(self._probed):
            if lane.consumer.probed:
                found += lane.consumer.probed
            else:
                self._probed.remove(lane)
        return found

    def _request(self, lane: Lane, batch: int) -> None:
        """Ask a lane for its present messages. Raises: ConnectionLostError."""
        lane.consumer.request(batch)
        self._probed.add(lane)
        if not lane.consumer.free:
            self._place(lane)

    def _notice_silence(self) -> None:
        """Treat consumers whose answer is overdue as lost, so that they are looked for."""
        now = self._connection.loop.time()
        if now < self._look_at:  # this is called with every packet
            return
        self._look_at = now + _LOOK_EVERY_S
        self._has_lost = self._has_lost or self._has_due()
        silent = [lane for lane in self._lanes if lane.consumer.is_silent]
        for lane in silent:
            lane.lost = self._has_lost = True
            self._place(lane)
        if silent:
            names = ", ".join(f"{lane.queue} ({lane.priority})" for lane in silent)
            logger.info("consumers are silent and looked for: %s", names)

    async def note_floors(self) -> None:
        """Note, until cancelled, the sequences up to which lanes that delivered something here are settled.

        Raises: UnreachableError, JetStreamDisabledError, after which it is worth another try.
        """
        while True:
            await asyncio.sleep(_NOTE_EVERY_S)
            moved = [lane for lane in self._lanes if lane.moved and not lane.lost]
            if not (moved and self._in_memory):
                continue
            try:
                await self._note_all(moved)
            except (UnreachableError, JetStreamDisabledError):
                for lane in moved:
                    lane.moved = True
                raise

    async def _note_all(self, lanes: list[Lane]) -> None:
        """Ask for the positions of the lanes, then note them with a newer event of the ledger.

        While that event is in the ledger, so are the outcomes of all dispatches settled before.
        """
        log, floors = self._ledger.log, list[tuple[Lane, int]]()
        before = await mark_of(log)
        for lane in lanes:
            floors.append((lane, await self._floor(lane)))
            await asyncio.sleep(_NOTE_PAUSE_S)
        mark = await mark_of(log)
        if not await holds(log, before):
            return  # the consumers belong to another ledger
        for lane, settled in floors:
            if settled and settled != lane.settled:
                await self._write(lane, Note(settled=settled, mark=mark))

    async def _floor(self, lane: Lane) -> int:
        """Return the sequence up to which a lane is settled; 0: not known."""
        ledger, lane.moved = self._ledger, False
        name = ledger.names.consumer(lane.queue, lane.priority)
        try:
            found = await find_consumer(ledger.inbox, ledger.names.ledger_stream, name)
        except (UnreachableError, JetStreamDisabledError):
            raise
        except LedgerError as error:
            logger.warning("how far queue %s (%s) is cannot be asked: %s", lane.queue, lane.priority, error)
            return 0
        if found is None or found.ack_pending:
            lane.moved = True
        return 0 if found is None else found.ack_floor.stream_sequence

    async def _write(self, lane: Lane, note: Note) -> None:
        ledger = self._ledger
        try:
            await write_floor(
                ledger.inbox, ledger.names, ledger.names.consumer(lane.queue, lane.priority), note
            )
            lane.settled = note.settled
        except (UnreachableError, JetStreamDisabledError):
            raise
        except LedgerError as error:
            logger.warning("the floor of queue %s (%s) is not noted: %s", lane.queue, lane.priority, error)

    # The methods below settle deliveries. Nothing depends on a settlement: the ledger decides.

    async def keep_alive(self) -> None:
        """Report to the broker, until cancelled, that the deliveries on hand are still in work."""
        await self._held.keep_alive()

    def is_fresh(self, delivery: Delivery) -> bool:
        """Return whether the broker may still count the delivery as ours."""
        return self._held.is_fresh(delivery.reply)

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Release a delivery, and send the broker its settlement."""
        match settlement.word:
            case "ack":
                self._held.settle(delivery.reply, ACK)
            case "nak":
                self._held.settle(delivery.reply, nak(settlement.delay_s))
            case _:
                self._held.drop(delivery.reply)
