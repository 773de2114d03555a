"""Runs under fire: workers with their reactors, and the server, are killed, frozen and restarted between any two appends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.fault.apps import groups as app
from tests.support.cluster import SIZE, Cluster
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, WorkerProcess
from tests.support.groups import Groups
from tests.support.jetstream import api
from tests.support.nemesis import freeze_server, kill_server, restart_server
from tests.support.proof import Proof, prove
from tests.support.watch import make_consumers

from jobledger.audit.verify.report import RUN_RULES
from jobledger.ledger import (
    Graph,
    IllegalTransitionError,
    JobHandle,
    JobState,
    Ledger,
    UnreachableError,
    connect,
)
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import CHILDREN_CONSUMER
from jobledger.ledger.nats.durables import ensure_consumer, reactor_consumer
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(420)]

APP: Final = Path(app.__file__)
QUEUES: Final = ("one", "two", "three", app.QUEUE, BUILT_IN_QUEUE)
ITEMS, LIMIT = 2_000, 50
NODES, NODES_LIMIT = 200, 20
ASKING = 40  # small runs that wait in each way there is
WORKERS = 3
LEADERS = 2  #: that are killed, one after the other
HARM_S = 30.0
END_S = 180.0  # in which every run ends once nothing is harmed any more
#: What is done in each round, in an order of its own.
HARMS: Final = (
    *("worker killed",) * 4,
    *("worker frozen",) * 2,
    "server killed",
    "server frozen",
    "server restarted",
)


@pytest.fixture
def durability() -> str:
    return "process"


async def consumers(ledger: Ledger) -> None:
    """Make the consumers before a worker does: what a killed one had comes again soon."""
    for queue in QUEUES:
        await make_consumers(ledger, queue, ack_wait_s=2.0)
    config = reactor_consumer(ledger.names.ends_of_children, ack_wait_s=2.0)
    await ensure_consumer(ledger.inbox, ledger.names.ledger_stream, CHILDREN_CONSUMER, config)


def a_graph(chance: random.Random, count: int) -> tuple[Graph, list[int]]:
    """Return nodes over three queues, each with the results of up to three of the twenty before it, and what they return."""
    graph = Graph("nightly", limit=NODES_LIMIT)
    nodes: list[int] = []
    values: list[int] = []
    for n in range(count):
        needs = chance.sample(range(n)[-20:], min(n, chance.randint(0, 3)))
        task = chance.choice((app.page, app.part, app.rest))
        given = tuple(nodes[need] for need in needs)
        nodes.append(graph.add(task, n, chance.uniform(0.0, 0.3), given))
        values.append(n + sum(values[need] for need in needs) % 1_000)
    return graph, values


class Begun(NamedTuple):
    """Runs of real code, and what each has to return."""

    map: JobHandle[int]
    graph: JobHandle[dict[str, Any]]
    asking: list[JobHandle[int]]
    items: int
    values: list[int]  #: of the graph's nodes

    @classmethod
    async def some(cls, ledger: Ledger, chance: random.Random, items: int, nodes: int, asking: int) -> Begun:
        graph, values = a_graph(chance, nodes)
        return cls(
            map=await ledger.enqueue(app.sync, items, LIMIT),
            graph=await ledger.run_graph(graph),
            asking=[await ledger.enqueue(app.ask, n, chance.uniform(0.0, 4.0)) for n in range(asking)],
            items=items,
            values=values,
        )

    async def large_ones_ended(self) -> bool:
        """Return whether the map and the graph have ended."""
        return all([(await run.snapshot()).is_final for run in (self.map, self.graph)])

    async def hold(self, ledger: Ledger, fleet: Fleet) -> tuple[Groups, Proof]:
        """Wait for every end; hold what the runs returned, what the checker says and what a second reader counts."""
        async with asyncio.timeout(END_S):
            assert await self.map.result() == sum(range(self.items))
            assert sorted((await self.graph.result()).values()) == sorted(self.values)
            for n, run in enumerate(self.asking):
                assert await run.result() == app.answer(n)
        proof = await prove(ledger, enqueued=None, faults=fleet.faults)
        found = await Groups.of(ledger.log)
        assert found.wrong == []
        made = [found.made[run.id] for run in (self.map, self.graph, *self.asking)]
        assert made == [self.items, len(self.values), *(app.CHILDREN,) * len(self.asking)]
        assert set(found.counted.values()) == {1}
        assert len(found.counted) == sum(made)
        assert found.waits == found.resumed
        assert set(RUN_RULES) - {"copied"} <= set(proof.hold().report.proven)
        return found, proof


async def tell(ledger: Ledger, runs: list[JobHandle[int]], chance: random.Random, within_s: float) -> None:
    """Send each run its signal twice, some early, some late."""

    async def one(n: int, run: JobHandle[int]) -> None:
        for _ in range(2):
            await asyncio.sleep(chance.uniform(0.0, within_s / 2))
            for _ in range(10):
                try:
                    await ledger.signal(run, app.go, n, id="go")
                    break
                except UnreachableError:
                    continue  # whether it was recorded, nobody knows: its id makes it safe to say it again

    await asyncio.gather(*(one(n, run) for n, run in enumerate(runs)))


async def keep(fleet: Fleet, workers: list[WorkerProcess]) -> Counter[str]:
    """Start again those that ended; return how many did so by themselves, and where."""
    ends: Counter[str] = Counter()
    for index, worker in enumerate(workers):
        if not worker.alive:
            where = app.ENDS.get(worker.process.returncode or 0)
            if where is not None:
                ends[where] += 1
            workers[index] = await fleet.begin("--concurrency", "30")
    return ends


async def calm(fleet: Fleet, workers: list[WorkerProcess]) -> None:
    """Put workers that end only when they are asked to in the place of the others."""
    fleet.variables |= {"GROUPS_CRASH": "0", "GROUPS_CRASH_LATER": "0"}
    for worker in workers:
        await worker.stop()
    for _ in range(2):
        await fleet.begin("--concurrency", "30")


async def harm_one(
    kind: str, fleet: Fleet, workers: list[WorkerProcess], server: EmbeddedServer, chance: random.Random
) -> None:
    """Do one harm."""
    victim = chance.choice([worker for worker in workers if worker.alive] or workers)
    match kind:
        case "worker killed":
            fleet.kill(victim.pid)
            await victim.process.wait()
        case "worker frozen":
            await fleet.freeze(victim.pid, chance.uniform(1.0, 5.0))
        case "server killed":
            await kill_server(server, chance)
        case "server frozen":
            await freeze_server(server, chance)
        case _:
            await restart_server(server, chance)


async def harm(
    fleet: Fleet, workers: list[WorkerProcess], server: EmbeddedServer, runs: Begun, chance: random.Random
) -> Counter[str]:
    """Harm workers and the server in rounds for a while, or until the large runs have ended; return what was done."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + HARM_S
    while time.monotonic() < until and not (counts and await runs.large_ones_ended()):
        for kind in chance.sample(HARMS, len(HARMS)):
            await asyncio.sleep(chance.uniform(0.3, 2.5))
            counts += await keep(fleet, workers)
            await harm_one(kind, fleet, workers, server, chance)
            counts[kind] += 1
    return counts + await keep(fleet, workers)


