"""Rows 26, 27 and 28 of the scoreboard: duplicate storms, cancel races, lost advisories."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.fault.conftest import SEED, ConnectTo
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, load_tasks
from tests.support.jetstream import api
from tests.support.proof import prove
from tests.support.races import Races
from tests.support.watch import Watch

from jobledger.ledger import Ledger
from jobledger.ledger.model.commands import Claim
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.durables import DELIVERIES_MAX
from jobledger.ledger.nats.pull import Delivery, PullConsumer
from jobledger.workers.reactors.reactor import host
from jobledger.workers.reactors.reconciler import Reconciler

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(200)]

TASKS = load_tasks()
CLIENTS = 100
KEYS = 1_000
RACES = 100_000
RACES_A_LEDGER = 2_500


async def _bulk(ledger: Ledger, created: list[int]) -> None:
    """Enqueue all keys as a stream."""
    ids = iter(range(KEYS))
    inputs = ({"seconds": 0.0} for _ in range(KEYS))
    done = await ledger.enqueue_many(TASKS["nap"], inputs, ids=lambda _: f"key-{next(ids)}")
    assert done.created + done.existing == KEYS
    created.append(done.created)


async def _single(ledger: Ledger, turn: int, created: list[int]) -> list[int]:
    """Enqueue all keys one by one, twenty at a time; return the sequences that this caller was told."""
    told: dict[int, int] = {}
    numbers = iter([(n + turn * 97) % KEYS for n in range(KEYS)])

    async def some() -> None:
        for number in numbers:
            job = await ledger.enqueue(TASKS["nap"].options(id=f"key-{number}"), 0.0)
            created.append(job.created)
            told[number] = job.sequence

    await asyncio.gather(*(some() for _ in range(20)))
    return [told[number] for number in range(KEYS)]


@pytest.mark.parametrize("durability", ["process"])
async def test_a_hundred_clients_with_the_same_thousand_keys_make_a_thousand_jobs(
    connected: ConnectTo, server: EmbeddedServer, record: Recorder
) -> None:
    """Row 26: over a kill of the server in the middle, and once more after it, when nobody remembers anything."""
    created: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        # One process is all hundred clients: together they keep no more under way than it can look after.
        few = {"append_timeout_s": 60.0, "enqueue_in_flight_max": 32}
        clients = [await stack.enter_async_context(connected(**few)) for _ in range(CLIENTS)]
        singles = CLIENTS // 10
        callers = [
            asyncio.create_task(_single(each, turn, created)) for turn, each in enumerate(clients[:singles])
        ]
        bulks = [asyncio.create_task(_bulk(each, created)) for each in clients[singles:]]
        await asyncio.sleep(0.5)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        await server.start()
        told = await asyncio.gather(*callers)
        await asyncio.gather(*bulks)
        told.append(await _single(clients[-1], 0, created))
        events = [stored async for stored in clients[0].events(follow=False)]
    assert Counter(stored.event.job for stored in events) == {f"key-{n}": 1 for n in range(KEYS)}
    assert sum(created) == KEYS  # each was told once to have been made
    by_job = {stored.event.job: stored.stream_sequence for stored in events}
    expected = [by_job[f"key-{n}"] for n in range(KEYS)]
    assert all(each == expected for each in told)
    record(
        "26",
        f"{CLIENTS} clients enqueue the same {KEYS:,} ids, the server is killed in the middle, then all ids once more",
        faults=f"{CLIENTS * KEYS + KEYS:,} enqueues, 1 kill",
        jobs=KEYS,
        events=len(events),
        now=time.monotonic(),
    )


def _play(seed: int) -> tuple[int, int, dict[str, int], dict[str, int], str]:
    races = Races(random.Random(seed))
    for _ in range(RACES_A_LEDGER):
        races.play()
    report = races.check()
    problem = (
        "" if report.sound and set(races.ends()) == {1} else f"seed {seed}: {report.text()} {races.ends()}"
    )
    return report.jobs, report.events, dict(races.accepted), dict(races.refused), problem


def test_a_hundred_thousand_interleavings_have_one_winner_each(record: Recorder) -> None:
    """Row 27: cancel, retry, complete, fail, take over, rescue and dispatch on the log in memory."""
    seeds = [SEED * 1_000 + number for number in range(RACES // RACES_A_LEDGER)]
    with ProcessPoolExecutor(max_workers=2) as pool:
        played = list(pool.map(_play, seeds))
    problems = [problem for *_, problem in played if problem]
    assert problems == []
    accepted, refused = Counter[str](), Counter[str]()
    for _, _, yes, no, _ in played:
        accepted.update(yes)
        refused.update(no)
    assert min(accepted["Complete"], accepted["CancelJob"], refused["Complete"], refused["CancelJob"]) > 1_000
    record(
        "27a",
        "seeded interleavings of cancel, retry, complete, fail, take-over, rescue and dispatch on the log in memory",
        faults=f"{RACES:,} races, {refused.total():,} losers refused",
        jobs=sum(jobs for jobs, *_ in played),
        events=sum(events for _, events, *_ in played),
        now=time.monotonic(),
    )


async def test_cancels_and_retries_by_three_clients_race_with_workers(
    ledger: Ledger, connected: ConnectTo, fleet: Fleet, chance: random.Random, record: Recorder
) -> None:
    """Row 27 on a real server: whoever wins, each job has one end and nobody else's end is written over."""
    count = 600
    told: Counter[str] = Counter()
    async with connected() as two, connected() as three, Watch.following(ledger) as watch:
        for worker in [await fleet.begin("--concurrency", "30") for _ in range(2)]:
            await worker.ready()

        async def harass(client: Ledger, ref: JobRef, verb: str, after_s: float) -> None:
            await asyncio.sleep(after_s)
            try:
                await (client.cancel(ref) if verb == "cancel" else client.retry(ref))
            except RefusedError:
                told[f"{verb} refused"] += 1
            else:
                told[f"{verb} accepted"] += 1

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                task, argument = chance.choice((("nap", 0.05), ("nap_in_thread", 0.05), ("stumble", 2)))
                delay: dict[str, Any] = {"delay_s": 0.1} if chance.random() < 0.3 else {}
                job = await ledger.enqueue(
                    TASKS[task].options(id=f"n-{number}", max_attempts=20, **delay), argument
                )
                ref = JobRef(queue="work", job_id=job.id)
                for client in (two, three):
                    verb = chance.choice(("cancel", "retry"))
                    group.create_task(harass(client, ref, verb, chance.random() * 0.3))
        await watch.until_ended(count)
        proof = await prove(ledger, enqueued=[("work", f"n-{n}") for n in range(count)], trace=fleet.trace)
        assert await fleet.stop() == [0, 0]
    proof.hold()
    assert set(watch.ended.values()) == {"completed", "cancelled"}
    assert watch.count["completed"] + watch.count["cancelled"] == count
    assert min(told.values()) > 0, told
    record(
        "27b",
        "cancels and retries by two clients race with two workers, delays and retries",
        faults=", ".join(f"{number} {what}" for what, number in sorted(told.items())),
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
    )


