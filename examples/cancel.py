"""Cancel a job that runs: a coroutine where it awaits, a function in a thread at its next heartbeat."""

import asyncio
import tempfile
import time
from pathlib import Path

import anyio

from jobledger.ledger import AttemptStoppedError, Context, JobHandle, JobState, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


@task(queue="exports")
async def export(rows: int) -> int:
    try:
        await asyncio.sleep(rows / 10)
    except asyncio.CancelledError:
        print("the coroutine cleans up")
        raise
    return rows


@task(queue="exports")
def export_in_thread(context: Context, rows: int) -> int:
    try:
        for _ in range(rows):
            context.heartbeat()  # raises once the job is cancelled
            time.sleep(0.1)
    except AttemptStoppedError:
        print("the thread cleans up")
        raise
    return rows


async def running(job: JobHandle[int]) -> None:
    async for _ in job.transitions(timeout_s=10):
        if await job.state() is JobState.RUNNING:
            return


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([export, export_in_thread]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                for each in (export, export_in_thread):
                    job = await ledger.enqueue(each, rows=1_000)
                    await running(job)
                    asked = await job.cancel(reason="the customer left", by="ada")
                    print(f"asked while it was {asked.state}")
                    after = await job.wait(timeout_s=10)
                    print(f"{after.task} is {after.state}: {after.cancel_reason}")
                waiting = await ledger.enqueue(export.options(delay_s=3_600), rows=1)
                print(f"a waiting job is {(await waiting.cancel()).state} at once")
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
