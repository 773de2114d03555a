"""Tables of a run: writing, querying and reading rows. Each table is a step; its rows are no events."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import anyio.to_thread

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.runs.passage import Passage
from jobledger.ledger.runs.step_call import StepCall
from jobledger.ledger.runs.steps import StepFunction, StepRules, digest_of
from jobledger.ledger.tables.parquet import RowLike, read_rows
from jobledger.ledger.tables.record import TableRecord, read_record
from jobledger.ledger.tables.table import Table

T = TypeVar("T")

#: The most rows of a `run.fetch`, which holds all of them in memory.
ROWS_MAX: Final = 100_000


class RunTables:
    """The verbs of `Run` on tables."""

    __slots__ = ()
    _passage: Passage

    async def write(
        self,
        name: str,
        batches: Iterable[RowLike] | AsyncIterable[RowLike],
        /,
        *,
        row: type[Any] | None = None,
    ) -> Table:
        """Write rows into a table: msgspec Structs, dicts, or tables and batches of pyarrow, all with the same columns.

        They are read as a stream, so that memory stays bounded; iterables that are not async are read in a thread.
        `row`, a Struct, defines the columns; without it the first rows do. This is a step: a later attempt reads no
        rows.

        Raises: StepFailedError; DivergedError; ConfigurationError if the extra `tables` is not installed.
        """
        check_token("name of a table", name)
        work = self._passage.journal.tables

        async def make() -> TableRecord:
            return await work.write(name, batches, row)

        call = _TableCall(self._passage, name, make, target="write")
        with self._passage.enter(name) as branch:
            return await call.run(branch.key(name))

    async def sql(
        self, query: str, /, *, into: str, timeout_s: float | None = None, **tables: Table
    ) -> Table:
        """Write the rows of one SELECT into table `into`, by DuckDB in a process of the worker's pool.

        The query sees only the given tables, by their names: no file, no network, no other run. It is a step,
        identified by its name, the query and the content of its tables. Without ORDER BY the order of rows is not
        guaranteed; the same ordered query gives the same bytes.

        Raises: as `write`; InvalidInputError for a table of another run, TableExpiredError.
        """
        check_token("name of a table", into)
        passage = self._passage
        used = {view: await self._own(view, table) for view, table in tables.items()}
        digest = digest_of({"query": query, "tables": {view: each.sha256 for view, each in used.items()}})
        paths: dict[str, Path] = {}

        async def prepare() -> None:
            for view, table in tables.items():
                paths[view] = await table.path()

        async def make() -> TableRecord:
            return await passage.journal.tables.select(into, query, paths)

        call = _TableCall(
            passage, into, make, target="sql", digest=digest, prepare=prepare, timeout_s=timeout_s
        )
        with passage.enter(into) as branch:
            return await call.run(branch.key(into))

    async def fetch(self, table: Table, row: type[T], /, *, limit: int = ROWS_MAX) -> list[T]:
        """Return the rows of a table as values of a type. This is no step: each attempt that comes here needs the file.

        Raises: InvalidInputError for rows of another type, and for a table of more than `limit` rows or of another run;
            TableExpiredError, UnreachableError.
        """
        record = await self._own("table", table)
        if record.rows > limit:
            raise InvalidInputError(
                f"table {record.name!r} has {record.rows:,} rows, more than the {limit:,} that run.fetch holds in memory: "
                "choose fewer with run.sql, or read table.path() piece by piece"
            )
        path = await table.path()

        def read() -> list[T]:
            return read_rows(path, row, name=record.name)

        return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)

    async def _own(self, what: str, table: Table) -> TableRecord:
        """Return the record of a table of this run. Raises: InvalidInputError for any other table."""
        if not isinstance(cast("object", table), Table):
            raise InvalidInputError(f"{what}={table!r} is no table: give what run.write or run.sql returned")
        passage = self._passage
        step = passage.journal.job.steps.get(table.step)
        if step is not None and step.kind == "table" and step.state == "completed":
            record = read_record(await passage.result_of(step))
            if record == table.record:
                return record
        raise InvalidInputError(
            f"table {table.name!r} is not of run {passage.journal.job.id}: a run reads only its own tables"
        )


class _TableCall(StepCall):
    """A step that makes a table."""

    def __init__(
        self,
        passage: Passage,
        name: str,
        make: Callable[[], Awaitable[TableRecord]],
        *,
        target: str,
        digest: str = "",
        prepare: Callable[[], Awaitable[None]] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(
            passage, StepFunction(make, name, StepRules(timeout_s=timeout_s), target=target), (), {}
        )
        self._kind = "table"
        self._digest_of_input = digest
        self._make = make
        self._prepare = prepare
        self._key = ""

    async def run(self, key: str) -> Table:
        """Return the recorded table. Raises: as `StepCall.run`, TableExpiredError."""
        self._key = key
        table: Table = await super().run(key)
        return table

    def _digest(self) -> str:
        return self._digest_of_input

    def _read(self, text: bytes) -> Table:
        return Table(read_record(text), self._key, self._passage.journal.tables)

    async def _get_ready(self) -> None:
        if self._prepare is not None:
            await self._prepare()

    async def _do(self) -> TableRecord:
        return await self._make()
