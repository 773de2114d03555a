"""Rows from PostgreSQL into a table, and SQL on them: nothing is held in memory as a whole.

    DATABASE_URL=postgresql://... python examples/workflows/from_postgres.py

Rows come through `psql`, so no driver is needed; with one, a server-side cursor does as well. Needs
`pip install 'jobledger[embedded,tables]'`. Without DATABASE_URL it says so and ends.
"""

from __future__ import annotations

import asyncio
import csv
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from jobledger.ledger import Run, TaskRegistry, connect, workflow
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

SALES = "SELECT n % 100 AS sku, n % 777 AS cents FROM generate_series(1, 100000) AS n"


class Sale(msgspec.Struct):
    """A row of the query."""

    sku: int
    cents: int


def rows(query: str) -> Iterator[Sale]:
    """Yield the rows of a query as PostgreSQL sends them. Raises: CalledProcessError."""
    copy = f"COPY ({query}) TO STDOUT WITH (FORMAT csv, HEADER)"
    command = ["psql", "--no-psqlrc", "--quiet", os.environ["DATABASE_URL"], "--command", copy]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - no shell
        assert process.stdout is not None
        for line in csv.DictReader(process.stdout):
            yield msgspec.convert(line, Sale, strict=False)
    if process.returncode:  # else half of the rows would be taken for all of them
        raise subprocess.CalledProcessError(process.returncode, "psql")


@workflow(queue="etl")
async def best_sellers(run: Run) -> list[Sale]:
    """Copy rows, sum them up, return the best."""
    sales = await run.write("sales", rows(SALES), row=Sale)
    best = await run.sql(
        "SELECT sku, sum(cents)::BIGINT AS cents FROM sales GROUP BY sku ORDER BY cents DESC, sku LIMIT 3",
        into="best",
        sales=sales,
    )
    return await run.fetch(best, Sale)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedServer(Path(folder), port=0, durability="process") as server,
            connect(server.url) as ledger,
        ):
            worker = Worker(ledger, TaskRegistry([best_sellers]))
            running = asyncio.create_task(worker.run())
            job = await ledger.enqueue(best_sellers)
            for sale in await job.result(timeout_s=120):
                print(f"sku {sale.sku}: {sale.cents:,} cents")
            worker.stop()
            await running


if __name__ == "__main__":
    if os.environ.get("DATABASE_URL"):
        asyncio.run(main())
    else:
        print("no PostgreSQL was named, so nothing was copied: set DATABASE_URL to the URI of one")
