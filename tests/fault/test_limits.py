"""Limits under fire: workers that grant slots are killed, frozen and cut off between their appends."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.cluster import SIZE, Cluster
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, WorkerProcess
from tests.support.limited import archive_beyond, begun, define, grants, peaks, take_snapshot, times_granted
from tests.support.proof import Proof, prove
from tests.support.watch import Watch, make_consumers
from tests.support.working import LIMIT_S

from jobledger.audit.verify import verify
from jobledger.audit.verify.grants import RULES
from jobledger.ledger import Ledger, Task, TaskRegistry, connect
from jobledger.ledger.model.limits.flow import FLOW, MAIN

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(420)]

APP = Path(__file__).parent / "apps" / "limits.py"
KEPT_APP = APP.with_name("kept.py")
RUNS = 24
KEPT_KILLS = 8
SLOTS = {"global": 100, "tenant": 10, "workflow": 5}
JOBS = 20_000
TENANTS = 20
FLOWS = 3  # of each
WORKERS = 3
HARM_S = 40.0
CALM_S = 10.0  # after each harm, until jobs end again


@pytest.fixture
def durability() -> str:
    return "process"


@pytest.fixture
def limited() -> Task[..., Any]:
    found: Task[..., Any] = next(iter(TaskRegistry.load([str(APP)])))
    return found


@pytest.fixture
def refused(fleet: Fleet, tmp_path: Path) -> Path:
    """The file that has a line for each grant that came second."""
    path = tmp_path / "refused"
    path.touch()
    fleet.app = APP
    fleet.variables["LIMITS_REFUSED"] = str(path)
    return path


async def fill(
    ledger: Ledger, task: Task[..., Any], chance: random.Random, jobs: int, *, seconds: float = 0.008
) -> list[str]:
    """Enqueue jobs of three limits each, which take at most the seconds given; return their ids."""
    for name, slots in SLOTS.items():
        await define(ledger, name, slots=slots)
    ids: list[str] = []
    for part in range(TENANTS * FLOWS):
        tenant, flow = divmod(part, FLOWS)
        limits = ("global", f"tenant:t{tenant}", f"workflow:w{tenant}-{flow}")
        numbers = range(part, jobs, TENANTS * FLOWS)
        given = ({"seconds": chance.uniform(0.0, seconds), "number": n} for n in numbers)
        await ledger.enqueue_many(task.options(limits=limits), given, ids=lambda each: f"j{each['number']}")
        ids += [f"j{n}" for n in numbers]
    return ids


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines())


async def test_limits_hold_while_workers_and_reactors_are_killed(  # noqa: PLR0917 - what it harms, and with what
    ledger: Ledger,
    fleet: Fleet,
    limited: Task[..., Any],
    refused: Path,
    chance: random.Random,
    record: Recorder,
) -> None:
    """Killed at random and between `granted` and `queued`, frozen: each job ends once, and no limit is passed."""
    fleet.variables |= {"LIMITS_CRASH": "0.001", "LIMITS_STALL": "0.004"}
    done = dict.fromkeys(("killed", "frozen", "crashed"), 0)
    async with Watch.following(ledger) as watch:
        workers = [await fleet.begin("--concurrency", "60") for _ in range(WORKERS)]
        ids = await fill(ledger, limited, chance, JOBS, seconds=0.4)
        began = time.monotonic()
        while time.monotonic() - began < HARM_S or not lines(refused):
            assert time.monotonic() - began < 4 * HARM_S, (
                f"no grant was ever refused, so the race did not happen: {done}, {len(watch.ended)} jobs ended"
            )
            seen, until = len(watch.ended), time.monotonic() + CALM_S
            while len(watch.ended) < min(seen + 200, len(ids)) and time.monotonic() < until:
                await asyncio.sleep(0.1)
                done["crashed"] += await keep(fleet, workers)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            granting = await granting_among(ledger, workers)
            if granting is None or chance.random() < 0.5:
                done["killed"] += 1
                victim = chance.choice(workers)
                fleet.kill(victim.pid)
                await victim.process.wait()
            else:
                done["frozen"] += 1
                await fleet.freeze(granting.pid, chance.uniform(1.4, 2.4))
            done["crashed"] += await keep(fleet, workers)
        fleet.variables |= {"LIMITS_CRASH": "0", "LIMITS_STALL": "0"}
        for worker in workers:
            await worker.stop()
        calm = [await fleet.begin("--concurrency", "60") for _ in range(2)]
        await watch.until_ended(len(ids), limit_s=180.0)
        proof = await prove(ledger, enqueued=[("work", each) for each in ids], faults=fleet.faults)
        for worker in calm:
            await worker.stop()
    assert proof.hold().report.proven == RULES
    held, ran = await peaks(ledger.log)
    assert held == SLOTS
    assert all(ran[name] <= slots for name, slots in SLOTS.items()), ran
    assert set(watch.ended.values()) == {"completed"}
    assert len(await times_granted(ledger)) == len(ids)
    assert done["crashed"], "no worker ended between the two appends"
    record(
        "36",
        "workers that host the reactor of the limits, killed at random and between its two appends, and frozen",
        faults=f"{done['killed']} kills, {done['crashed']} between granted and queued, {done['frozen']} freezes, "
        f"{lines(refused)} refused grants; held at most {held}",
        jobs=len(ids),
        events=proof.report.events,
        now=time.monotonic(),
    )


async def granting_among(ledger: Ledger, workers: list[WorkerProcess]) -> WorkerProcess | None:
    """Return the worker whose reactor granted last, if it lives."""
    newest = await ledger.log.last(FLOW.of_type(ledger.names, "granted", MAIN))
    author = "" if newest is None else FLOW.decode(newest).by
    return next((each for each in workers if each.alive and f"-{each.pid}-" in author), None)


async def keep(fleet: Fleet, workers: list[WorkerProcess]) -> int:
    """Start again those that ended; return how many did so by themselves."""
    crashed = 0
    for index, worker in enumerate(workers):
        if not worker.alive:
            crashed += worker.process.returncode == 9
            workers[index] = await fleet.begin("--concurrency", "60")
    return crashed


class Harmed(NamedTuple):
    """What came of harming workers that grant."""

    taken_over_s: float  #: until another one granted
    proof: Proof
    jobs: int


async def granted_after(ledger: Ledger, since: datetime, is_other: Callable[[str], bool]) -> float:
    """Return how many seconds after a moment another one granted, by that one's clock: to read all grants takes long."""
    while True:
        later = [each.at for each in await grants(ledger) if each.at > since and is_other(each.by)]
        if later:
            return (later[0] - since).total_seconds()
        await asyncio.sleep(0.02)


