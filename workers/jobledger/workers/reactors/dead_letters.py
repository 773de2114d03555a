"""The dead-letter reactor: reads from ADVISORIES which dispatches the server gave up, and rescues their jobs.

An advisory does not describe the job, so the chain is read. An advisory may get lost: the reconciler finds such jobs.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.consumer import Source
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.nats.streams import advisories_specification, ensure_streams
from jobledger.workers.reactors.reactor import ConsumerReactor, Later
from jobledger.workers.reactors.stranded_jobs import OnDeadLetter, StrandedJobs

logger = logging.getLogger("jobledger.workers.reactors.dead_letters")

CONSUMER: Final = "dead_letters"
_LOOK_AGAIN_S_MAX: Final = 300.0
_LAG_S: Final = 0.25
_LAGGING_DELIVERIES_MAX: Final = 4


class _Advisory(msgspec.Struct, frozen=True):
    """The advisory on a message that a consumer gave up; other fields are left out."""

    consumer: str
    stream_seq: int
    deliveries: int = 0


_decode = msgspec.json.Decoder(_Advisory).decode


class DeadLetterReactor(ConsumerReactor):
    """Dispatches jobs again whose dispatch was given up by its consumer, or makes them dead letters."""

    def __init__(self, ledger: Ledger, *, on_dead_letter: OnDeadLetter | None = None) -> None:
        super().__init__(ledger, "dead_letters")
        self._stranded = StrandedJobs(ledger, on_dead_letter)
        self._lease_s = 0.0

    async def find(self) -> Source:
        """Make the stream ADVISORIES if it is missing; the reconciler finds jobs whose advisories were lost."""
        names, config = self.ledger.names, self.ledger.config
        spec = advisories_specification(names, config.ledger_bytes_max, config.replicas)
        await ensure_streams(self.ledger.inbox, [spec])
        if not self._lease_s:
            self._lease_s = await self.ledger.leases.duration_s()
        return Source(stream=names.advisories_stream, consumer=CONSUMER, filters=())

    async def react(self, delivery: Delivery) -> Later | None:
        """Rescue the job of one advisory."""
        try:
            advisory = _decode(delivery.data)
        except msgspec.MsgspecError:
            logger.warning("advisory %d is not of a form that this version knows", delivery.stream_sequence)
            return None
        stored = await self.ledger.log.get(advisory.stream_seq)
        if stored is None and delivery.delivered <= _LAGGING_DELIVERIES_MAX:
            return Later(_LAG_S)  # a replica lags behind, if the ledger has the event at all
        if not isinstance(stored, StoredEvent) or not isinstance(stored.event, Queued):
            return None  # a consumer of another aggregate, or an event that the ledger no longer has
        event = stored.event
        if advisory.consumer != self.ledger.names.consumer(event.queue, event.priority):
            return None  # a consumer of another program, from which workers get no work
        ref = JobRef(queue=event.queue, job_id=event.job)
        rescued = await self._stranded.rescue(ref, advisory.stream_seq, deliveries=advisory.deliveries)
        if rescued.verdict != "wait":
            return None
        # It runs. If its worker dies, no worker gets the job: look again when the lease may be over.
        return Later(min(self._lease_s * delivery.delivered, _LOOK_AGAIN_S_MAX))
