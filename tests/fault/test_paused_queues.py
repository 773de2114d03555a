"""A queue is paused and resumed while its workers are killed and its consumers deleted: nothing starts meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import datetime, timedelta

import pytest
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, WorkerProcess, load_tasks
from tests.support.jetstream import api
from tests.support.proof import prove
from tests.support.watch import Watch

from jobledger.ledger import Ledger
from jobledger.ledger.model.queue_pause import QUEUE

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

TASKS = load_tasks()
ROUNDS = 20
WORKERS = 3
JOBS = 900
#: A job that was delivered at the moment of a pause may be started this long after it.
GRACE = timedelta(seconds=0.5)


class Disturbance:
    """Kills workers and deletes consumers."""

    def __init__(self, ledger: Ledger, fleet: Fleet, chance: random.Random) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._chance = chance
        self._workers: list[WorkerProcess] = []
        self.kills = self.deletions = 0

    async def begin(self) -> None:
        self._workers = [await self._fleet.begin("--concurrency", "10") for _ in range(WORKERS)]
        for worker in self._workers:
            await worker.ready()

    async def strike(self) -> None:
        """Kill a worker or delete a consumer, or both, so that one that knows nothing of the pause makes it again."""
        kind = self._chance.choice(("kill", "delete", "both"))
        if kind != "delete":
            place = self._chance.randrange(WORKERS)
            self._fleet.kill(self._workers[place].pid)
            self._workers[place] = await self._fleet.begin("--concurrency", "10")
            await self._workers[place].ready()
            self.kills += 1
        if kind != "kill":
            names = self._ledger.names
            consumer = names.consumer("work", "normal")
            await api(self._ledger.inbox, f"CONSUMER.DELETE.{names.ledger_stream}.{consumer}", {})
            self.deletions += 1


async def paused_spans(ledger: Ledger) -> list[tuple[datetime, datetime]]:
    """Return from when until when the queue was paused, by the server's clock."""
    spans: list[tuple[datetime, datetime]] = []
    began: datetime | None = None
    async for batch in ledger.log.read_messages(subject=QUEUE.everything(ledger.names)):
        for message in batch:
            if QUEUE.evolve(None, QUEUE.decode(message), message.stream_sequence).paused:
                began = began or message.stored_at
            elif began is not None:
                spans.append((began, message.stored_at))
                began = None
    return spans


async def test_nothing_of_a_paused_queue_starts_while_workers_die_and_consumers_vanish(
    ledger: Ledger, fleet: Fleet, chance: random.Random, record: Recorder
) -> None:
    enqueued: list[tuple[str, str]] = []

    async def feed() -> None:
        for _ in range(JOBS):
            job = await ledger.enqueue(TASKS["nap"].options(max_attempts=ROUNDS), 0.2 * chance.random())
            enqueued.append(("work", job.id))
            await asyncio.sleep(0.03)

    async with Watch.following(ledger) as watch:
        feeding = asyncio.create_task(feed())
        disturbance = Disturbance(ledger, fleet, chance)
        await disturbance.begin()
        for _ in range(ROUNDS):
            await asyncio.sleep(0.5 * chance.random())
            await ledger.pause_queue("work", interrupt=chance.random() < 0.5)
            await disturbance.strike()
            await asyncio.sleep(0.7 + 0.3 * chance.random())
            await ledger.resume_queue("work")
        await feeding
        await watch.until_ended(JOBS)
        spans = await paused_spans(ledger)
        proof = await prove(ledger, enqueued=enqueued, trace=fleet.trace, faults=fleet.faults)
        assert await fleet.stop() == [0] * WORKERS
    proof.hold()
    assert set(watch.ended.values()) == {"completed"}
    assert len(spans) == ROUNDS
    subject = ledger.names.all_of_type("started")
    starts = [each.stored_at async for batch in ledger.log.read(subject=subject) for each in batch]
    wrong = [at for at in starts if any(began + GRACE < at < end for began, end in spans)]
    assert wrong == []
    record(
        "paused",
        "a queue is paused and resumed while workers are killed and consumers of its work deleted",
        faults=f"{ROUNDS} pauses, {disturbance.kills} kills, {disturbance.deletions} deletions; 0 jobs started meanwhile",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery="-",
    )