async def harmed(
    ledger: Ledger,
    fleet: Fleet,
    task: Task[..., Any],
    chance: random.Random,
    harm: Callable[[list[WorkerProcess]], Awaitable[float]],
    *,
    workers: int,
    jobs: int,
    seconds: float = 0.008,
) -> Harmed:
    """Run jobs on several workers, harm these once 20 grants are stored, and prove that every job ended once.

    `harm` returns after how many seconds another one granted.
    """
    async with Watch.following(ledger) as watch:
        started = [await fleet.start("--concurrency", "40") for _ in range(workers)]
        filling = asyncio.create_task(fill(ledger, task, chance, jobs, seconds=seconds))
        async with asyncio.timeout(LIMIT_S):
            while len(await grants(ledger)) < 20:
                await asyncio.sleep(0.1)
        taken_over_s = await harm(started)
        ids = await filling
        await watch.until_ended(len(ids), limit_s=180.0)
        proof = await prove(ledger, enqueued=[("work", each) for each in ids], faults=fleet.faults)
        await fleet.stop()
    assert proof.hold().report.proven == RULES
    return Harmed(taken_over_s, proof, len(ids))


async def test_the_other_reactor_goes_on_within_two_seconds_of_a_freeze(  # noqa: PLR0917 - as above
    ledger: Ledger,
    fleet: Fleet,
    limited: Task[..., Any],
    refused: Path,
    chance: random.Random,
    record: Recorder,
) -> None:
    """SIGSTOP of the one that grants, for ten seconds; then it comes back, and no limit is passed."""

    async def freeze(workers: list[WorkerProcess]) -> float:
        author = (await grants(ledger))[-1].by
        frozen = await granting_among(ledger, workers)
        assert frozen is not None
        since, frozen_at = fleet.stop_still(frozen.pid), datetime.now(UTC)
        try:
            async with asyncio.timeout(10):
                taken_over_s = await granted_after(ledger, frozen_at, lambda by: by != author)
            await asyncio.sleep(max(0.0, 10.0 - taken_over_s))
        finally:
            fleet.go_on(frozen.pid, since)
        return taken_over_s

    found = await harmed(ledger, fleet, limited, chance, freeze, workers=2, jobs=60_000)
    held, _ = await peaks(ledger.log)
    assert held == SLOTS
    assert found.taken_over_s <= 2.0
    record(
        "36b",
        "SIGSTOP for 10 s of the worker whose reactor grants",
        faults=f"1 freeze, {lines(refused)} refused grants",
        jobs=found.jobs,
        events=found.proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{found.taken_over_s:.2f} s until the other one granted",
    )


