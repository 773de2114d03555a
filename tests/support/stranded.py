"""Jobs that a queue hands out in vain, and the reactors that see to them: what tests of both ways share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Self

from tests.support.jetstream import api
from tests.support.limits import LIMIT_S

from jobledger.ledger import Job, JobHandle, Ledger
from jobledger.ledger.model.commands import Claim
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.durables import consumer_config, ensure_consumer
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.pull import Delivery, PullConsumer
from jobledger.workers.reactors.reactor import Reactor, host


@contextlib.asynccontextmanager
async def reacting(*reactors: Reactor, ledger: Ledger) -> AsyncGenerator[None, None]:
    tasks = [asyncio.create_task(host(ledger, each)) for each in reactors]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def make_consumer(ledger: Ledger, deliveries_max: int, queue: str = "post") -> None:
    """Make a work consumer as a worker does, but one that gives up sooner."""
    names = ledger.names
    config = consumer_config(names.dispatches(queue, "normal"), ack_wait_s=1.0, ack_pending_max=1_000)
    config["max_deliver"] = deliveries_max
    await ensure_consumer(ledger.inbox, names.ledger_stream, names.consumer(queue, "normal"), config)


class Puller:
    """Takes what a queue hands out and gives it back at once, as often as it is handed out."""

    def __init__(self, ledger: Ledger, queue: str = "post") -> None:
        self._ledger = ledger
        self.seen: list[tuple[int, int]] = []
        self._consumer = PullConsumer(
            ledger.connection,
            ledger.names.ledger_stream,
            ledger.names.consumer(queue, "normal"),
            on_delivery=self._on_delivery,
            on_ended=lambda _: None,
        )
        self.keeps = False

    def _on_delivery(self, delivery: Delivery) -> None:
        self.seen.append((delivery.stream_sequence, delivery.delivered))
        if not self.keeps:
            self._ledger.connection.send(delivery.reply, "", b"", b"-NAK")

    async def __aenter__(self) -> Self:
        await self._consumer.open()
        self._consumer.wait_for(1_000)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.close()


async def dispatches(job: JobHandle[Any]) -> list[str]:
    return [each.event.cause for each in await job.history() if isinstance(each.event, Queued)]


async def has_dispatches(job: JobHandle[Any], count: int) -> list[str]:
    async with asyncio.timeout(LIMIT_S):
        while len(found := await dispatches(job)) < count:
            await asyncio.sleep(0.02)
    return found


async def messages(ledger: Ledger, stream: str) -> int:
    return int((await api(ledger.inbox, f"STREAM.INFO.{stream}", {}))["state"]["messages"])


async def until_advised(ledger: Ledger, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await messages(ledger, ledger.names.advisories_stream) < count:
            await asyncio.sleep(0.02)


async def start(ledger: Ledger, ref: JobRef, worker: str) -> Job:
    """Claim a job as a worker does."""
    return await ledger.execute(ref, Claim(worker=worker, lease_s=2.0), by=worker)


async def take_lease(ledger: Ledger, worker: str) -> int:
    now = ledger.clock.now()
    info = WorkerInfo(worker=worker, host="h", pid=1, queues=("post",), started_at=now, renewed_at=now)
    return await ledger.leases.renew(info, 0)
