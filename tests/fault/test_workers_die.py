"""Rows 1, 3, 4 and 5 of the scoreboard: workers are killed, frozen, blocked by their own tasks, and told to stop."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path

import pytest
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, WorkerProcess, load_tasks
from tests.support.proof import prove
from tests.support.traces import read
from tests.support.watch import Watch
from tests.support.working import until

from jobledger.ledger import Ledger

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

TASKS = load_tasks()
KILLS = 100
WORKERS = 3


async def test_workers_killed_a_hundred_times_lose_nothing_and_double_nothing(
    ledger: Ledger, fleet: Fleet, chance: random.Random, record: Recorder
) -> None:
    """Row 1: SIGKILL at a random moment; a killed attempt runs again within lease and ack wait and a second."""
    limit_s = fleet.lease_s + 2.0 + 1.0  # the lease, the ack wait, a second
    enqueued: list[tuple[str, str]] = []
    async with Watch.following(ledger) as watch:

        async def feed() -> None:
            names = ("nap", "nap_in_thread")
            while True:
                options = TASKS[chance.choice(names)].options(max_attempts=KILLS)
                job = await ledger.enqueue(options, chance.random())
                enqueued.append(("work", job.id))
                while len(enqueued) - len(watch.ended) > 20:
                    await asyncio.sleep(0.02)

        feeding = asyncio.create_task(feed())
        workers = [await fleet.begin("--concurrency", "10") for _ in range(WORKERS)]
        for number in range(KILLS):
            victim = workers[number % WORKERS]
            await victim.ready()
            await asyncio.sleep(chance.random() * 0.3)
            fleet.kill(victim.pid)
            workers[number % WORKERS] = await fleet.begin("--concurrency", "10")
        feeding.cancel()
        await asyncio.wait([feeding])
        # What was on its way when the feeding was cut short may be in the ledger or not.
        await watch.until(lambda: watch.count["queued"] >= len(enqueued))
        await watch.until_ended(len(enqueued))
        proof = await prove(ledger, enqueued=None, trace=fleet.trace, faults=fleet.faults)
        assert await fleet.stop() == [0] * WORKERS
    proof.hold()
    assert set(watch.ended.values()) == {"completed"}
    assert {job for _, job in enqueued} <= set(watch.ended)
    rerun_s = proof.judged.rerun_s
    assert len(rerun_s) > KILLS / 2, "too few kills cut an attempt off for the row to say anything"
    # A job that loses one worker after the other is looked at less often each time.
    assert statistics.median(proof.judged.first_rerun_s) <= limit_s
    record(
        "1",
        "SIGKILL of one of three workers at a random moment",
        faults=f"{KILLS} kills, {len(rerun_s):,} attempts cut off",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{max(rerun_s):.1f} s until a killed attempt ran again, median {statistics.median(rerun_s):.1f} s, "
        f"of first attempts {statistics.median(proof.judged.first_rerun_s):.1f} s",
    )


async def test_a_hundred_outcomes_of_a_frozen_worker_are_refused(
    ledger: Ledger, fleet: Fleet, gate: Path, record: Recorder
) -> None:
    """Row 3: SIGSTOP past the lease, takeover, SIGCONT."""
    names = ["until_there"] * 100
    async with Watch.following(ledger) as watch:
        frozen = await fleet.start("--concurrency", "100")
        jobs = [await ledger.enqueue(TASKS[name], str(gate)) for name in names]
        # All of their code runs, too: a claim is in the ledger before its code begins.
        await until(lambda: len(read(fleet.trace)[0]) == 100)
        since = fleet.stop_still(frozen.pid)
        heir = await fleet.start("--concurrency", "100")
        await watch.until(lambda: watch.count["started"] == 200)
        taken_over_s = time.monotonic() - since
        gate.touch()  # noqa: ASYNC240 - a local file
        await watch.until_ended(100)
        fleet.go_on(frozen.pid, since)
        await watch.until(lambda: watch.count["fenced"] == 100)
        proof = await prove(
            ledger, enqueued=[("work", job.id) for job in jobs], trace=fleet.trace, faults=fleet.faults
        )
        assert [await each.stop() for each in (frozen, heir)] == [0, 0]
    proof.hold()
    assert watch.count == {"queued": 100, "started": 200, "lost": 100, "completed": 100, "fenced": 100}
    assert len(proof.judged.zombie_s) == 100
    record(
        "3",
        "SIGSTOP of a worker with 100 running jobs past its lease, takeover by another, SIGCONT",
        faults="1 freeze, 100 of 100 late outcomes refused",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{taken_over_s:.1f} s until all were taken over; "
        f"the thawed worker ran on for {max(proof.judged.zombie_s):.2f} s at most",
    )


@pytest.mark.parametrize("how", ["sleep", "interpreter"])
async def test_a_blocked_event_loop_loses_its_jobs_and_cannot_finish_them(
    ledger: Ledger, fleet: Fleet, record: Recorder, how: str
) -> None:
    """Row 4: a handler blocks the loop past the lease; nothing but that handler can run twice at a time."""
    async with Watch.following(ledger) as watch:
        blocked = await fleet.start("--concurrency", "30")
        naps = [await ledger.enqueue(TASKS["nap"].options(id=f"nap-{n}"), 4.0) for n in range(20)]
        await watch.until(lambda: watch.count["started"] == 20)
        culprit = await ledger.enqueue(TASKS["block"].options(id="culprit"), fleet.lease_s + 4.0, how)
        await watch.until(lambda: watch.count["started"] == 21)
        heir = await fleet.start("--concurrency", "30")
        began = time.monotonic()
        await watch.until_ended(21)
        recovery_s = time.monotonic() - began
        await watch.until(lambda: watch.count["fenced"] >= 1)
        assert [await each.stop() for each in (blocked, heir)] == [0, 0]
        enqueued = [("work", job.id) for job in (*naps, culprit)]
        # Nobody can stop a handler that does not let go of the loop: the ledger refuses what it returns.
        whole = await prove(ledger, enqueued=enqueued, trace=fleet.trace, faults=fleet.faults)
    rest = [problem for problem in whole.problems if not problem.startswith("overlap: ")]
    assert rest == [], rest
    assert whole.judged.overlaps
    assert "culprit" in _log(blocked)  # it is named, while it blocks or afterwards
    record(
        f"4{'a' if how == 'sleep' else 'b'}",
        "a handler blocks its worker's event loop beyond the lease "
        + ("(time.sleep)" if how == "sleep" else "(C code that keeps the interpreter's lock)"),
        faults=f"1 block, {watch.count['fenced']} late outcomes refused, what the blocked process held overlaps its successors until it lets go",
        jobs=whole.report.jobs,
        events=whole.report.events,
        now=time.monotonic(),
        worst_recovery=f"{recovery_s:.1f} s until all jobs were done",
    )


def _log(worker: WorkerProcess) -> str:
    return worker.log_path.read_text(encoding="utf-8")


async def test_what_holds_the_interpreter_in_a_process_of_the_pool_costs_no_lease(
    ledger: Ledger, fleet: Fleet, record: Recorder
) -> None:
    """Row 4, the cure: with run_in="process" the worker renews its lease meanwhile."""
    async with Watch.following(ledger) as watch:
        await fleet.start()
        held = await ledger.enqueue(TASKS["block_in_process"], fleet.lease_s + 2.0, "interpreter")
        await watch.until(lambda: watch.count["started"] == 1)
        await fleet.start()
        await watch.until_ended(1)
        proof = await prove(ledger, enqueued=[("work", held.id)], trace=fleet.trace, faults=fleet.faults)
        assert await fleet.stop() == [0, 0]
    proof.hold()
    assert watch.count == {"queued": 1, "started": 1, "completed": 1}
    record(
        "4c",
        'the same C code in a task with run_in="process"',
        faults="1 block, no lease lost",
        jobs=1,
        events=proof.report.events,
        now=time.monotonic(),
    )


async def test_a_term_signal_with_fifty_running_loses_and_doubles_nothing(
    ledger: Ledger, fleet: Fleet, chance: random.Random, record: Recorder
) -> None:
    """Row 5: exit within the grace, whatever can end in it has one attempt, the rest is given back."""
    grace_s = 2.0
    async with Watch.following(ledger) as watch:
        stopped = await fleet.start("--grace", str(grace_s))
        jobs = [await ledger.enqueue(TASKS["nap"], chance.uniform(0.5, 3.5)) for _ in range(50)]
        await watch.until(lambda: watch.count["started"] == 50)
        told_at = time.monotonic()
        assert await stopped.stop() == 0
        exit_s = time.monotonic() - told_at
        heir = await fleet.start()
        await watch.until_ended(50)
        assert await heir.stop() == 0
        proof = await prove(ledger, enqueued=[("work", job.id) for job in jobs], trace=fleet.trace)
    proof.hold()
    assert exit_s <= grace_s + 1.5
    assert watch.count["completed"] == 50
    assert watch.count["started"] == 50 + watch.count["interrupted"]
    record(
        "5",
        "SIGTERM with 50 running jobs",
        faults=f"1 signal, {50 - watch.count['interrupted']} ended in the grace, {watch.count['interrupted']} given back",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"exit {exit_s:.1f} s after the signal (grace {grace_s:g} s)",
    )
