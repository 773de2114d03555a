"""What benchmarks share: figures of a process, workers in processes of their own, arguments, and the event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jobledger.ledger import Ledger, TaskRegistry, connect
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.process import tune_collector

LEDGER_BYTES = 2 << 30
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

R = TypeVar("R")


def cpu_s(pid: int | None) -> float:
    """Return the user and system seconds of a process so far (Linux); 0 where /proc does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory_mib(pid: int | None, field: str = "VmRSS") -> float:
    """Return a memory figure of a process (Linux), its resident memory by default; 0 where /proc does not tell."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return 0.0


@contextlib.asynccontextmanager
async def worker_processes(
    script: str, url: str, ledger: Ledger, count: int = 1
) -> AsyncGenerator[list[int], None]:
    """Run `script --worker URL` so many times; give the pids once all hold a lease."""
    command = [sys.executable, script, "--worker", url]
    processes = [subprocess.Popen(command) for _ in range(count)]  # noqa: ASYNC220, S603 - ourselves
    try:
        async with asyncio.timeout(60):
            while len(await ledger.leases.all()) < count:  # noqa: ASYNC110 - another process sets no event of ours
                await asyncio.sleep(0.02)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


async def work(url: str, tasks: TaskRegistry, config: WorkerConfig | None = None) -> None:
    """Be one of those processes, until it is terminated."""
    tune_collector()
    async with connect(url, ledger_bytes_max=LEDGER_BYTES) as ledger:
        worker = Worker(ledger, tasks, config or WorkerConfig())
        asyncio.get_running_loop().add_signal_handler(15, worker.stop)
        await worker.run()


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that a benchmark with workers of its own has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--durability", choices=("power", "process"), default="process")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    return parser


def show(figures: Mapping[str, float], *, as_json: bool) -> None:
    """Print figures: a line for each, or one JSON object."""
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:20} {value:>12,}")


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run on uvloop where it is installed, as the command line does."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
