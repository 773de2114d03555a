"""What runs cost: their steps, branches, children, waits, and what is kept of those that wait.

Every function starts servers of its own and returns its figures in lists. `workflows.py` prints them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from shared import cpu_s, memory_mib, reached, run, work, worker_process
from table import Figures

from jobledger.ledger import JobHandle, Ledger, Run, Signal, TaskRegistry, connect, step, task, workflow
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.runs.events import StepStarted
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import WorkerConfig

Durability = Literal["power", "process"]
LEDGER_BYTES: Final = 2 << 30
LIMIT_S: Final = 300.0
BRANCHES: Final = 50
#: Steps before the wait of a run that has fifteen events once it was resumed: beside them are `queued` and `started`
#: twice, `step_started` and `paused`.
STEPS_BEFORE: Final = 9
_MB_OF_MIB: Final = 1.048576
_PAUSE_S: Final = 0.008  # between signals: one run goes on at a time

go = Signal("go", float)


class Spent(msgspec.Struct):
    """What the steps of one run took, as its function saw it."""

    wall_s: float
    cpu_s: float  #: of the worker's process, all threads


@step
async def number(value: int) -> int:
    """Do nothing."""
    return value


def clocks() -> tuple[float, float]:
    """Return the clocks of a benchmark: what it measures is no part of its run."""
    return time.perf_counter(), time.process_time()


@workflow(queue="bench")
async def inline(run: Run, steps: int) -> Spent:
    """Call a step again and again."""
    began, cpu = clocks()
    for value in range(steps):
        await run.step(number, value)
    ended, spent = clocks()
    return Spent(ended - began, spent - cpu)


@workflow(queue="bench", parallel=BRANCHES)
async def branches(run: Run, steps: int) -> Spent:
    """Call a step again and again in each of many branches."""

    async def branch() -> None:
        for value in range(steps):
            await run.step(number, value)

    began, cpu = clocks()
    await run.gather(*[branch] * BRANCHES)
    ended, spent = clocks()
    return Spent(ended - began, spent - cpu)


@task(queue="bench")
async def child(value: int) -> int:
    """Do nothing, as a job of its own."""
    return value


@workflow(queue="bench")
async def mapped(run: Run, items: int, limit: int) -> int:
    """Run a job for each item."""
    return len(await run.map(child, range(items), limit=limit))


def since(moment: float) -> float:
    """Return how many seconds ago a time of the system's clock was."""
    return time.time() - moment


@workflow(queue="bench")
async def waiting(run: Run, before: int, hold_s: float) -> float:
    """Call some steps, wait for a signal, and return how many seconds after it was sent the function went on."""
    for value in range(before):
        await run.step(number, value)
    sent_at = await run.wait(go)
    late_s = since(sent_at)
    if hold_s:
        await asyncio.sleep(hold_s)  # its end is not to be counted with its resumption
    return late_s


@task(queue="bench")
async def nap() -> int:
    """Return how many of these ran at once."""
    global _naps  # noqa: PLW0603 - the worker's own count
    _naps += 1
    await asyncio.sleep(0.5)
    found, _naps = _naps, _naps - 1
    return found


_naps = 0


@contextlib.asynccontextmanager
async def fresh(durability: Durability = "process") -> AsyncGenerator[tuple[EmbeddedServer, Ledger], None]:
    """Yield a server and a client."""
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder:
        async with (
            EmbeddedServer(Path(folder), port=0, durability=durability) as server,
            connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger,
        ):
            yield server, ledger


def process(
    ledger: Ledger, server: EmbeddedServer, concurrency: int = 100
) -> contextlib.AbstractAsyncContextManager[Any]:
    """Run a worker in a process of its own, with all reactors; it holds a lease when this goes on."""
    return worker_process(ledger, __file__, server.url, str(concurrency))


