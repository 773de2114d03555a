"""CPU-bound and dangerous work: in processes of their own, which a crash or a timeout ends and the worker outlives."""

import ctypes
import os
import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import Backoff, Context, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig


@task(queue="cpu", run_in="process")
def count_primes(context: Context, below: int) -> int:
    found = 0
    for number in range(2, below):
        found += all(number % divisor for divisor in range(2, int(number**0.5) + 1))
        context.progress(number, below)
    return found


@task(queue="cpu", run_in="process")
def name_process() -> int:
    return os.getpid()


@task(queue="cpu", run_in="process", max_attempts=2, backoff=Backoff(base_s=0.1))
def crash() -> None:
    ctypes.string_at(0)  # as a broken C extension would


@task(queue="cpu", run_in="process", max_attempts=1, timeout_s=0.5)
def never_end() -> None:
    while True:
        pass


async def main() -> None:
    # Other processes load the tasks from this file; objects that only this one knows could not be sent there.
    tasks = TaskRegistry.load([__file__])
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, tasks, WorkerConfig(pool_size=2))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                primes = await ledger.enqueue(count_primes, below=20_000)
                process = await ledger.enqueue(name_process)
                crashing = await ledger.enqueue(crash)
                endless = await ledger.enqueue(never_end)
                print(f"{await primes.result(timeout_s=15)} primes below 20,000")
                print("in this process" if await process.result() == os.getpid() else "in another process")
                for job in (crashing, endless):
                    ended = await job.wait(timeout_s=15)
                    assert ended.error is not None
                    print(f"{ended.task} is {ended.state} after {len(ended.attempts)}: {ended.error.message}")
                    print(*ended.error.traceback.strip().splitlines()[-1:])
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