async def test_runs_go_on_while_workers_reactors_and_the_server_are_killed(
    ledger: Ledger, server: EmbeddedServer, fleet: Fleet, chance: random.Random, record: Recorder
) -> None:
    """A map of 2,000, a graph of 200 nodes over three queues, and small runs: killed at random and between appends."""
    fleet.app = APP
    fleet.variables |= {"GROUPS_CRASH": "0.02", "GROUPS_CRASH_LATER": "0.02"}
    await consumers(ledger)
    workers = [await fleet.begin("--concurrency", "30") for _ in range(WORKERS)]
    runs = await Begun.some(ledger, chance, ITEMS, NODES, ASKING)
    telling = asyncio.create_task(tell(ledger, runs.asking, chance, HARM_S / 2))
    counts = await harm(fleet, workers, server, runs, chance)
    await calm(fleet, workers)
    await telling
    found, proof = await runs.hold(ledger, fleet)
    await fleet.stop()
    assert LIMIT // 2 < found.peaks[runs.map.id, "sheet"] <= LIMIT
    assert counts.keys() >= {*HARMS, app.ENDS[9]}, f"something was not done: {counts}"
    record(
        "R1",
        "workers killed at random, and between counting ends of children and making the next ones, and frozen; the "
        "server killed, frozen and restarted; under a map of 2,000 (limit 50), a graph of 200 nodes over three queues "
        "and 40 runs that wait for times, signals and children",
        faults=", ".join(f"{times} {what}" for what, times in counts.items())
        + f"; at most {found.peaks[runs.map.id, 'sheet']} open, every end counted once, each of "
        f"{sum(found.waits.values())} waits resumed once",
        jobs=len(found.jobs),
        events=proof.report.events,
        now=time.monotonic(),
    )


