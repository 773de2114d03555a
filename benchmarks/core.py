"""What a job costs: enqueue, drain, latency, CPU and memory, on embedded servers of both durabilities.

    python benchmarks/core.py [--jobs N] [--rounds N] [--durability power|process] [--json]

Each round starts a fresh server, measures a baseline of bare conditional appends in the same minute, then jobs.
One worker process with a no-op async task runs beside it. These figures drift with the machine: compare ratios
to the baseline, taken within one run. Rates are jobs per second; latency is from the call of `enqueue` to the first
line of the handler in the other process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from shared import cpu_s, memory_mib, reached, run, worker_process

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.model.events import Completed, Queued, Started
from jobledger.ledger.model.log import Entry
from jobledger.ledger.nats.api import create_stream
from jobledger.ledger.nats.connection import open_connection
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.writer import Writer
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.process import tune_collector

Durability = Literal["power", "process"]
PADDING = "x" * 60  # brings an input to about 100 bytes
LATENCY_JOBS = 500
WINDOW = 2_000


@task(queue="bench")
async def noop(sent_ns: int, padding: str) -> int:  # noqa: ARG001 - the input is part of the cost
    """Do nothing, and say when."""
    return time.time_ns()


def inputs(count: int) -> Any:
    """Yield `count` inputs of about 100 bytes."""
    for _ in range(count):
        yield {"sent_ns": time.time_ns(), "padding": PADDING}


async def baseline(url: str, count: int) -> float:
    """Return bare conditional appends per second: prepared bytes, pipelined, answers only counted."""
    connection = await open_connection(url, name="baseline", timeout_s=5)
    try:
        inbox = Inbox(connection)
        await inbox.open()
        await create_stream(inbox, "BASE", {"subjects": ["base.>"]})
        writer = Writer(connection)
        await writer.open()
        progress = asyncio.Event()
        body = msgspec.json.encode({"input": PADDING * 4})
        done = 0

        def answered(result: int | Exception) -> None:
            nonlocal done
            if isinstance(result, Exception):
                raise result
            done += 1
            progress.set()

        started = time.perf_counter()
        for number in range(count):
            subject = f"base.{number}"
            writer.send((Entry(subject, body, subject, 0),), answered)
            while number - done > WINDOW:
                progress.clear()
                await progress.wait()
        while done < count:
            progress.clear()
            await progress.wait()
        writer.close()
        return count / (time.perf_counter() - started)
    finally:
        await connection.close()


async def completed(ledger: Ledger, from_sequence: int, count: int) -> tuple[float, list[float]]:
    """Wait for `count` completions; return the jobs per second and each job's latency in milliseconds."""
    await reached(ledger, from_sequence - 1 + 3 * count)  # queued, started, completed
    started_at: list[float] = []
    ended_at: list[float] = []
    sent: dict[str, int] = {}
    latencies: list[float] = []
    async with contextlib.aclosing(ledger.log.read(from_sequence=from_sequence)) as batches:
        async for stored in (stored async for batch in batches for stored in batch):
            event = stored.event
            if isinstance(event, Queued):
                sent[event.job] = cast("dict[str, int]", msgspec.json.decode(event.input))["sent_ns"]
            elif isinstance(event, Started):
                started_at.append(stored.stored_at.timestamp())
            elif isinstance(event, Completed):
                ended_at.append(stored.stored_at.timestamp())
                began_ns = msgspec.json.decode(event.result, type=int)
                latencies.append((began_ns - sent[event.job]) / 1e6)
    return count / (max(ended_at) - min(started_at)), latencies


async def one_round(durability: Durability, jobs: int) -> dict[str, float]:
    """Measure everything once on a fresh server."""
    figures: dict[str, float] = {}
    singles = max(200, min(3_000, jobs // 10))
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as directory:
        async with EmbeddedServer(Path(directory), port=0, durability=durability) as server:
            figures["baseline appends/s"] = await baseline(server.url, jobs)
            async with connect(server.url) as ledger:
                before = (await ledger.log.head()).last_sequence
                server_cpu = cpu_s(server.pid)
                started = time.perf_counter()
                await ledger.enqueue_many(noop, inputs(jobs))
                figures["bulk enqueue/s"] = jobs / (time.perf_counter() - started)
                figures["bulk server CPU us/job"] = (cpu_s(server.pid) - server_cpu) / jobs * 1e6
                server_cpu = cpu_s(server.pid)
                async with worker_process(ledger, __file__, "--worker", server.url) as worker:
                    worker_cpu, already = (
                        cpu_s(worker.pid),
                        (await ledger.log.head()).last_sequence - before - jobs,
                    )
                    await reached(ledger, before + 3 * jobs)
                    share = (2 * jobs - already) / (2 * jobs) * jobs  # what was done since the CPU was read
                    figures["worker CPU us/job"] = (cpu_s(worker.pid) - worker_cpu) / share * 1e6
                    figures["server CPU us/job"] = (cpu_s(server.pid) - server_cpu) / jobs * 1e6
                    figures["drain jobs/s"], _ = await completed(ledger, before + 1, jobs)
                    await measure_latency(ledger, figures)
                started = time.perf_counter()
                for values in inputs(singles):
                    await ledger.enqueue(noop, **values)
                figures["enqueue one by one/s"] = singles / (time.perf_counter() - started)
            figures["server memory MiB"] = memory_mib(server.pid)
    figures["bulk / baseline"] = figures["bulk enqueue/s"] / figures["baseline appends/s"]
    figures["drain x 2 / baseline"] = 2 * figures["drain jobs/s"] / figures["baseline appends/s"]
    return figures


async def measure_latency(ledger: Ledger, figures: dict[str, float]) -> None:
    """Enqueue to an idle worker, one job every few milliseconds."""
    head = (await ledger.log.head()).last_sequence
    for values in inputs(LATENCY_JOBS):
        await ledger.enqueue(noop, **values)
        await asyncio.sleep(0.005)
    _, latencies = await completed(ledger, head + 1, LATENCY_JOBS)
    latencies.sort()
    figures["latency p50 ms"] = latencies[len(latencies) // 2]
    figures["latency p99 ms"] = latencies[len(latencies) * 99 // 100]


async def run_worker(url: str) -> None:
    """Be the worker process."""
    tune_collector()
    async with connect(url) as ledger:
        worker = Worker(ledger, TaskRegistry([noop]), WorkerConfig(concurrency=256))
        asyncio.get_running_loop().add_signal_handler(15, worker.stop)
        await worker.run()


async def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Interleave the rounds of both durabilities; return the medians."""
    durabilities: tuple[Durability, ...] = (
        (options.durability,) if options.durability else ("process", "power")
    )
    rounds: dict[Durability, list[dict[str, float]]] = {each: [] for each in durabilities}
    for number in range(options.rounds):
        for durability in durabilities:
            print(f"round {number + 1} of {options.rounds}, {durability} ...", file=sys.stderr, flush=True)
            rounds[durability].append(await one_round(durability, options.jobs))
    return {
        durability: {name: statistics.median(each[name] for each in measured) for name in measured[0]}
        for durability, measured in rounds.items()
    }


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description="Measure what a job costs.")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durability", choices=["power", "process"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run(run_worker(options.worker))
        return
    figures = run(measure(options))
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    names = list(next(iter(figures.values())))
    print(
        f"{'medians of ' + str(options.rounds) + ' rounds':<28}" + "".join(f"{each:>14}" for each in figures)
    )
    for name in names:
        print(f"{name:<28}" + "".join(f"{values[name]:>14,.2f}" for values in figures.values()))


if __name__ == "__main__":
    main()
