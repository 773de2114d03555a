"""Enqueue thousands of jobs as one stream of inputs, twice, and drain them once.

The ids come from the inputs, so the second call finds every job where the first one put it.

    python examples/bulk.py [number of jobs]
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio

from jobledger.ledger import JobState, Ledger, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector, Store
from jobledger.workers import Worker


@task(queue="squares")
async def square(number: int) -> int:
    return number * number


def inputs(count: int) -> Iterator[dict[str, int]]:
    """Yield one job's keyword arguments after the other; nothing holds them all."""
    for number in range(count):
        yield {"number": number}


async def enqueue_all(ledger: Ledger, count: int) -> None:
    began = time.perf_counter()
    done = await ledger.enqueue_many(square, inputs(count), ids=lambda values: f"square-{values['number']}")
    took = time.perf_counter() - began
    print(f"{done.created:,} created, {done.existing:,} were there already, {count / took:,.0f}/s")


async def drain(ledger: Ledger, projection: Path, count: int) -> None:
    """Run a worker until the projection, brought up to date now and then, counts every job as completed."""
    began = time.perf_counter()
    worker = Worker(ledger, TaskRegistry([square]))
    completed = 0
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        with Projector(ledger.log, projection) as projector:
            while completed < count:
                await anyio.sleep(0.1)
                await projector.catch_up()
                with Store.open(projection) as store:
                    completed = store.counts_by_state().get(JobState.COMPLETED, 0)
        worker.stop()
    print(f"{completed:,} completed, {completed / (time.perf_counter() - began):,.0f}/s")


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        # Safe against the death of a process, not against a power cut: the store is thrown away below.
        server = EmbeddedServer(directory, port=0, durability="process")
        async with server, connect(server.url) as ledger:
            await enqueue_all(ledger, count)
            await enqueue_all(ledger, count)
            await drain(ledger, directory / "jobs.db", count)


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)