async def test_cancelled_runs_leave_no_child_behind_while_workers_are_killed(
    ledger: Ledger, fleet: Fleet, chance: random.Random, record: Recorder
) -> None:
    fleet.app = APP
    fleet.variables |= {"GROUPS_CRASH": "0.05", "GROUPS_CRASH_LATER": "0.1"}
    await consumers(ledger)
    workers = [await fleet.begin("--concurrency", "30") for _ in range(2)]
    runs: list[JobHandle[int]] = []
    crashes: Counter[str] = Counter()
    for _ in range(20):
        runs.append(await ledger.enqueue(app.sync, 60, 8))
        await asyncio.sleep(chance.uniform(0.0, 1.2))
        crashes += await keep(fleet, workers)
        with contextlib.suppress(IllegalTransitionError):  # it has ended
            await runs[-1].cancel()
    await calm(fleet, workers)
    async with asyncio.timeout(END_S):
        ended = [await run.wait() for run in runs]
    await _until_settled(ledger)
    proof = await prove(ledger, enqueued=None, faults=fleet.faults)
    found = await Groups.of(ledger.log)
    await fleet.stop()
    assert found.wrong == []
    proof.hold()
    cancelled = sum(run.state is JobState.CANCELLED for run in ended)
    assert cancelled > 5
    assert crashes.total() > 5, "no worker ended where it hurts"
    record(
        "R2",
        "runs cancelled at random moments while workers end between enqueueing children and looking at their run",
        faults=f"{cancelled} of {len(runs)} runs cancelled, {crashes.total()} workers ended; no child left open",
        jobs=len(found.jobs) - len(runs),
        events=proof.report.events,
        now=time.monotonic(),
    )


async def _until_settled(ledger: Ledger) -> None:
    """Wait until the reactor has nothing left to do."""
    quiet = 0
    async with asyncio.timeout(120):
        while quiet < 5:
            info = await api(
                ledger.inbox, f"CONSUMER.INFO.{ledger.names.ledger_stream}.{CHILDREN_CONSUMER}", {}
            )
            quiet = 0 if info["num_pending"] or info["num_ack_pending"] else quiet + 1
            await asyncio.sleep(0.5)


async def test_runs_go_on_while_leaders_of_three_replicas_are_killed(
    replicas: Cluster, tmp_path: Path, chance: random.Random, record: Recorder
) -> None:
    settings: dict[str, Any] = {
        "replicas": SIZE,
        "ledger_bytes_max": 256 << 20,
        "lease_s": 3.0,
        "request_timeout_s": 30.0,
        "append_timeout_s": 60.0,
    }
    async with connect(replicas.url, **settings) as ledger:
        await consumers(ledger)
        fleet = Fleet(tmp_path, replicas.url, "", lease_s=3.0)
        fleet.app = APP
        try:
            workers = [await fleet.start("--concurrency", "30") for _ in range(2)]
            runs = await Begun.some(ledger, chance, 800, 80, 10)
            telling = asyncio.create_task(tell(ledger, runs.asking, chance, 10.0))
            for _ in range(LEADERS):
                await asyncio.sleep(chance.uniform(0.5, 1.5))
                dead = await replicas.kill_leader(ledger)
                fleet.kill(chance.choice(workers).pid)
                await asyncio.sleep(chance.uniform(0.5, 1.5))
                await keep(fleet, workers)
                replicas.restart(dead)
                await replicas.whole(ledger)
            await telling
            await calm(fleet, workers)  # one that began while there was no leader may have given up
            found, proof = await runs.hold(ledger, fleet)
        finally:
            await fleet.close()
    assert found.peaks[runs.map.id, "sheet"] <= LIMIT
    record(
        "R3",
        "SIGKILL of one leader of three replicas after the other, and of workers, under a map of 800, a graph of 80 nodes "
        "and 10 runs that wait",
        faults=f"{LEADERS} leaders, {LEADERS} workers; every end counted once, each of {sum(found.waits.values())} waits "
        "resumed once",
        jobs=len(found.jobs),
        events=proof.report.events,
        now=time.monotonic(),
    )
