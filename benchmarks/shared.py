"""What benchmarks share: figures of a process, workers in processes of their own, arguments, and the event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jobledger.ledger import Ledger, TaskRegistry, connect
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.process import tune_collector

LEDGER_BYTES = 2 << 30
LIMIT_S = 600.0

R = TypeVar("R")


def cpu_s(pid: int | None) -> float:
    """Return the user and system seconds of a process so far, to the nanosecond (Linux); 0 where they are not known."""
    if pid is None or sys.platform != "linux":
        return 0.0
    try:
        # The clock of another process, as clock_getcpuclockid(3) makes it: /proc counts in hundredths of a second.
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def memory_mib(pid: int | None, field: str = "VmRSS") -> float:
    """Return a memory figure of a process (Linux), its resident memory by default; 0 where /proc does not tell."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return 0.0


@contextlib.asynccontextmanager
async def worker_process(ledger: Ledger, *words: str) -> AsyncGenerator[subprocess.Popen[bytes], None]:
    """Run a script that is a worker in a process of its own; give it once it holds a lease."""
    known = {info.worker for info in await ledger.leases.all()}
    process = subprocess.Popen([sys.executable, *words])  # noqa: ASYNC220, S603 - ourselves
    try:
        async with asyncio.timeout(60):
            # Another process sets no event of ours: a bounded look at the leases is the wait.
            while not any(info.worker not in known for info in await ledger.leases.all()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextlib.asynccontextmanager
async def worker_processes(
    script: str, url: str, ledger: Ledger, count: int = 1
) -> AsyncGenerator[list[int], None]:
    """Run `script --worker URL` in several processes; give their pids once all hold a lease."""
    async with contextlib.AsyncExitStack() as stack:
        command = (script, "--worker", url)
        yield [(await stack.enter_async_context(worker_process(ledger, *command))).pid for _ in range(count)]


async def reached(ledger: Ledger, sequence: int) -> None:
    """Wait until the ledger holds this many events, asking rarely: a reader beside the worker would share its core."""
    async with asyncio.timeout(LIMIT_S):
        while (await ledger.log.head()).last_sequence < sequence:  # noqa: ASYNC110 - nothing is sent to wait for
            await asyncio.sleep(0.02)


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
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}} {value:>12,}")


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run on uvloop where it is installed, as the command line does."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
