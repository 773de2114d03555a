"""Metrics of one relay, for Prometheus: how many rows wait, since when, and what became of those that it read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from jobledger.ledger.metrics.exposition import Measure, values
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.outbox.database import OutboxCounts, OutboxDatabase
from jobledger.ledger.outbox.relay import Relay

_LOOK_S: Final = 5.0

_WAITING = Measure(
    "jobledger_outbox_waiting",
    "gauge",
    "Rows that wait for their job; none while the database is away.",
    ("outbox",),
)
_OLDEST = Measure(
    "jobledger_outbox_oldest_seconds",
    "gauge",
    "How long the oldest row has waited, 0 without one.",
    ("outbox",),
)
_REFUSED = Measure(
    "jobledger_outbox_refused",
    "gauge",
    "Rows that were put aside with a reason, until somebody mends them.",
    ("outbox",),
)
_RELAYED = Measure(
    "jobledger_outbox_relayed_total",
    "counter",
    "Rows that this relay dealt with, by what came of them: created, existing or refused.",
    ("outbox", "outcome"),
)
_FAILURES = Measure(
    "jobledger_outbox_failures_total",
    "counter",
    "Times that this relay had to wait, as the ledger or the database was away or full.",
    ("outbox",),
)
OUTBOX_METRICS: Final = (_WAITING, _OLDEST, _REFUSED, _RELAYED, _FAILURES)


class RelayMetrics(Collector):
    """What a relay shows. `run` belongs to the event loop; `collect` and `health` are for other threads."""

    def __init__(self, relay: Relay, database: OutboxDatabase, clock: Clock) -> None:
        """`database`: a connection of its own, so that no row waits for a count; `clock`: as the database's."""
        self._relay = relay
        self._database = database
        self._clock = clock
        self._counts: OutboxCounts | None = None

    async def run(self) -> None:
        """Count rows now and then until cancelled."""
        while True:
            self._counts = await self._count()
            await asyncio.sleep(_LOOK_S)

    async def _count(self) -> OutboxCounts | None:
        with contextlib.suppress(LedgerError, OSError, msgspec.MsgspecError):
            return await self._database.counts()
        return None

    def collect(self) -> Iterable[Metric]:
        """Return the values as they were at the last look."""
        relay, counts = self._relay, self._counts
        name = (relay.name,)
        if counts is not None:
            oldest = counts.oldest_at
            age_s = 0.0 if oldest is None else max(0.0, (self._clock.now() - oldest).total_seconds())
            yield values(_WAITING, [(name, counts.waiting)])
            yield values(_OLDEST, [(name, age_s)])
            yield values(_REFUSED, [(name, counts.refused)])
        done = relay.done
        outcomes = {"created": done.created, "existing": done.existing, "refused": done.refused}
        yield values(_RELAYED, [((relay.name, each), count) for each, count in outcomes.items()])
        yield values(_FAILURES, [(name, relay.failures)])

    def health(self) -> str:
        """Return "" while the database is there and the relay need not wait for the ledger, else why not."""
        if self._counts is None:
            return "the database of the outbox has not answered"
        return (
            "the relay waits for the ledger or the database: its log says why"
            if self._relay.is_waiting
            else ""
        )
