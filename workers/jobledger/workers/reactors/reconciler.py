"""The reconciler: finds jobs that no worker is offered any more, even without an advisory.

Each lane (a queue at one priority) has a second durable consumer here, which walks the same dispatches once they are
older than the grace, but never beyond those that the lane has handed out. It gets subjects, not inputs. A dispatch
whose job has ended or was dispatched again is acknowledged; one that a worker may still get or run is checked again;
one that the server has given up, or that is far too old, is settled as by the dead-letter reactor.

The same look compares paused consumers with their queues in the ledger.

It is harmless to dispatch a job again that was not stranded, since its older dispatch is dropped; this should be rare.
Source: ADR 010.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import (
    ConfigurationError,
    CorruptLedgerError,
    JetStreamDisabledError,
    LedgerError,
    LedgerFullError,
    MalformedEventError,
    UnreachableError,
)
from jobledger.ledger.model.subjects import ENDINGS, RECONCILER_CONSUMER_PREFIX, JobRef
from jobledger.ledger.nats.consumer import ACK, Batches, Source, keep_serving, nak, tell
from jobledger.ledger.nats.durables import ensure_consumer, list_consumers, reactor_consumer
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.nats.pull import Delivery
from jobledger.workers.reactors.pauses import Pauses
from jobledger.workers.reactors.stranded_jobs import OnDeadLetter, StrandedJobs

logger = logging.getLogger("jobledger.workers.reactors.reconciler")

BATCH: Final = 1_000
_CHAINS_AT_ONCE: Final = 16
_ACK_WAIT_S: Final = 60.0
_FETCH_S: Final = 5.0
_SHORT_S: Final = 2.0  # wait for a batch that is old enough within this time
_LOOKS_A_GRACE: Final = 10
_RETRY_S: Final = 1.0
#: With this many consumers the reconciler makes no more of its own: the server allows 1,000, and queues need them more.
_CONSUMERS_MAX: Final = 600
_NANOSECONDS: Final = 1_000_000_000


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a consumer, from the server."""

    delivered: int  #: highest stream sequence handed out
    settled: int  #: stream sequence up to which all messages are acked or given up
    unsettled_count: int  #: number of messages handed out and not acked yet
    waiting_count: int  #: number of messages never handed out

    def surely_settled(self, stream_sequence: int) -> bool:
        """Return whether a message that was handed out is acked or given up; False if that is not known."""
        return self.unsettled_count == 0 or self.settled >= stream_sequence


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One queue at one priority: the consumer that hands out its work, and the one that looks after it."""

    worker: str  #: name of the consumer of work
    filter_subject: str
    work: Position
    own: Position | None  #: position of the own consumer; None before it was made

    @property
    def name(self) -> str:
        """The name of the reconciler's own consumer."""
        return f"{RECONCILER_CONSUMER_PREFIX}{self.worker.removeprefix('work_')}"

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to check: all messages handed out are settled."""
        if self.own is None:
            return self.work.delivered == 0
        return self.own.unsettled_count == 0 and (
            self.own.waiting_count == 0 or self.own.delivered >= self.work.delivered
        )


def is_given_up(work: Position, stream_sequence: int, age_s: float, suspect_s: float) -> bool:
    """Return whether no worker will get a dispatch that was handed out: the server gave it up, or it is far too old."""
    return work.surely_settled(stream_sequence) or age_s >= suspect_s


class Reconciler:
    """Looks after the dispatches of every queue; every worker process runs one, and they share its consumers.

    `grace_s`: age of a dispatch before it is checked, and pause between checks. `suspect_s`: age at which an unsettled
    dispatch counts as given up; it must exceed the delays of all deliveries together.
    """

    name = "reconciler"

    def __init__(
        self,
        ledger: Ledger,
        *,
        grace_s: float = 600.0,
        suspect_s: float = 7200.0,
        on_dead_letter: OnDeadLetter | None = None,
    ) -> None:
        if not 0 < grace_s <= suspect_s:
            raise ConfigurationError(
                f"grace_s must be above 0 and at most suspect_s, got {grace_s:g} and {suspect_s:g}"
            )
        self._ledger = ledger
        self._grace_s = grace_s
        self._suspect_s = suspect_s
        self._stranded = StrandedJobs(ledger, on_dead_letter)
        self._pauses = Pauses(ledger)
        self._turns = asyncio.Semaphore(_CHAINS_AT_ONCE)
        self._warned = False

    async def run(self) -> None:
        """Look every tenth of the grace until cancelled; survives losses of connection and server.

        Raises: ConnectionLostError if the connection is closed for good.
        """
        pause_s = self._grace_s / _LOOKS_A_GRACE

        async def look_now_and_then() -> bool:
            while True:
                await self._look()
                await asyncio.sleep(pause_s)

        await asyncio.sleep(pause_s)
        await keep_serving(self._ledger.connection, look_now_and_then, retry_s=min(pause_s, _RETRY_S))

    async def _look(self) -> None:
        """Look after every lane once."""
        try:
            listed = await list_consumers(self._ledger.inbox, self._ledger.names.ledger_stream)
            await self._pauses.look_at(listed)
            for lane in self._lanes_of(listed):
                await self._look_after(lane)
        except (JetStreamDisabledError, UnreachableError):
            raise
        except LedgerError as error:
            logger.warning("reconciler: %s", error)

    async def _look_after(self, lane: Lane) -> None:
        """Walk through one lane; a fault of this lane does not stop the others."""
        if lane.is_quiet:
            return
        try:
            await self._walk(lane)
        except (JetStreamDisabledError, UnreachableError):
            raise
        except LedgerError as error:
            logger.warning("reconciler: %s: %s", lane.name, error)

    async def lanes(self) -> list[Lane]:
        """Return every lane with both its positions: one request for 256 consumers."""
        return self._lanes_of(await list_consumers(self._ledger.inbox, self._ledger.names.ledger_stream))

    def _lanes_of(self, listed: Sequence[ConsumerInfo]) -> list[Lane]:
        found = {info.name: info for info in listed}
        lanes = [_lane(info, found) for name, info in sorted(found.items()) if name.startswith("work_")]
        return lanes if len(found) < _CONSUMERS_MAX else self._those_with_one(lanes)

    def _those_with_one(self, lanes: list[Lane]) -> list[Lane]:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the ledger has %d consumers or more: the reconciler makes none for further queues",
                _CONSUMERS_MAX,
            )
        return [lane for lane in lanes if lane.own is not None]

    async def _walk(self, lane: Lane) -> None:
        """Check the old dispatches of one lane, batch by batch, until the rest is young or not handed out."""
        ledger = self._ledger
        config = {
            **reactor_consumer((lane.filter_subject,), ack_wait_s=_ACK_WAIT_S),
            "headers_only": True,
        }
        stream = ledger.names.ledger_stream
        await ensure_consumer(ledger.inbox, stream, lane.name, config)
        async with Batches(ledger.connection, Source(stream=stream, consumer=lane.name)) as batches:
            while True:
                batch = await batches.take(BATCH)
                if not await self.look_at(lane, batch) or len(batch) < BATCH:
                    return

    async def look_at(self, lane: Lane, batch: Sequence[Delivery]) -> bool:
        """Settle the deliveries of one batch; return whether later ones in the lane may be old enough, too."""
        now_ns = int(self._ledger.clock.now().timestamp() * _NANOSECONDS)
        ages = {each.stream_sequence: (now_ns - each.stored_ns) / _NANOSECONDS for each in batch}
        beyond = [each for each in batch if each.stream_sequence > lane.work.delivered]
        handed_out = [each for each in batch if each.stream_sequence <= lane.work.delivered]
        young = [each for each in handed_out if ages[each.stream_sequence] < self._grace_s]
        left_s = max((self._grace_s - ages[each.stream_sequence] for each in young), default=0.0)
        if young and left_s <= min(_SHORT_S, self._grace_s / _LOOKS_A_GRACE):
            await asyncio.sleep(left_s)
            young = []
        for each in young:
            self._again(each, self._grace_s - ages[each.stream_sequence])
        for each in beyond:
            self._again(each, self._grace_s / _LOOKS_A_GRACE)
        chosen = {each.stream_sequence for each in young}
        await self._examine(lane, [each for each in handed_out if each.stream_sequence not in chosen], ages)
        return not (young or beyond)

    async def _examine(self, lane: Lane, old: Sequence[Delivery], ages: dict[int, float]) -> None:
        rest = old
        for ending in ENDINGS:  # most are completed, and the lookups are the most expensive part here
            rest = await self._ack_ended(rest, ending)
        await asyncio.gather(
            *(self._examine_one(lane.work, each, ages[each.stream_sequence]) for each in rest)
        )

    async def _ack_ended(self, deliveries: Sequence[Delivery], ending: str) -> list[Delivery]:
        """Ack the dispatches of jobs that have a final event of this type; return the others."""
        if not deliveries:
            return []
        subjects = [each.subject.decode().rpartition(".queued.")[0] + ending for each in deliveries]
        ended = await self._ledger.log.present(list(set(subjects)))
        rest: list[Delivery] = []
        for each, subject in zip(deliveries, subjects, strict=True):
            if subject in ended:
                self._ack(each)
            else:
                rest.append(each)
        return rest

    async def _examine_one(self, work: Position, delivery: Delivery, age_s: float) -> None:
        sequence = delivery.stream_sequence
        try:
            parsed = self._ledger.names.parse(delivery.subject.decode())
        except MalformedEventError as error:
            logger.warning("reconciler: %s", error)
            self._ack(delivery)
            return
        ref = JobRef(queue=parsed.queue, job_id=parsed.job_id)
        certain = is_given_up(work, sequence, age_s, self._suspect_s)
        try:
            async with self._turns:
                rescued = await self._stranded.rescue(ref, sequence, certain=certain)
        except (LedgerFullError, CorruptLedgerError) as error:
            logger.error("reconciler: job %s: %s", ref.job_id, error)  # noqa: TRY400 - a sentence
            self._again(delivery, self._grace_s)
            return
        if rescued.verdict is None or (certain and rescued.verdict != "wait"):
            self._ack(delivery)
        else:
            self._again(delivery, self._grace_s)

    def _ack(self, delivery: Delivery) -> None:
        tell(self._ledger.connection, delivery, ACK)

    def _again(self, delivery: Delivery, delay_s: float) -> None:
        tell(self._ledger.connection, delivery, nak(delay_s))


def _lane(info: ConsumerInfo, all_of_them: dict[str, ConsumerInfo]) -> Lane:
    lane = Lane(
        worker=info.name,
        filter_subject=info.config.get("filter_subject", ""),
        work=_position(info),
        own=None,
    )
    own = all_of_them.get(lane.name)
    return lane if own is None else msgspec.structs.replace(lane, own=_position(own))


def _position(info: ConsumerInfo) -> Position:
    return Position(
        delivered=info.delivered.stream_sequence,
        settled=info.ack_floor.stream_sequence,
        unsettled_count=info.ack_pending,
        waiting_count=info.pending,
    )
