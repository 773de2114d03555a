"""Children of runs under fire: workers with their reactors are killed and frozen between any two of their appends."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.cluster import SIZE, Cluster, cluster
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, WorkerProcess
from tests.support.groups import KEY, Groups, begin
from tests.support.jetstream import api
from tests.support.proof import prove
from tests.support.watch import make_consumers

from jobledger.ledger import JobHandle, JobState, Ledger, connect
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import Claim, Complete
from jobledger.ledger.model.runs.orders import ChildNode, ChildOrder
from jobledger.ledger.nats.durables import ensure_consumer, reactor_consumer
from jobledger.workers.reactors.children.opening import Opening
from jobledger.workers.reactors.children.reactor import CONSUMER

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(420)]

APP: Final = Path(__file__).parent / "apps" / "groups.py"
QUEUES: Final = {"page": "one", "part": "two", "rest": "three"}
ITEMS, LIMIT = 2_000, 50
NODES, NODES_LIMIT = 200, 20
WORKERS = 3
HARM_S = 60.0
CALM_S = 1.0  # at least this many seconds after each harm, at most four times as many
Inputs = list[dict[str, Any]]


@pytest.fixture
def durability() -> str:
    return "process"


def a_map(chance: random.Random, count: int, seconds: float, **changes: Any) -> tuple[ChildOrder, Inputs]:
    given = [{"n": n, "seconds": chance.uniform(0.0, seconds)} for n in range(count)]
    return ChildOrder(task="page", queue="one", count=count, max_attempts=50, **changes), given


def a_graph(chance: random.Random, count: int, seconds: float) -> tuple[ChildOrder, Inputs]:
    """Return nodes over three queues, each of which waits for up to three of the twenty before it."""
    after = [tuple(sorted(chance.sample(range(n)[-20:], min(n, chance.randint(0, 3))))) for n in range(count)]
    tasks = [chance.choice(sorted(QUEUES)) for _ in range(count)]
    nodes = tuple(ChildNode(task=name, queue=QUEUES[name], max_attempts=50) for name in tasks)
    order = ChildOrder(
        task="graph", queue="one", count=count, limit=NODES_LIMIT, after=tuple(after), nodes=nodes
    )
    return order, [{"n": n, "seconds": chance.uniform(0.0, seconds)} for n in range(count)]


async def consumers(ledger: Ledger) -> None:
    """Make the consumers before a worker does: what a killed one had comes again soon."""
    for queue in QUEUES.values():
        await make_consumers(ledger, queue, ack_wait_s=2.0)
    config = reactor_consumer(ledger.names.ends_of_children, ack_wait_s=2.0)
    await ensure_consumer(ledger.inbox, ledger.names.ledger_stream, CONSUMER, config)


async def started(ledger: Ledger, order: ChildOrder, given: Inputs) -> JobHandle[Any]:
    """Begin a run and make its first children, as its worker would."""
    run = await begin(ledger, order, given)
    end = await ledger.log.newest_sequence(ledger.names.chain(run.ref))
    async with asyncio.timeout(30):
        while (view := await load(ledger.log, run.ref)).last_sequence < end:
            await asyncio.sleep(0.05)  # a replica that lags
    assert view.job is not None
    await Opening(ledger).open(run.ref, view, KEY, view.job.steps[KEY].open, again=False)
    return run


async def is_woken(run: JobHandle[Any]) -> bool:
    return (await run.snapshot()).state is JobState.QUEUED


async def done(ledger: Ledger, runs: list[JobHandle[Any]], limit_s: float) -> None:
    """Wait until all runs were woken, and complete them."""
    async with asyncio.timeout(limit_s):
        for run in runs:
            while not await is_woken(run):
                await asyncio.sleep(0.2)
            claimed = await ledger.execute(run.ref, Claim(worker="tester", lease_s=60))
            await ledger.execute(run.ref, Complete(epoch=claimed.claim_epoch))


async def keep(fleet: Fleet, workers: list[WorkerProcess]) -> dict[int, int]:
    """Start anew those that ended; return how many did so by themselves, by their exit code."""
    ends: dict[int, int] = {}
    for index, worker in enumerate(workers):
        if not worker.alive:
            code = worker.process.returncode or 0
            ends[code] = ends.get(code, 0) + 1
            workers[index] = await fleet.begin("--concurrency", "30")
    return ends


async def calm(fleet: Fleet, workers: list[WorkerProcess]) -> None:
    """Put workers that end only when they are asked to in the place of the others."""
    fleet.variables |= {"GROUPS_CRASH": "0", "GROUPS_CRASH_LATER": "0"}
    for worker in workers:
        await worker.stop()
    for _ in range(2):
        await fleet.begin("--concurrency", "30")


async def harm(
    fleet: Fleet, workers: list[WorkerProcess], runs: list[JobHandle[Any]], chance: random.Random
) -> dict[str, int]:
    """Kill and freeze workers at random for a while, or until the last run is woken; return how often."""
    counts: dict[str, int] = dict.fromkeys(("killed", "frozen", "between", "before the look"), 0)
    until = time.monotonic() + HARM_S
    while time.monotonic() < until and not all([await is_woken(run) for run in runs]):
        for code, times in (await keep(fleet, workers)).items():
            counts["between" if code == 9 else "before the look"] += times if code in (8, 9) else 0
        await asyncio.sleep(chance.uniform(0.3, 2.0))
        victim = chance.choice([worker for worker in workers if worker.alive] or workers)
        if chance.random() < 0.6:
            counts["killed"] += 1
            fleet.kill(victim.pid)
            await victim.process.wait()
        else:
            counts["frozen"] += 1
            await fleet.freeze(victim.pid, chance.uniform(1.0, 5.0))
        for _ in range(chance.randint(0, 4)):
            await asyncio.sleep(CALM_S)
    return counts


async def test_children_are_made_and_counted_once_while_workers_and_reactors_are_killed(
    ledger: Ledger, fleet: Fleet, chance: random.Random, record: Recorder
) -> None:
    """A map of 2,000 and a graph of 200 nodes over three queues: killed at random and between its appends, frozen."""
    fleet.app = APP
    fleet.variables |= {"GROUPS_CRASH": "0.02", "GROUPS_CRASH_LATER": "0.02"}
    await consumers(ledger)
    workers = [await fleet.begin("--concurrency", "30") for _ in range(WORKERS)]
    runs = [
        await started(ledger, *a_map(chance, ITEMS, 0.4, limit=LIMIT)),
        await started(ledger, *a_graph(chance, NODES, 0.3)),
    ]
    counts = await harm(fleet, workers, runs, chance)
    await calm(fleet, workers)
    await done(ledger, runs, 180)
    proof = await prove(ledger, enqueued=None, faults=fleet.faults)
    await fleet.stop()
    found = await Groups.of(ledger.log)
    assert found.wrong == []
    assert [found.made[run.id] for run in runs] == [ITEMS, NODES]
    assert set(found.counted.values()) == {1}
    assert len(found.counted) == ITEMS + NODES
    assert [found.woken[run.id] for run in runs] == [1, 1]
    assert found.peaks[runs[0].id, KEY] == LIMIT
    proof.hold()
    assert counts["killed"] > 3
    assert counts["between"], "no worker ended between counting and making"
    record(
        "R1",
        "workers killed at random, and between counting ends of children and making the next ones, and frozen, "
        "under a map of 2,000 (limit 50) and a graph of 200 nodes over three queues",
        faults=", ".join(f"{times} {what}" for what, times in counts.items())
        + f"; at most {found.peaks[runs[0].id, KEY]} open, every end counted once, each run woken once",
        jobs=ITEMS + NODES,
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
    runs: list[JobHandle[Any]] = []
    crashes = 0
    for _ in range(20):
        run = await started(ledger, *a_map(chance, 60, 0.2, limit=8))
        runs.append(run)
        await asyncio.sleep(chance.uniform(0.0, 1.2))
        crashes += sum((await keep(fleet, workers)).values())
        if not await is_woken(run):
            await run.cancel()
    await calm(fleet, workers)
    await _until_settled(ledger)
    found = await Groups.of(ledger.log)
    await fleet.stop()
    assert found.wrong == []
    cancelled = [run for run in runs if found.jobs[run.id].state is JobState.CANCELLED]
    assert len(cancelled) > 5
    assert crashes > 5, "no worker ended where it hurts"
    record(
        "R2",
        "runs cancelled at random moments while workers end between enqueueing children and looking at their run",
        faults=f"{len(cancelled)} of {len(runs)} runs cancelled, {crashes} workers ended; no child left open",
        jobs=len(found.jobs) - len(runs),
        events=max(job.last_sequence for job in found.jobs.values()),
        now=time.monotonic(),
    )


async def _until_settled(ledger: Ledger) -> None:
    """Wait until the reactor has nothing left to do."""
    quiet = 0
    async with asyncio.timeout(120):
        while quiet < 5:
            info = await api(ledger.inbox, f"CONSUMER.INFO.{ledger.names.ledger_stream}.{CONSUMER}", {})
            quiet = 0 if info["num_pending"] or info["num_ack_pending"] else quiet + 1
            await asyncio.sleep(0.5)


async def test_children_are_made_and_counted_once_while_leaders_of_three_replicas_are_killed(
    nats_server_binary: str, tmp_path: Path, chance: random.Random, record: Recorder
) -> None:
    settings: dict[str, Any] = {
        "replicas": SIZE,
        "ledger_bytes_max": 256 << 20,
        "lease_s": 3.0,
        "request_timeout_s": 30.0,
        "append_timeout_s": 60.0,
    }
    async with cluster(nats_server_binary, tmp_path) as made, connect(made.url, **settings) as ledger:
        await consumers(ledger)
        fleet = Fleet(tmp_path, made.url, "", lease_s=3.0)
        fleet.app = APP
        try:
            workers = [await fleet.start("--concurrency", "30") for _ in range(2)]
            runs = [
                await started(ledger, *a_map(chance, 800, 0.3, limit=LIMIT)),
                await started(ledger, *a_graph(chance, 80, 0.3)),
            ]
            await asyncio.sleep(1.5)
            await _kill_leader(made, ledger)
            fleet.kill(workers[0].pid)
            await keep(fleet, workers)
            await done(ledger, runs, 180)
            proof = await prove(ledger, enqueued=None, faults=fleet.faults)
        finally:
            await fleet.close()
        found = await Groups.of(ledger.log)
    assert found.wrong == []
    assert [found.made[run.id] for run in runs] == [800, 80]
    assert set(found.counted.values()) == {1}
    assert [found.woken[run.id] for run in runs] == [1, 1]
    proof.hold()
    record(
        "R3",
        "SIGKILL of the leader of three replicas, and of a worker, under a map of 800 and a graph of 80 nodes",
        faults="1 leader, 1 worker; every end counted once, each run woken once",
        jobs=880,
        events=proof.report.events,
        now=time.monotonic(),
    )


async def _kill_leader(made: Cluster, ledger: Ledger) -> None:
    """End the server that leads the ledger's stream, without a word."""
    info = await api(ledger.inbox, f"STREAM.INFO.{ledger.names.ledger_stream}", {})
    number = int(info["cluster"]["leader"].removeprefix("n"))
    list(made.servers.values())[number].kill()
