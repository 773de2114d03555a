"""Row 2 of the scoreboard: tasks that end, exhaust or hold the process they run in."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Any

import pytest
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, WorkerProcess, load_tasks
from tests.support.proof import prove
from tests.support.traces import read
from tests.support.watch import Watch

from jobledger.ledger import JobHandle, Ledger

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(240)]

TASKS = load_tasks()
WAYS = ("exit", "segfault", "memory", "hang")
ATTEMPTS = 2
INNOCENT = 200


async def _enqueue(ledger: Ledger, name: str) -> tuple[dict[str, JobHandle[Any]], list[JobHandle[Any]]]:
    innocent = [
        await ledger.enqueue(TASKS["nap"].options(max_attempts=50), 0.2) for _ in range(INNOCENT // 2)
    ]
    poison: dict[str, JobHandle[Any]] = {}
    for how in WAYS:
        # A hanging process is killed when its time is up; a hanging event loop hears of no timeout.
        timeout_s = 1.5 if how == "hang" else None
        poison[how] = await ledger.enqueue(
            TASKS[name].options(max_attempts=ATTEMPTS, timeout_s=timeout_s), how
        )
    innocent += [
        await ledger.enqueue(TASKS["nap"].options(max_attempts=50), 0.2) for _ in range(INNOCENT // 2)
    ]
    return poison, innocent


def _replaced(worker: WorkerProcess) -> int:
    """How many silent workers the supervisor has killed, and started another for: until then a stop would find them."""
    said = worker.log_path.read_text(encoding="utf-8")
    silent = re.findall(r"worker process (\d+) has not been heard of", said)
    return sum(
        re.search(rf"worker process {pid} was killed by SIGKILL: another starts", said) is not None
        for pid in silent
    )


async def _judged(poison: dict[str, JobHandle[Any]], innocent: list[JobHandle[Any]]) -> dict[str, str]:
    """Check how they ended; return what each dead letter says."""
    said: dict[str, str] = {}
    for how, job in poison.items():
        found = await job.snapshot()
        assert (how, found.state.value, len(found.attempts)) == (how, "dead_lettered", ATTEMPTS)
        assert found.error is not None
        said[how] = f"{found.dead_reason}: {found.error.type}: {found.error.message}"
    for each in innocent:
        assert (await each.snapshot()).state.value == "completed"
    return said


async def test_poison_in_the_process_pool_becomes_a_dead_letter(
    ledger: Ledger, fleet: Fleet, record: Recorder
) -> None:
    async with Watch.following(ledger) as watch:
        worker = await fleet.start()
        poison, innocent = await _enqueue(ledger, "die_in_process")
        await watch.until_ended(len(poison) + len(innocent))
        began = time.monotonic()
        after = await ledger.enqueue(TASKS["nap_in_process"], 0.0)
        await after.result(timeout_s=10.0)
        back_s = time.monotonic() - began
        jobs = [*poison.values(), *innocent, after]
        proof = await prove(
            ledger, enqueued=[("work", job.id) for job in jobs], trace=fleet.trace, faults=fleet.faults
        )
        assert await worker.stop() == 0
    proof.hold()
    said = await _judged(poison, innocent)
    assert "SIGSEGV" in said["segfault"], said
    assert "code 7" in said["exit"], said
    assert "MemoryError" in said["memory"], said
    assert "timeout" in said["hang"], said
    assert back_s <= 2.0
    assert max(proof.judged.rerun_s, default=0.0) <= 5.0  # with the backoff
    record(
        "2a",
        "tasks in the process pool that os._exit, segfault, exhaust memory (RLIMIT_AS) or hang in C code",
        faults=f"{len(WAYS)} poison jobs, {ATTEMPTS} attempts each",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{back_s:.1f} s until the pool ran the next job",
    )


async def test_poison_in_supervised_workers_becomes_a_dead_letter(
    ledger: Ledger, fleet: Fleet, record: Recorder
) -> None:
    """A worker that a task blocks for ever is killed by its supervisor, or all of them would be lost one by one."""
    async with Watch.following(ledger) as watch:
        worker = await fleet.start("--processes", "2", ready=2)
        poison, innocent = await _enqueue(ledger, "die")
        await watch.until_ended(len(poison) + len(innocent), 120)
        hangs = sum(each.job == poison["hang"].id for each in read(fleet.trace)[0])
        await watch.until(lambda: _replaced(worker) == hangs and worker.ready_children() == 2)
        began = time.monotonic()
        after = await ledger.enqueue(TASKS["nap"], 0.0)
        await after.result(timeout_s=10.0)
        back_s = time.monotonic() - began
        jobs = [*poison.values(), *innocent, after]
        proof = await prove(
            ledger, enqueued=[("work", job.id) for job in jobs], trace=fleet.trace, faults=fleet.faults
        )
        code = await worker.stop()
    proof.hold()
    said = await _judged(poison, innocent)
    assert "died" in said["exit"] or "lost" in said["exit"], said
    assert code == 0
    assert back_s <= 2.0
    record(
        "2b",
        "the same in the workers themselves, under --processes 2; the hang blocks the event loop",
        faults=f"{len(WAYS)} poison jobs, {ATTEMPTS} attempts each",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{max(proof.judged.rerun_s, default=0.0):.1f} s until a killed attempt ran again",
    )


STUBBORN = 8


async def test_tasks_that_swallow_their_cancellation_cost_no_worker(
    ledger: Ledger, fleet: Fleet, record: Recorder
) -> None:
    """Every slot of a worker is lost to them in turn; its supervisor replaces it, and everything else goes on."""
    async with Watch.following(ledger) as watch:
        worker = await fleet.start("--processes", "1", "--concurrency", "4", "--cancel-grace", "0.3")
        never, nap = TASKS["never_mind"], TASKS["nap"].options(max_attempts=50)
        limited = never.options(timeout_s=0.5, max_attempts=ATTEMPTS)
        stubborn = [await ledger.enqueue(limited) for _ in range(STUBBORN)]
        to_cancel = [await ledger.enqueue(never.options(max_attempts=50)) for _ in range(STUBBORN // 2)]
        innocent = [await ledger.enqueue(nap, 0.2) for _ in range(INNOCENT // 4)]
        for job in to_cancel:
            await watch.until(partial(watch.running.__contains__, job.id))
            await ledger.cancel(job.ref)
        await watch.until_ended(STUBBORN + len(to_cancel) + len(innocent), 120)
        began = time.monotonic()
        assert await (await ledger.enqueue(nap, 0.0)).result(timeout_s=10.0) >= 1
        back_s = time.monotonic() - began
        code = await worker.stop()
        proof = await prove(ledger, enqueued=None, logs=fleet.logs, secrets=[])
    proof.hold()
    for job in stubborn:
        found = await job.snapshot()
        assert (found.state.value, len(found.attempts)) == ("dead_lettered", ATTEMPTS)
    assert {(await job.snapshot()).state.value for job in to_cancel} == {"cancelled"}
    assert {(await job.snapshot()).state.value for job in innocent} == {"completed"}
    log = worker.log_path.read_text(encoding="utf-8")
    abandoned, replaced = log.count("does not end: its attempt"), log.count("its supervisor starts another")
    assert abandoned >= STUBBORN * ATTEMPTS + len(to_cancel)
    assert replaced >= 3
    assert "in never_mind" in log
    assert code == 0
    record(
        "2c",
        "async tasks that swallow timeout and cancel, until every slot of their worker is held by one",
        faults=f"{abandoned} attempts, {replaced} workers",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{back_s:.1f} s until the next job",
    )
