"""What a sealed job costs beside a plain one: CPU of the client and of the server, enqueued and run, in turns.

    python benchmarks/seals.py [--jobs N] [--rounds N] [--bytes N] [--json]

A fresh embedded server and one process. Each round enqueues `--jobs` jobs of either kind, half of them in bulk and half
one by one, and runs them with a worker of this process; all sealed ones have one owner. Figures are medians of the
rounds, in microseconds of CPU a job; the spread is that of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shared import LIMIT_S, cpu_s, run

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.process import tune_collector

_RAN = {"jobs": 0}


@task(queue="bench")
async def echo(number: int, text: str) -> str:
    """Return a text."""
    _RAN["jobs"] += number >= 0
    return text


KINDS: dict[str, Any] = {"plain": echo, "sealed": echo.options(owner="tenant:acme")}
FIGURES = (
    "bulk, client",
    "bulk, server",
    "one by one, client",
    "one by one, server",
    "run, client",
    "run, server",
)
#: The figures that make a job from its enqueue to its end.
JOBS: dict[str, tuple[int, ...]] = {"a job of a bulk": (0, 1, 4, 5), "a job by itself": (2, 3, 4, 5)}


async def measure_kind(ledger: Ledger, pid: int | None, kind: str, jobs: int, text: str) -> list[float]:
    """Return the CPU of one round of a kind, in the order of `FIGURES`."""
    half = jobs // 2
    began = time.process_time(), cpu_s(pid)
    await ledger.enqueue_many(KINDS[kind], [{"number": number, "text": text} for number in range(half)])
    in_bulk = time.process_time(), cpu_s(pid)
    for number in range(half, jobs):
        await ledger.enqueue(KINDS[kind], number, text)
    enqueued = time.process_time(), cpu_s(pid)
    _RAN["jobs"] = 0
    worker = Worker(ledger, TaskRegistry([echo]), config=WorkerConfig(concurrency=100, reactors=False))
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(LIMIT_S):
        while _RAN["jobs"] < jobs:  # noqa: ASYNC110 - a look costs nothing beside a thousand jobs
            await asyncio.sleep(0.02)
    worker.stop()
    await running
    ran = time.process_time(), cpu_s(pid)
    moments = (began, in_bulk, enqueued, ran)
    counts = (half, jobs - half, jobs)
    return [
        1e6 * (after - before) / count
        for count, earlier, later in zip(counts, moments, moments[1:], strict=False)
        for before, after in zip(earlier, later, strict=True)
    ]


def _master_key(path: Path) -> Path:
    path.write_text(f"m1 {base64.b64encode(secrets.token_bytes(32)).decode()}\n", encoding="ascii")
    return path


async def measure(jobs: int, rounds: int, size: int) -> dict[str, list[list[float]]]:
    """Return the rounds by kind, each in the order of `FIGURES`; a first round warms up."""
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        keys = _master_key(Path(folder, "keys"))
        server = EmbeddedServer(Path(folder, "store"), port=0, durability="process")
        async with server, connect(server.url, master_key=f"file:{keys}") as ledger:
            for number in range(rounds + 1):
                for kind in list(KINDS) if number % 2 else list(KINDS)[::-1]:
                    figures = await measure_kind(ledger, server.pid, kind, jobs, "x" * size)
                    if number:
                        found[kind].append(figures)
    return found


def _line(name: str, plain: list[float], sealed: list[float]) -> str:
    ratios = sorted(after / max(before, 0.1) for before, after in zip(plain, sealed, strict=True))
    return (
        f"{name:<18} {statistics.median(plain):7.1f} us plain {statistics.median(sealed):7.1f} us sealed "
        f"{statistics.median(ratios):5.2f} times ({ratios[0]:.2f}-{ratios[-1]:.2f})\n"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=200, help="of the text of each job")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tune_collector()
    found = run(measure(given.jobs, given.rounds, given.bytes))
    if given.json:
        named = {
            kind: {
                name: statistics.median(each)
                for name, each in zip(FIGURES, zip(*some, strict=True), strict=True)
            }
            for kind, some in found.items()
        }
        sys.stdout.write(json.dumps(named) + "\n")
        return
    parts = {name: (number,) for number, name in enumerate(FIGURES)} | JOBS
    for name, numbers in parts.items():
        plain, sealed = ([sum(one[each] for each in numbers) for one in found[kind]] for kind in KINDS)
        sys.stdout.write(_line(name, plain, sealed))


if __name__ == "__main__":
    main()
