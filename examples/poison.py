"""Tasks that crash, hang and eat memory: each in a process of its own, each a dead letter that says why."""

import ctypes
import os
import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import Backoff, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig


@task(queue="native", run_in="process", max_attempts=2, timeout_s=1.0, backoff=Backoff(base_s=0))
def call_native_code(how: str) -> str:
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    if how == "memory":
        bytearray(8 << 30)
    while how == "hang":
        pass
    return f"{how} is fine"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            config = WorkerConfig(pool_size=2, pool_memory_bytes_max=2 << 30)
            # Processes load the tasks themselves, so they are named by module or file.
            worker = Worker(ledger, TaskRegistry.load([__file__]), config)
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                ways = ("segfault", "exit", "memory", "hang", "a good job")
                jobs = [await ledger.enqueue(call_native_code, how=how) for how in ways]
                print(await jobs[-1].result(timeout_s=15))
                for how, job in zip(ways[:-1], jobs[:-1], strict=True):
                    after = await job.wait(timeout_s=15)
                    assert after.error is not None
                    error = f"{after.error.type}: {after.error.message}"
                    print(f"{how}: {after.state} after {len(after.attempts)} attempts, {error}")
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
