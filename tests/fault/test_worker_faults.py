"""Worker processes are killed, frozen and stopped; the ledger and the trace of real executions tell what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.processes import lines, until
from tests.support.working import attempts, types

from jobledger.ledger import Ledger, Task, TaskRegistry, connect

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

APPS = Path(__file__).parents[1] / "integration" / "apps"
LIMIT_S = 15.0
WorkerProcess = asyncio.subprocess.Process
StartWorker = Callable[..., Awaitable[WorkerProcess]]
Tasks = dict[str, Task[..., Any]]


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    return {each.name: each for each in TaskRegistry.load([str(APPS / "work.py")])}


@pytest.fixture
def lease_s() -> float:
    """Short; the default, 15 s, where it is what is tested."""
    return 2.0


@pytest.fixture
async def ledger(nats_server: EmbeddedServer, environment: str, lease_s: float) -> AsyncIterator[Ledger]:
    async with connect(
        nats_server.url, environment=environment, ledger_bytes_max=16 << 20, lease_s=lease_s
    ) as made:
        yield made


@pytest.fixture
async def start_worker(
    nats_server: EmbeddedServer, environment: str, ledger: Ledger
) -> AsyncIterator[StartWorker]:
    """Start worker processes; every one is gone at the end of the test, whatever state it is in."""
    made: list[WorkerProcess] = []

    async def start(**options: Any) -> WorkerProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(APPS / "run_worker.py"),
            nats_server.url,
            environment,
            msgspec.json.encode(options).decode(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        made.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            assert await process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in made:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("lease_s", "options"),
    [
        pytest.param(2.0, {"ack_wait_s": 2}, id="short"),
        pytest.param(15.0, {}, id="default", marks=pytest.mark.fault),
    ],
)
async def test_a_job_whose_worker_was_killed_completes_elsewhere_within_twenty_seconds(
    ledger: Ledger, start_worker: StartWorker, tasks: Tasks, tmp_path: Path, options: dict[str, Any]
) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    first = await start_worker(**options)
    jobs = [await ledger.enqueue(tasks["until_there"], str(trace), str(gate)) for _ in range(5)]
    await until(lambda: len(lines(trace)) == 5)
    await start_worker(**options)
    first.kill()
    loop = asyncio.get_running_loop()
    killed_at = loop.time()
    gate.touch()  # the first worker is gone before it can see it
    assert [await job.result(timeout_s=20.0) for job in jobs] == ["attempt 2"] * 5
    assert loop.time() - killed_at < 20.0
    for job in jobs:
        assert await attempts(job) == ["lost", "completed"]
        assert await types(job) == ["queued", "started", "lost", "started", "completed"]
    assert Counter(job for word, job, *_ in lines(trace) if word == "end") == {job.id: 1 for job in jobs}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["until_there", "until_there_in_thread"])
async def test_a_worker_frozen_beyond_its_lease_cannot_record_its_outcome(
    ledger: Ledger, start_worker: StartWorker, tasks: Tasks, tmp_path: Path, name: str
) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    frozen = await start_worker(ack_wait_s=1)
    job = await ledger.enqueue(tasks[name], str(trace), str(gate))
    await until(lambda: len(lines(trace)) == 1)
    frozen.send_signal(signal.SIGSTOP)
    await start_worker(ack_wait_s=1)
    await until(lambda: len(lines(trace)) == 2)  # taken over
    gate.touch()
    assert await job.result(timeout_s=LIMIT_S) == "attempt 2"
    frozen.send_signal(signal.SIGCONT)
    async with asyncio.timeout(LIMIT_S):
        while "fenced" not in await types(job):
            await asyncio.sleep(0.02)
    assert await types(job) == ["queued", "started", "lost", "started", "completed", "fenced"]
    assert await attempts(job) == ["lost", "completed"]
    assert await job.result(timeout_s=1.0) == "attempt 2"
    history = await job.history()
    fenced = msgspec.json.decode(history[-1].data)
    started = msgspec.json.decode(history[1].data)
    assert (fenced["attempt"], fenced["worker"]) == (1, started["worker"])
    assert fenced["held_epoch"] == history[1].stream_sequence
    # The one that was frozen goes on, under another name.
    again = await ledger.enqueue(tasks["quick"], str(trace), 7)
    assert await again.result(timeout_s=LIMIT_S) == 7


@pytest.mark.timeout(60)
async def test_a_worker_frozen_for_less_than_its_lease_keeps_its_jobs(
    ledger: Ledger, start_worker: StartWorker, tasks: Tasks, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    frozen = await start_worker(ack_wait_s=1)
    jobs = [await ledger.enqueue(tasks["nap"], str(trace), 1.5) for _ in range(5)]
    await until(lambda: len(lines(trace)) == 5)
    await start_worker(ack_wait_s=1)
    frozen.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.0)
    frozen.send_signal(signal.SIGCONT)
    assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == ["attempt 1"] * 5


@pytest.mark.timeout(60)
async def test_a_term_signal_lets_jobs_end_or_gives_them_back(
    ledger: Ledger, start_worker: StartWorker, tasks: Tasks, tmp_path: Path
) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    stopped = await start_worker(grace_s=1.0)
    short = await ledger.enqueue(tasks["nap"], str(trace), 0.3)
    long = await ledger.enqueue(tasks["until_there"].options(max_attempts=1), str(trace), str(gate))
    await until(lambda: len(lines(trace)) == 2)
    await start_worker()
    stopped.terminate()
    async with asyncio.timeout(LIMIT_S):
        assert await stopped.wait() == 0
    gate.touch()
    assert await short.result(timeout_s=LIMIT_S) == "attempt 1"
    assert await long.result(timeout_s=LIMIT_S) == "attempt 2"
    assert await attempts(long) == ["interrupted", "completed"]
    assert await types(long) == ["queued", "started", "interrupted", "queued", "started", "completed"]


@pytest.mark.timeout(60)
async def test_a_second_term_signal_stops_at_once(
    ledger: Ledger, start_worker: StartWorker, tasks: Tasks, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    stopped = await start_worker(grace_s=60.0)
    job = await ledger.enqueue(tasks["until_there"], str(trace), str(tmp_path / "never"))
    await until(lambda: len(lines(trace)) == 1)
    stopped.terminate()
    assert stopped.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        assert await stopped.stdout.readline() == b"stopping\n"
    assert stopped.returncode is None
    stopped.terminate()
    async with asyncio.timeout(5.0):
        assert await stopped.wait() == 0
    assert await types(job) == ["queued", "started", "interrupted", "queued"]
