"""What the jobs of a ledger came to: queues, totals, minute by minute, errors and workers, from the projection.

All of it is counted from the stored events, by the server's clock: it survives restarts, and a rebuilt file says
the same. Every table can be read with any SQLite tool, too.
"""

import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import JobFailedError, Ledger, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector, Store
from jobledger.workers import Worker


@task(queue="billing", max_attempts=1)
async def charge(customer: str, cents: int) -> str:
    await anyio.sleep(0.03)
    if cents <= 0:
        message = f"cannot charge {cents} cents"
        raise ValueError(message)
    return f"charged {customer} {cents} cents"


async def work(ledger: Ledger) -> None:
    worker = Worker(ledger, TaskRegistry([charge]))
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        for customer, cents in (("ada", 500), ("grace", 0), ("ada", 250)):
            try:
                print(await (await ledger.enqueue(charge, customer, cents)).result(timeout_s=10))
            except JobFailedError as error:
                print(error.__class__.__name__)
        worker.stop()
    await ledger.enqueue(charge, "grace", 700)  # nobody works any more


def show(store: Store) -> None:
    for queue in store.queues():
        print(
            f"{queue.queue} {queue.priority}: {queue.counts['queued']} queued, {queue.counts['completed']} done"
        )
        print(f"its oldest waits: {queue.oldest_waiting is not None}")
    for row in store.totals(queue="billing"):
        print(f"{row.task}: {row.enqueued} enqueued, {row.completed} completed, {row.failed} failed")
        half = row.run.quantile_s(0.5)
        print(f"half of {row.run.count} ran for at most {half or 0:.1f} s")
    for hour in store.buckets(step_s=3600):
        print(f"from {hour.begins_at[11:16]} on {hour.started} were started")
    for failure in store.failures():
        print(
            f"{failure.error_type}: {failure.failed} attempts failed, {failure.dead_lettered} jobs given up"
        )
    for worker in store.workers():
        print(f"a worker made {worker.attempts} attempts")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "projection.db"
        async with EmbeddedServer(Path(folder), port=0) as server, connect(server.url) as ledger:
            await work(ledger)
            with Projector(ledger.log, file) as projector:
                await projector.catch_up()
        with Store.open(file) as store:
            show(store)


if __name__ == "__main__":
    anyio.run(main)
