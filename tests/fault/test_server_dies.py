"""Rows 6 to 9 of the scoreboard: nats-server is killed, restarted and frozen under load."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.fault.conftest import ConnectTo
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, load_tasks
from tests.support.proof import prove
from tests.support.watch import Watch

from jobledger.audit.verify import Expectation, verify
from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import UnreachableError

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

TASKS = load_tasks()
KILLS = 50
ROUNDS = 10
IN_FLIGHT = 5_000


async def kill_and_restart(server: EmbeddedServer) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await server.start()


async def test_fifty_kills_in_mid_append_lose_and_double_no_enqueue(
    connected: ConnectTo, server: EmbeddedServer, chance: random.Random, record: Recorder
) -> None:
    """Row 6: 64 publishers; an id whose answer did not come is asked for again, as a careful caller does."""
    acknowledged: list[tuple[str, str]] = []
    made_twice: list[str] = []
    back_s: list[float] = []
    over = asyncio.Event()
    async with connected() as ledger:

        async def publish(number: int) -> None:
            count = 0
            while not over.is_set():
                count += 1
                wanted = TASKS["nap"].options(id=f"n-{number}-{count}")
                seen_before = False
                while True:
                    try:
                        job = await ledger.enqueue(wanted, 0.0)
                    except UnreachableError:
                        seen_before = True
                        continue
                    break
                if not job.created and not seen_before:
                    made_twice.append(job.id)
                acknowledged.append(("work", job.id))

        async with asyncio.TaskGroup() as group:
            for number in range(64):
                group.create_task(publish(number))
            for _ in range(KILLS):
                before = len(acknowledged)
                while len(acknowledged) < before + 64:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(chance.random() * 0.05)
                await kill_and_restart(server)
                since, before = time.monotonic(), len(acknowledged)
                while len(acknowledged) == before:
                    await asyncio.sleep(0.001)
                back_s.append(time.monotonic() - since)
            over.set()
        # Nobody runs these: what is asked is whether exactly they are in the ledger, once each.
        report = await verify(ledger.log, expected=Expectation(enqueued=acknowledged))
    assert report.sound, report.text()
    assert report.events == len(set(acknowledged)) == len(acknowledged)
    assert made_twice == []
    record(
        "6",
        "SIGKILL of nats-server in mid-append, 64 publishers",
        faults=f"{KILLS} kills",
        jobs=report.jobs,
        events=report.events,
        now=time.monotonic(),
        worst_recovery=f"{max(back_s):.2f} s from the restart to the next acknowledgement, "
        f"median {statistics.median(back_s):.2f} s",
    )


async def test_no_completed_job_runs_again_after_the_server_was_killed(
    ledger: Ledger, fleet: Fleet, server: EmbeddedServer, record: Recorder
) -> None:
    """Row 7: killed right after completions, when a single server forgets acks that it has confirmed."""
    jobs: list[tuple[str, str]] = []
    back_s: list[float] = []
    async with Watch.following(ledger) as watch:
        await fleet.start()
        for number in range(ROUNDS):
            batch = [await ledger.enqueue(TASKS["nap"].options(id=f"r{number}-{n}"), 0.0) for n in range(100)]
            jobs += [("work", job.id) for job in batch]
            await watch.until_ended(len(jobs))
            await kill_and_restart(server)
            since = time.monotonic()
            after = await ledger.enqueue(TASKS["nap"].options(id=f"r{number}-after"), 0.0)
            jobs.append(("work", after.id))
            await watch.until_ended(len(jobs))
            back_s.append(time.monotonic() - since)
        proof = await prove(ledger, enqueued=jobs, trace=fleet.trace)
        assert await fleet.stop() == [0]
    proof.hold()
    assert watch.count == {"queued": len(jobs), "started": len(jobs), "completed": len(jobs)}
    assert proof.judged.executions == len(jobs)
    record(
        "7",
        "SIGKILL of nats-server right after 100 completions",
        faults=f"{ROUNDS} kills, 0 completed jobs ran again",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{max(back_s):.1f} s from the restart until the next job was done",
    )


@pytest.mark.parametrize(("lease_s", "ack_wait_s"), [(15.0, 10.0)], ids=["defaults"])
async def test_a_restart_with_five_thousand_in_flight_loses_and_repeats_nothing(
    ledger: Ledger, fleet: Fleet, server: EmbeddedServer, record: Recorder
) -> None:
    """Row 8: SIGTERM and a new start while 5,000 jobs run."""
    async with Watch.following(ledger) as watch:
        words = ("--concurrency", str(IN_FLIGHT // 2))
        for worker in [await fleet.begin(*words) for _ in range(2)]:
            await worker.ready()
        ids = iter(range(IN_FLIGHT))
        inputs = ({"seconds": 6.0 + (n % 10) / 10} for n in range(IN_FLIGHT))
        made = await ledger.enqueue_many(
            TASKS["nap"].options(max_attempts=3), inputs, ids=lambda _: f"n-{next(ids)}"
        )
        assert made.created == IN_FLIGHT
        await watch.until(lambda: watch.count["started"] >= IN_FLIGHT * 0.95)
        at_once = watch.count["started"] - len(watch.ended)
        await server.stop()
        await server.start()
        since = time.monotonic()
        await watch.until_ended(IN_FLIGHT)
        done_s = time.monotonic() - since
        proof = await prove(
            ledger,
            enqueued=[("work", f"n-{n}") for n in range(IN_FLIGHT)],
            trace=fleet.trace,
            faults=fleet.faults,
        )
        assert await fleet.stop() == [0, 0]
    proof.hold()
    assert set(watch.ended.values()) == {"completed"}
    record(
        "8",
        "SIGTERM and restart of nats-server with 5,000 jobs in flight",
        faults=f"1 restart, {at_once:,} running, {proof.judged.executions - IN_FLIGHT} ran again",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"all done {done_s:.1f} s after the restart (they sleep for 6 to 7 s)",
    )


@pytest.mark.parametrize("lease_s", [15.0], ids=["default lease"])
async def test_a_server_frozen_for_ten_seconds_costs_no_worker_its_jobs(
    connected: ConnectTo, server: EmbeddedServer, fleet: Fleet, record: Recorder, lease_s: float
) -> None:
    """Row 9: beyond the ack wait (2 s), within the lease (15 s)."""
    async with connected() as ledger, Watch.following(ledger) as watch:
        assert await ledger.leases.duration_s() == lease_s
        for worker in [await fleet.begin() for _ in range(2)]:
            await worker.ready()
        jobs = [await ledger.enqueue(TASKS["nap"], 1.0 + n % 15) for n in range(100)]
        await watch.until(lambda: watch.count["started"] == 100)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        on_the_way = [asyncio.create_task(ledger.enqueue(TASKS["nap"], 0.1)) for _ in range(20)]
        await asyncio.sleep(10.0)
        os.kill(server.pid, signal.SIGCONT)
        since = time.monotonic()
        jobs += [await each for each in on_the_way]
        back_s = time.monotonic() - since
        await watch.until_ended(len(jobs))
        proof = await prove(ledger, enqueued=[("work", job.id) for job in jobs], trace=fleet.trace)
        assert await fleet.stop() == [0, 0]
    proof.hold()
    counted = Counter(watch.count)
    assert counted == {"queued": 120, "started": 120, "completed": 120}
    record(
        "9",
        "SIGSTOP of nats-server for 10 s with 100 running jobs and 20 enqueues on their way",
        faults="1 freeze, 0 overlaps, 0 jobs ran twice",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{back_s:.1f} s from SIGCONT until the waiting enqueues were acknowledged",
    )
