"""Tasks with `run_in="process"` in a worker: whatever they do to their process, the job's story is right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.working import LIMIT_S, ended, until, working

from jobledger.ledger import JobState, Ledger, TaskRegistry, task
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.workers import Worker

pytestmark = pytest.mark.anyio

SOURCE = """
import ctypes, os, signal, time
from pathlib import Path

from jobledger.ledger import Backoff, Cancel, Context, Retry, Snooze, task

quick = Backoff(base_s=0)


@task(queue="cpu", run_in="process", max_attempts=2, backoff=quick, give_up_on=(KeyError,))
def work(what: str) -> object:
    if what == "pid":
        return os.getpid()
    if what == "exit":
        os._exit(3)
    if what == "segfault":
        ctypes.string_at(0)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise ValueError("inside")
    if what == "give up":
        raise KeyError("inside")
    if what == "retry":
        return Retry(0, "again")
    if what == "cancel":
        return Cancel("no need")
    return what


@task(queue="cpu", run_in="process", max_attempts=1, timeout_s=2.0)
def for_ever(marker: str) -> None:
    Path(marker).write_text(str(os.getpid()))
    while True:
        pass


@task(queue="cpu", run_in="process", max_attempts=1)
def stoppable(marker: str) -> None:
    Path(marker).write_text(str(os.getpid()))
    time.sleep(60)


@task(queue="cpu", run_in="process", max_attempts=1, heartbeat_s=1.5)
def silent(context: Context, beats: int) -> int:
    for _ in range(beats):
        context.heartbeat()
        time.sleep(0.2)
    if beats < 10:
        time.sleep(60)
    return beats


@task(queue="cpu", run_in="process", max_attempts=3, backoff=quick)
async def continues(context: Context, rows: int) -> list[int]:
    start = context.checkpoint_value or 0
    for row in range(start, rows):
        await context.checkpoint(row + 1)
        context.progress(row, rows)
        if row % 2 == 1 and context.attempt < 3:
            os._exit(1)
    return [start, rows]