class Refuser:
    """Gives back what a queue hands out until it hands out no more, as if no worker could take it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.last_deliveries = 0
        self._consumer = PullConsumer(
            ledger.connection,
            ledger.names.ledger_stream,
            ledger.names.consumer("work", "normal"),
            on_delivery=self._on_delivery,
            on_ended=lambda _: None,
        )

    def _on_delivery(self, delivery: Delivery) -> None:
        self.last_deliveries += delivery.delivered == DELIVERIES_MAX
        self._ledger.connection.send(delivery.reply, "", b"", b"-NAK")

    @contextlib.asynccontextmanager
    async def refusing(self) -> AsyncGenerator[None, None]:
        """Go on for the length of the block: the server raises an advisory only while somebody asks."""
        await self._consumer.open()
        for _ in range(2):
            self._consumer.wait_for(5_000)
        try:
            yield
        finally:
            await self._consumer.close()


@pytest.mark.parametrize("lost", [False, True], ids=["reactor down", "advisories deleted"])
async def test_exhausted_deliveries_are_seen_to_without_reactor_and_without_advisory(
    ledger: Ledger, connected: ConnectTo, fleet: Fleet, record: Recorder, lost: bool
) -> None:
    """Row 28: no worker lives until the server gives the dispatches up; half of the jobs had their only attempt lost before."""
    count = 50
    async with Watch.following(ledger) as watch, connected() as other:
        fresh = [await ledger.enqueue(TASKS["nap"].options(id=f"fresh-{n}"), 0.0) for n in range(count)]
        tried = [
            await ledger.enqueue(TASKS["nap"].options(id=f"tried-{n}", max_attempts=1), 0.0)
            for n in range(count)
        ]
        for job in tried:  # their worker has no lease, as one that died long ago
            await ledger.execute(JobRef(queue="work", job_id=job.id), Claim(worker="dead", lease_s=1.0))
        refuser = Refuser(other)
        async with refuser.refusing():
            await watch.until(lambda: refuser.last_deliveries == 2 * count)
            await _advised(ledger, 2 * count)
        if lost:
            purged = await api(ledger.inbox, f"STREAM.PURGE.{ledger.names.advisories_stream}", {})
            assert purged["purged"] >= 2 * count
        await asyncio.sleep(3.0)  # nobody is there to do anything
        assert watch.count == {"queued": 2 * count, "started": count}
        since = time.monotonic()
        await fleet.start()
        # Its own reconciler has patience for ten minutes: this one looks now.
        reconciling = asyncio.create_task(host(ledger, Reconciler(ledger, grace_s=0.5))) if lost else None
        await watch.until_ended(2 * count)
        seen_to_s = time.monotonic() - since
        if reconciling is not None:
            reconciling.cancel()
            await asyncio.wait([reconciling])
        reasons = {(await job.snapshot()).dead_reason for job in tried}
        jobs = [("work", job.id) for job in (*fresh, *tried)]
        proof = await prove(ledger, enqueued=jobs, trace=fleet.trace)
        assert await fleet.stop() == [0]
    proof.hold()
    assert {watch.ended[job.id] for job in fresh} == {"completed"}
    assert {watch.ended[job.id] for job in tried} == {"dead_lettered"}
    assert reasons == {"max_deliver"}
    record(
        "28b" if lost else "28a",
        "no worker lives, and the server delivers each of 100 jobs 20 times, as often as it may"
        + (", and the advisories are deleted" if lost else ""),
        faults=f"{2 * count * DELIVERIES_MAX:,} deliveries, 0 dead letters missing, {count} dispatched again",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{seen_to_s:.1f} s from the worker's start until all were seen to"
        + (" (reconciler with a grace of 0.5 s)" if lost else ""),
    )


async def _advised(ledger: Ledger, count: int) -> None:
    """Wait until the server has said of `count` dispatches that it gives them up."""
    stream = ledger.names.advisories_stream
    async with asyncio.timeout(20):
        while (await api(ledger.inbox, f"STREAM.INFO.{stream}", {}))["state"]["messages"] < count:
            await asyncio.sleep(0.05)