async def spent(flow: Any, steps: int, durability: Durability) -> tuple[float, float, float]:
    """Return of one run ms a step, and CPU of the worker and of the server in us a step; the run before it is to warm up."""
    count = steps // BRANCHES if flow is branches else steps
    async with fresh(durability) as (server, ledger), process(ledger, server):
        await (await ledger.enqueue(flow, max(1, count // 10))).result(timeout_s=LIMIT_S)
        cpu = cpu_s(server.pid)
        found: Spent = await (await ledger.enqueue(flow, count)).result(timeout_s=LIMIT_S)
        cpu = cpu_s(server.pid) - cpu
    return found.wall_s / steps * 1e3, found.cpu_s / steps * 1e6, cpu / steps * 1e6


async def steps(rounds: int, count: int, flow: Any, durability: Durability = "process") -> Figures:
    """Return ms a step and CPU of both sides in us a step, in some rounds."""
    found = [await spent(flow, count, durability) for _ in range(rounds)]
    return {name: [each[at] for each in found] for at, name in enumerate(("ms", "cpu", "server"))}


async def inline_steps(rounds: int, count: int, durability: Durability = "process") -> Figures:
    """Measure steps one after the other."""
    return await steps(rounds, count, inline, durability)


async def branched_steps(rounds: int, count: int) -> Figures:
    """Measure steps of fifty branches."""
    return await steps(rounds, count, branches)


async def a_map(items: int, limit: int, durability: Durability) -> tuple[float, float, float]:
    """Return the seconds that a map takes on two workers, and the events and MB of its run's chain."""
    async with fresh(durability) as (server, ledger), process(ledger, server), process(ledger, server):
        await (await ledger.enqueue(mapped, 10, 5)).result(timeout_s=LIMIT_S)
        job = await ledger.enqueue(mapped, items, limit)
        assert await job.result(timeout_s=LIMIT_S) == items
        return _took(await job.history())


def _took(chain: Sequence[StoredEvent]) -> tuple[float, float, float]:
    began = next(each.stored_at for each in chain if isinstance(each.event, StepStarted))
    took_s = (chain[-1].stored_at - began).total_seconds()
    return took_s, len(chain), sum(len(each.data) for each in chain) / 1e6


async def maps(rounds: int, items: int, limit: int, durability: Durability = "process") -> Figures:
    """Measure maps in some rounds."""
    found = [await a_map(items, limit, durability) for _ in range(rounds)]
    return {name: [each[at] for each in found] for at, name in enumerate(("s", "events", "MB"))}


async def parked(ledger: Ledger, runs: int, before: int, hold_s: float = 0.0) -> list[JobHandle[float]]:
    """Begin runs that wait for a signal, and wait until all of them are parked."""
    first = (await ledger.log.head()).last_sequence
    inputs = ({"before": before, "hold_s": hold_s} for _ in range(runs))
    await ledger.enqueue_many(waiting, inputs, ids=_numbered(first))
    await reached(ledger, first + runs * (before + 4))
    refs = (JobRef(queue="bench", job_id=f"run-{first}-{item}") for item in range(runs))
    return [ledger.handle_of(ref, reader=waiting.signature) for ref in refs]


def _numbered(first: int) -> Callable[[Mapping[str, Any]], str]:
    count = itertools.count()

    def name(_: Mapping[str, Any]) -> str:
        return f"run-{first}-{next(count)}"

    return name


async def signal_all(ledger: Ledger, jobs: Sequence[JobHandle[float]], pause_s: float = 0.0) -> None:
    """Send each run its signal, which says when it was sent."""
    for job in jobs:
        await ledger.signal(job.ref, go, time.time())
        if pause_s:
            await asyncio.sleep(pause_s)


async def signals(pairs: int, runs: int) -> Figures:
    """Return how many ms after a signal the function goes on, p50 and p99, one run after the other."""
    found: Figures = {"p50": [], "p99": []}
    async with fresh() as (server, ledger), process(ledger, server):
        for _ in range(pairs):
            jobs = await parked(ledger, runs, before=1)
            await signal_all(ledger, jobs, _PAUSE_S)
            late = sorted([await job.result(timeout_s=LIMIT_S) * 1e3 for job in jobs])
            found["p50"].append(late[len(late) // 2])
            found["p99"].append(late[len(late) * 99 // 100])
    return found


async def resumed(runs: int, *, elsewhere: bool) -> tuple[float, float]:
    """Return the CPU of server and worker, in ms a run, from a signal to the function that goes on.

    These are three events of a run: `queued` by its signal, `started`, and the end of its wait. `elsewhere`: in another
    worker than that which parked the run, so that it has to read the run's chain.
    """
    async with fresh() as (server, ledger), contextlib.AsyncExitStack() as stack:
        async with contextlib.AsyncExitStack() as first:
            worker = await first.enter_async_context(process(ledger, server, runs + 10))
            jobs = await parked(ledger, runs, STEPS_BEFORE, hold_s=5.0)
            if not elsewhere:
                stack.push_async_exit(first.pop_all())
        if elsewhere:
            worker = await stack.enter_async_context(process(ledger, server, runs + 10))
        before = (await ledger.log.head()).last_sequence
        cpu = cpu_s(server.pid), cpu_s(worker.pid)
        await signal_all(ledger, jobs)
        await reached(ledger, before + 3 * runs)
        return (cpu_s(server.pid) - cpu[0]) / runs * 1e3, (cpu_s(worker.pid) - cpu[1]) / runs * 1e3


async def resumptions(rounds: int, runs: int) -> Figures:
    """Measure resumptions in the worker that parked the runs, and in another one."""
    found: Figures = {"server": [], "worker": [], "server elsewhere": []}
    for _ in range(rounds):
        server, worker = await resumed(runs, elsewhere=False)
        found["server"].append(server)
        found["worker"].append(worker)
        found["server elsewhere"].append((await resumed(runs, elsewhere=True))[0])
    return found


async def kept(runs: int) -> tuple[float, float, float]:
    """Return what parked runs hold: slots, and memory of their worker above before, in MB; and how long they took to park."""
    slots = 10
    async with fresh() as (server, ledger), process(ledger, server, slots) as worker:
        (first,) = await parked(ledger, 1, before=0)
        before = memory_mib(worker.pid)
        began = time.perf_counter()
        await parked(ledger, runs, before=0)
        took_s = time.perf_counter() - began
        grown = (memory_mib(worker.pid) - before) * _MB_OF_MIB
        naps = [await ledger.enqueue(nap) for _ in range(slots)]
        at_once = max([await job.result(timeout_s=LIMIT_S) for job in naps])
        assert not (await first.snapshot()).is_final
    return slots - at_once, grown, took_s


async def parkings(rounds: int, runs: int) -> Figures:
    """Measure parked runs in some rounds."""
    found = [await kept(runs) for _ in range(rounds)]
    return {name: [float(each[at]) for each in found] for at, name in enumerate(("slots", "memory", "s"))}


async def be(url: str, concurrency: int) -> None:
    """Be a worker of the benchmark."""
    tasks = TaskRegistry([inline, branches, mapped, child, waiting, nap])
    await work(url, tasks, WorkerConfig(concurrency=concurrency))


if __name__ == "__main__":
    run(be(sys.argv[1], int(sys.argv[2])))