"""


@pytest.fixture
def tasks(tmp_path: Path) -> TaskRegistry:
    path = tmp_path / f"process_tasks_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(SOURCE)
    return TaskRegistry.load([str(path)])


@pytest.fixture
async def worker(ledger: Ledger, tasks: TaskRegistry) -> AsyncIterator[Worker]:
    async with working(ledger, registry=tasks, pool_size=2) as made:
        yield made


def _process_of(marker: Path) -> Path:
    return Path("/proc") / marker.read_text()


def _rewrite(tasks: TaskRegistry, source: str) -> None:
    """Change what new processes load."""
    Path(tasks.modules[0]).write_text(source)


async def _ready(ledger: Ledger, tasks: TaskRegistry) -> None:
    """Wait until there is a process: how long one takes to start is no part of what is measured."""
    assert await (await ledger.enqueue(tasks.get("work"), "ready")).result(timeout_s=2 * LIMIT_S) == "ready"


async def _gone(marker: Path) -> None:
    """Wait until the process that left its id in a file is no more."""
    process = _process_of(marker)
    await until(lambda: not process.exists())


async def test_calls_reuse_processes_that_are_not_ours(
    ledger: Ledger, tasks: TaskRegistry, worker: Worker
) -> None:
    jobs = [await ledger.enqueue(tasks.get("work"), "pid") for _ in range(6)]
    pids = {await job.result(timeout_s=2 * LIMIT_S) for job in jobs}
    assert 1 <= len(pids) <= 2
    assert worker.running == 0


@pytest.mark.parametrize(
    ("what", "says"),
    [
        pytest.param("exit", "exit", marks=pytest.mark.fault),
        ("segfault", "SIGSEGV"),
        pytest.param("kill", "SIGKILL", marks=pytest.mark.fault),
        ("raise", "inside"),
    ],
)
async def test_poison_is_a_dead_letter_that_says_so_and_the_rest_goes_on(
    ledger: Ledger, tasks: TaskRegistry, worker: Worker, what: str, says: str
) -> None:
    poison = await ledger.enqueue(tasks.get("work"), what)
    others = [await ledger.enqueue(tasks.get("work"), str(n)) for n in range(5)]
    assert [await job.result(timeout_s=2 * LIMIT_S) for job in others] == [str(n) for n in range(5)]
    job = await poison.wait(timeout_s=2 * LIMIT_S)
    assert (job.state, job.dead_reason, len(job.attempts)) == (JobState.DEAD_LETTERED, "exhausted", 2)
    assert job.error is not None
    assert says in job.error.message


async def test_rules_and_wishes_count_in_a_process_too(
    ledger: Ledger, tasks: TaskRegistry, worker: Worker
) -> None:
    given_up = await ended(await ledger.enqueue(tasks.get("work"), "give up"))
    assert (given_up.dead_reason, len(given_up.attempts)) == ("rejected", 1)
    retried = await ended(await ledger.enqueue(tasks.get("work"), "retry"))
    assert (retried.dead_reason, len(retried.attempts)) == ("exhausted", 2)
    cancelled = await ended(await ledger.enqueue(tasks.get("work"), "cancel"))
    assert (cancelled.state, cancelled.cancel_reason) == (JobState.CANCELLED, "no need")


async def test_a_timeout_kills_the_process(
    ledger: Ledger, tasks: TaskRegistry, worker: Worker, tmp_path: Path
) -> None:
    marker = tmp_path / "pid"
    await _ready(ledger, tasks)
    job = await ended(await ledger.enqueue(tasks.get("for_ever"), str(marker)))
    assert job.error is not None
    assert job.error.kind == "timeout"
    await _gone(marker)


async def test_a_cancel_kills_the_process(
    ledger: Ledger,
    tasks: TaskRegistry,
    worker: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "jobledger.workers.attempt.cancels._LOOK_EVERY_S", 10 * LIMIT_S
    )  # only a hint comes in time
    marker = tmp_path / "pid"
    job = await ledger.enqueue(tasks.get("stoppable"), str(marker))
    await until(lambda: marker.exists() and bool(marker.read_text()))
    await ledger.cancel(job.ref)
    assert (await ended(job)).state is JobState.CANCELLED
    await _gone(marker)


async def test_signs_of_life_come_through(ledger: Ledger, tasks: TaskRegistry, worker: Worker) -> None:
    await _ready(ledger, tasks)
    alive = await ledger.enqueue(tasks.get("silent"), 10)
    silent = await ended(await ledger.enqueue(tasks.get("silent"), 2))
    assert await alive.result(timeout_s=LIMIT_S) == 10
    assert silent.error is not None
    assert "without a heartbeat" in silent.error.message


async def test_a_checkpoint_outlives_the_process(ledger: Ledger, tasks: TaskRegistry, worker: Worker) -> None:
    job = await ledger.enqueue(tasks.get("continues"), 6)
    assert await job.result(timeout_s=2 * LIMIT_S) == [4, 6]


async def test_a_stopped_worker_kills_what_is_beyond_its_grace_and_gives_it_back(
    ledger: Ledger, tasks: TaskRegistry, tmp_path: Path
) -> None:
    marker = tmp_path / "pid"
    async with working(ledger, registry=tasks, pool_size=1, grace_s=0.2):
        job = await ledger.enqueue(tasks.get("stoppable"), str(marker))
        await until(lambda: marker.exists() and bool(marker.read_text()))
    after: Any = await job.snapshot()
    assert (after.state, after.attempts_given_back) == (JobState.QUEUED, 1)
    await _gone(marker)


async def test_a_worker_takes_other_work_while_its_processes_are_taken(
    ledger: Ledger, tasks: TaskRegistry, tmp_path: Path
) -> None:
    @task(queue="cpu")
    async def light(n: int) -> int:
        return n

    tasks.add(light)
    async with working(ledger, registry=tasks, pool_size=1):
        blocking = await ledger.enqueue(tasks.get("stoppable"), str(tmp_path / "pid"))
        await until((tmp_path / "pid").exists)
        waiting = await ledger.enqueue(tasks.get("work"), "later")
        assert await (await ledger.enqueue(light, 7)).result(timeout_s=LIMIT_S) == 7
        assert (await waiting.state()) is JobState.QUEUED
        await ledger.cancel(blocking.ref)
        assert await waiting.result(timeout_s=LIMIT_S) == "later"


async def test_a_stopping_worker_lets_go_of_jobs_that_wait_for_a_process(
    ledger: Ledger, tasks: TaskRegistry, tmp_path: Path
) -> None:
    """Else one would be started in the middle of the stop, when a process becomes free."""
    async with working(ledger, registry=tasks, pool_size=1, grace_s=0.3) as worker:
        first = await ledger.enqueue(tasks.get("stoppable"), str(tmp_path / "first"))
        await until((tmp_path / "first").exists)
        waiting = await ledger.enqueue(tasks.get("stoppable"), str(tmp_path / "second"))
        await until(lambda: worker._pool is not None and worker._pool.free < 0)
    assert not (tmp_path / "second").exists()
    after = await waiting.snapshot()
    assert (after.state, after.attempts) == (JobState.QUEUED, ())
    assert (await first.snapshot()).state is JobState.QUEUED
    assert [info.stopped for info in await ledger.leases.all()] == [True]  # not left to run out


async def test_a_job_is_not_charged_with_an_attempt_while_no_process_starts(
    ledger: Ledger, tasks: TaskRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.workers.attempt.execution._NO_PROCESS_S", 0.1)
    _rewrite(tasks, "raise ValueError('not now')")
    async with working(ledger, registry=tasks, pool_size=1) as worker:
        job = await ledger.enqueue(tasks.get("work"), "done")
        await until(lambda: worker._pool is not None and worker._pool._start_error is not None)
        _rewrite(tasks, SOURCE)
        assert await job.result(timeout_s=LIMIT_S) == "done"
    assert len((await job.snapshot()).attempts) == 1


async def test_a_process_task_must_come_from_a_module(ledger: Ledger) -> None:
    @task(run_in="process")
    def here() -> None: ...

    with pytest.raises(ConfigurationError, match=r"TaskRegistry\.load"):
        await asyncio.wait_for(Worker(ledger, TaskRegistry([here])).run(), LIMIT_S)
