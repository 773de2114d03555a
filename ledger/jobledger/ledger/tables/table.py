"""`Table`: what `run.write` and `run.sql` return, by which a run's code reads and hands on rows."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio.to_thread

from jobledger.ledger.tables.parquet import RowLike, read_arrow

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable, Mapping

    from jobledger.ledger.tables.record import TableRecord


class TableWork(Protocol):
    """What the tables of one attempt of a run need of its worker."""

    async def write(
        self, name: str, rows: Iterable[RowLike] | AsyncIterable[RowLike], row: type[Any] | None
    ) -> TableRecord:
        """Write rows into a file and store it.

        Raises: InvalidInputError, ConfigurationError, LedgerFullError, UnreachableError, and what the rows raise.
        """
        ...

    async def select(self, name: str, query: str, paths: Mapping[str, Path]) -> TableRecord:
        """Write the rows of a query into a file and store it; `paths`: of the tables that it may use.

        Raises: FailedElsewhereError for what the engine raised; as `write`.
        """
        ...

    async def path(self, record: TableRecord, step: str) -> Path:
        """Return a table's file on this machine, kept there until the attempt ends.

        Raises: TableExpiredError, UnreachableError, ConfigurationError, OSError.
        """
        ...


class Table:
    """The rows of one step of a run. Made by `run.write` and `run.sql`, and read in that run alone."""

    __slots__ = ("_work", "record", "step")

    def __init__(self, record: TableRecord, step: str, work: TableWork) -> None:
        self.record = record  #: as the step's result is recorded
        self.step = step  #: key of the step that made it
        self._work = work

    def __repr__(self) -> str:
        """Show the name and the size."""
        return f"<table {self.name}: {self.rows:,} rows>"

    @property
    def name(self) -> str:
        """The name that `run.write` or `run.sql` gave it."""
        return self.record.name

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.record.rows

    @property
    def bytes(self) -> int:
        """How large its Parquet file is."""
        return self.record.bytes

    @property
    def sha256(self) -> str:
        """The digest of its Parquet file, in hex."""
        return self.record.sha256

    @property
    def schema(self) -> dict[str, str]:
        """The Arrow types of its columns, in their order."""
        return dict(self.record.schema)

    @property
    def expires_at(self) -> datetime | None:
        """Until when its rows are kept, UTC; None: until somebody removes them."""
        return self.record.expires_at

    async def path(self) -> Path:
        """Return its Parquet file on this machine, to be read only, and only until this attempt ends.

        Raises: TableExpiredError, UnreachableError, ConfigurationError, OSError.
        """
        return await self._work.path(self.record, self.step)

    async def arrow(self) -> Any:
        """Return it as a `pyarrow.Table`, whole in memory. Raises: as `path`."""
        return await anyio.to_thread.run_sync(read_arrow, await self.path(), abandon_on_cancel=True)
