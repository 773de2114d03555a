"""What counting costs: a worker's CPU per job with /metrics off and on, and how long a scrape of the exporter takes.

    python benchmarks/metrics.py [--jobs N] [--rounds N] [--tasks N] [--json]

Off and on take turns on fresh servers; compare the two, not one with another day. While metrics are on, they
are scraped once a second. The exporter is scraped while the ledger has all tasks of the benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from shared import cpu_s, run

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.metrics.exposition import scrape
from jobledger.ledger.metrics.server import MetricsServer
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections.metrics.exporter import Exporter
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.metrics import measured
from jobledger.workers.process import tune_collector

LIMIT_S = 300.0
SCRAPES = 50


@task(queue="bench")
async def noop(number: int) -> int:
    """Do nothing."""
    return number


async def until_head(ledger: Ledger, sequence: int) -> None:
    """Wait until the ledger holds this many events."""
    async with asyncio.timeout(LIMIT_S):
        while (await ledger.log.head()).last_sequence < sequence:  # noqa: ASYNC110 - nothing is sent to wait for
            await asyncio.sleep(0.02)


async def drain(jobs: int, *, metrics: bool) -> float:
    """Return the microseconds of a worker's CPU per job, from its first event to the last one of all."""
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder:
        async with (
            EmbeddedServer(Path(folder), port=0, durability="process") as server,
            connect(server.url) as ledger,
        ):
            await ledger.enqueue_many(noop, ({"number": number} for number in range(jobs)))
            words = [sys.executable, __file__, "--worker", server.url, *(["--metrics"] if metrics else [])]
            process = subprocess.Popen(words)  # noqa: ASYNC220, S603 - ourselves
            try:
                await until_head(ledger, jobs + 1)
                before, done = cpu_s(process.pid), (await ledger.log.head()).last_sequence - jobs
                await until_head(ledger, 3 * jobs)
                return (cpu_s(process.pid) - before) / (jobs - done / 2) * 1e6
            finally:
                process.terminate()
                process.wait(timeout=30)


async def scrape_s(tasks: int) -> tuple[float, int]:
    """Return the median seconds of a scrape of the exporter, and the bytes it has."""
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "store", port=0, durability="process")
        async with server, connect(server.url) as ledger:
            for number in range(tasks):
                await ledger.enqueue(noop.options(queue=f"queue-{number}"), number=number)
            exporter = Exporter(ledger, Path(folder) / "projection.db")
            following = asyncio.create_task(exporter.run())
            while await asyncio.to_thread(exporter.health):  # noqa: ASYNC110 - nothing is sent to wait for
                await asyncio.sleep(0.05)
            took: list[float] = []
            size = 0
            for _ in range(SCRAPES):
                began = time.perf_counter()
                _, body = await asyncio.to_thread(scrape, exporter, "")
                took.append(time.perf_counter() - began)
                size = len(body)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            return statistics.median(took), size


async def run_worker(url: str, *, metrics: bool) -> None:
    """Be the worker process."""
    tune_collector()
    async with connect(url) as ledger, contextlib.AsyncExitStack() as stack:
        worker = Worker(ledger, TaskRegistry([noop]), WorkerConfig(concurrency=256))
        asyncio.get_running_loop().add_signal_handler(15, worker.stop)
        if metrics:
            collector = await stack.enter_async_context(measured(ledger, worker))
            server = stack.enter_context(MetricsServer(collector, collector.health))
            scraping = asyncio.create_task(scrape_on(server.url))
            stack.callback(scraping.cancel)
        await worker.run()


async def scrape_on(url: str) -> None:
    """Scrape once a second."""
    while True:
        await asyncio.sleep(1)
        await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())  # noqa: S310 - ours


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """Take turns and return medians."""
    off: list[float] = []
    on: list[float] = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
        pair = [(off, False), (on, True)]
        for found, metrics in pair if number % 2 == 0 else pair[::-1]:
            found.append(await drain(options.jobs, metrics=metrics))
    seconds, size = await scrape_s(options.tasks)
    return {
        "worker CPU us/job, off": statistics.median(off),
        "worker CPU us/job, on": statistics.median(on),
        "on / off": statistics.median(b / a for a, b in zip(off, on, strict=True)),
        "scrape ms": seconds * 1e3,
        "scrape KiB": size / 1024,
    }


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description="Measure what metrics cost.")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--metrics", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run(run_worker(options.worker, metrics=options.metrics))
        return
    figures = run(measure(options))
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:<28}{value:>12,.2f}")


if __name__ == "__main__":
    main()