async def test_a_third_worker_grants_after_both_hosts_of_the_reactor_were_killed(  # noqa: PLR0917 - as above
    ledger: Ledger,
    fleet: Fleet,
    limited: Task[..., Any],
    refused: Path,
    chance: random.Random,
    record: Recorder,
) -> None:
    """Nobody stands by any more: the next one hosts it once their leases are over, and reads what is stored first.

    It looks at the leases each second, and the server may see late that one is over: two seconds for both. How long it
    reads depends on the machine and on what is stored since the newest snapshot (a second for 20,000 events where
    nothing else runs), so the test reads the same at the same time.
    """
    read_s = 0.0

    async def kill_hosts(workers: list[WorkerProcess]) -> float:
        names = sorted(info.worker for info in await ledger.leases.all())
        hosts = [each for each in workers if any(f"-{each.pid}-" in name for name in names[:2])]
        assert len(hosts) == 2
        for host in hosts:
            fleet.kill(host.pid)
        killed_at = datetime.now(UTC)
        async with asyncio.timeout(2 * LIMIT_S):
            while {*names[:2]} & {info.worker for info in await ledger.leases.all()}:
                await asyncio.sleep(0.02)
            nonlocal read_s
            since = time.monotonic()
            _, folding = await begun(ledger)
            folding.close()
            read_s = time.monotonic() - since
            return await granted_after(ledger, killed_at, lambda by: by == names[2])

    found = await harmed(ledger, fleet, limited, chance, kill_hosts, workers=3, jobs=20_000, seconds=0.05)
    assert lines(refused) == 0
    assert found.taken_over_s <= fleet.lease_s + 2.0 + read_s
    record(
        "36d",
        "SIGKILL of both workers that host the reactor of the limits",
        faults="2 kills at once",
        jobs=found.jobs,
        events=found.proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{found.taken_over_s:.1f} s until a third one granted, under leases of {fleet.lease_s:g} s, "
        f"where to read what is stored took {read_s:.1f} s",
    )


async def test_limits_hold_while_the_leader_of_three_replicas_is_killed(
    replicas: Cluster,
    tmp_path: Path,
    limited: Task[..., Any],
    chance: random.Random,
    record: Recorder,
) -> None:
    settings: dict[str, Any] = {
        "replicas": SIZE,
        "ledger_bytes_max": 256 << 20,
        "lease_s": 3.0,
        "request_timeout_s": 30.0,
        "append_timeout_s": 60.0,
    }
    async with connect(replicas.url, **settings) as ledger:
        await make_consumers(ledger, "work", ack_wait_s=2.0)
        fleet = Fleet(tmp_path, replicas.url, "", lease_s=3.0)
        fleet.app = APP
        try:
            async with Watch.following(ledger) as watch:
                for _ in range(2):
                    await fleet.start("--concurrency", "60")
                ids = await fill(ledger, limited, chance, 6_000)
                await watch.until(lambda: len(watch.ended) > 500)
                await replicas.kill_leader(ledger)
                began = time.monotonic()
                seen = len(watch.ended)
                await watch.until(lambda: len(watch.ended) > seen + 200)
                recovery_s = time.monotonic() - began
                await watch.until_ended(len(ids), limit_s=180.0)
            proof = await prove(ledger, enqueued=[("work", each) for each in ids], faults=fleet.faults)
        finally:
            await fleet.close()
        held, _ = await peaks(ledger.log)
    assert proof.hold().report.proven == RULES
    assert held == SLOTS
    record(
        "36c",
        "SIGKILL of the leader of three replicas while limited jobs run",
        faults="1 kill",
        jobs=len(ids),
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{recovery_s:.1f} s until jobs ended again",
    )


async def test_children_go_on_on_the_slot_of_their_run_while_workers_are_killed(
    ledger: Ledger, fleet: Fleet, chance: random.Random, record: Recorder, tmp_path: Path
) -> None:
    """A run keeps the only slot of its customer, and calls what names the same: nobody waits for himself."""
    fleet.app = KEPT_APP
    order = TaskRegistry.load([str(KEPT_APP)]).get("order")
    async with Watch.following(ledger) as watch:
        workers = [await fleet.begin("--concurrency", "20") for _ in range(WORKERS)]
        jobs = [await ledger.enqueue(order.options(id=f"o{n}"), customer=f"c{n % 6}") for n in range(RUNS)]
        for _ in range(KEPT_KILLS):
            seen = len(watch.ended)
            await watch.until_ended(seen + 1)
            victim = chance.choice(workers)
            fleet.kill(victim.pid)
            await victim.process.wait()
            await keep(fleet, workers)
        for job in jobs:
            assert await job.result(timeout_s=LIMIT_S) == 4
        proof = await prove(ledger, enqueued=None, faults=fleet.faults)
        for worker in workers:
            await worker.stop()
    proof.hold()
    held, _ = await peaks(ledger.log)
    assert held == {"customer": 1}
    head = (await ledger.log.head()).last_sequence
    await take_snapshot(ledger)  # else all grants stay
    await archive_beyond(ledger, tmp_path / "archive", head // 2)
    assert (report := await verify(ledger.log)).sound, report.text()
    record(
        "36e",
        "SIGKILL of workers while runs keep slots that their children name",
        faults=f"{KEPT_KILLS} kills",
        jobs=6 * RUNS,
        events=proof.report.events,
        now=time.monotonic(),
    )
