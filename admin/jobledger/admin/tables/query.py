"""A question in SQL over the tables of a run: what `run.sql` does, in the same locked process, for a person who looks."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import msgspec

from jobledger.admin.rows import Rows
from jobledger.admin.tables.files import export_table, tables_of
from jobledger.ledger.client import Ledger
from jobledger.ledger.files import open_file
from jobledger.ledger.model.errors import InvalidInputError, NotFoundError
from jobledger.ledger.tables.extra import load, need_tables
from jobledger.projections.queries.sql import SqlAnswer
from jobledger.projections.tables.run_tables import TableRow
from jobledger.workers.config import WorkerConfig
from jobledger.workers.pool.child_process import TaskValue
from jobledger.workers.pool.messages import ENGINE, Call
from jobledger.workers.pool.pool import PoolConfig, ProcessPool
from jobledger.workers.runs.engine import select
from jobledger.workers.runs.tables import engine_limits

_READ_ROWS: Final = 10_000


async def query_tables(
    ledger: Ledger,
    rows: Rows,
    run: str,
    query: str,
    *,
    queue: str | None = None,
    rows_max: int,
    limit_s: float,
) -> SqlAnswer:
    """Return the rows of one SELECT over the tables of a run; it sees these tables and changes nothing.

    A table is called by the key of its step, or by its name if no other one has it. Those that the query names are
    copied to this machine first; `limit_s` is for the query itself.

    Raises: InvalidInputError for what is no SELECT, with the reason, and for one that takes too long; NotFoundError for a
        run without tables; TableExpiredError; ConfigurationError without the extra `tables`; as `tables_of`.
    """
    need_tables()
    known = views_of((await tables_of(rows, run, queue)).tables)
    if not known:
        raise NotFoundError(f"run {run} has made no table")
    with tempfile.TemporaryDirectory(prefix="jobledger-query-") as made:
        folder = Path(made)
        paths: dict[str, str] = {}  #: files by digest and place: a table with two names is copied once
        views: dict[str, str] = {}
        for name, table in known.items():
            if not _is_named(name, query):
                continue
            if table.file not in paths:
                path = folder / f"{len(paths)}.parquet"
                await export_table(ledger, table, path)
                paths[table.file] = str(path)
            views[name] = paths[table.file]
        await _select(query, views, folder, sorted(known), rows_max=rows_max, limit_s=limit_s)
        return await anyio.to_thread.run_sync(_read, folder / "result.parquet", rows_max)


def views_of(tables: Sequence[TableRow]) -> dict[str, TableRow]:
    """Return what a query may name: each table by its step's key, and by its name if no other one has it."""
    found = {table.step: table for table in tables}
    names = [table.name for table in tables]
    for table in tables:
        if names.count(table.name) == 1:
            found.setdefault(table.name, table)
    return found


def _is_named(name: str, query: str) -> bool:
    """Whether the text of a query holds a table's name. If it means something else there, a table is copied in vain."""
    return name.replace('"', '""').lower() in query.lower()


async def _select(
    query: str, views: dict[str, str], folder: Path, known: list[str], *, rows_max: int, limit_s: float
) -> None:
    """Let a process of its own write the rows into the folder. Raises: InvalidInputError, ChildStartError."""
    given: dict[str, Any] = {
        "query": query,
        "views": views,
        "folder": str(folder),
        "limits": engine_limits(WorkerConfig(pool_size=1)),
        "rows_max": rows_max + 1,
    }
    call = Call(
        task="tables query",
        step=f"{ENGINE}:{select.function.__qualname__}",
        input=msgspec.Raw(select.signature.encode((), given)),
        job_id="",
        queue="",
        attempt=1,
        worker="",
    )
    async with ProcessPool((), PoolConfig(size=1), for_tasks=False) as pool:
        child = await pool.take()
        try:
            async with asyncio.timeout(limit_s):
                result = await pool.run(call, child=child)
        except TimeoutError as error:
            sentence = (
                f"the SQL took longer than {limit_s:g} s: ask for less, or allow it more time (--timeout)"
            )
            raise InvalidInputError(sentence) from error
    if not isinstance(result, TaskValue):
        reason = " ".join(result.error.message.split())
        raise InvalidInputError(
            f"the SQL cannot be run: {reason}; tables of the run: {', '.join(known[:20])}"
        )


def _read(path: Path, rows_max: int) -> SqlAnswer:
    """Return at most `rows_max` rows of a file, which holds at most one more: that one shows that there are more."""
    parquet = load("pyarrow.parquet")
    found: list[tuple[Any, ...]] = []
    with open_file(path) as file, parquet.ParquetFile(file) as source:
        columns = tuple(map(str, source.schema_arrow.names))
        for batch in source.iter_batches(batch_size=_READ_ROWS):
            found.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return SqlAnswer(columns=columns, rows=found[:rows_max], has_more=len(found) > rows_max)
