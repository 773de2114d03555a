"""A read model of one's own: what each customer was charged, kept beside the ledger in a SQLite file of its own.

Whoever follows the ledger may fold it into tables that answer their own questions. Rows and position change in one
transaction, so the sums are right however often the process is killed; delete the file, and it is made again.
From the command line: `jobledger projection run read_model.py:Revenue`.
"""

import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from jobledger.ledger import Ledger, StoredEvent, TaskRegistry, connect, task
from jobledger.ledger.events import Completed, Queued
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector, ReadModelLayout, rebuild
from jobledger.workers import Worker


@task(queue="billing")
async def charge(customer: str, cents: int) -> str:
    return f"charged {customer} {cents} cents"


class Revenue:
    """Cents by customer, from the inputs of the jobs that completed."""

    name = "revenue"
    version = 1
    tables = """
        CREATE TABLE open_charges (job TEXT PRIMARY KEY, customer TEXT, cents INTEGER);
        CREATE TABLE revenue (customer TEXT PRIMARY KEY, cents INTEGER, last_charge TEXT);
    """

    def apply(self, connection: sqlite3.Connection, events: Sequence[StoredEvent]) -> None:
        """Remember what was asked for, and count it once the job has completed."""
        for stored in events:
            event = stored.event
            if event.task != "charge":
                continue
            if isinstance(event, Queued) and event.cause == "new":
                order = msgspec.json.decode(event.input)
                row = (event.job, order["customer"], order["cents"])
                connection.execute("INSERT INTO open_charges VALUES (?, ?, ?)", row)
            elif isinstance(event, Completed):
                connection.execute(
                    "INSERT INTO revenue SELECT customer, cents, ? FROM open_charges WHERE job = ? "
                    "ON CONFLICT (customer) DO UPDATE SET cents = cents + excluded.cents, "
                    "last_charge = excluded.last_charge",
                    (stored.stored_at.isoformat(), event.job),
                )
                connection.execute("DELETE FROM open_charges WHERE job = ?", (event.job,))


def show(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        for customer, cents in connection.execute("SELECT customer, cents FROM revenue ORDER BY customer"):
            print(f"{customer} paid {cents} cents")
    connection.close()


async def work(ledger: Ledger) -> None:
    worker = Worker(ledger, TaskRegistry([charge]))
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        for customer, cents in (("ada", 500), ("grace", 700), ("ada", 250)):
            print(await (await ledger.enqueue(charge, customer, cents)).result(timeout_s=10))
        worker.stop()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await fill(Path(folder) / "revenue.db", EmbeddedServer(Path(folder) / "store", port=0))


async def fill(file: Path, server: EmbeddedServer) -> None:
    async with server, connect(server.url) as ledger:
        await work(ledger)
        with Projector(ledger.log, file, layout=ReadModelLayout(Revenue())) as projector:
            position = await projector.catch_up()  # or `run`, which follows for ever
        print(f"after {position.stream_sequence} events:")
        show(file)
        await work(ledger)
        await rebuild(ledger.log, file, layout=ReadModelLayout(Revenue()))
        print("rebuilt from the first event:")
        show(file)


if __name__ == "__main__":
    anyio.run(main)
