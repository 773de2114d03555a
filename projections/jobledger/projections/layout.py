"""The kinds of file that a projector keeps: how an empty one is made, recognized and updated.

`LEDGER` is ours, the tables of `tables.registry`. A user's read model is another kind (`read_model`); files,
transactions, feeding and rebuilding are the same for all. A file of another version is never altered: every row comes
from the ledger, so migration is a rebuild.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final, Protocol

from jobledger.projections.errors import NewerSchemaError, OlderSchemaError
from jobledger.projections.position import put_before_first
from jobledger.projections.table import CacheLimits, Rows
from jobledger.projections.tables.registry import (
    LedgerRows,
    all_queries,
    all_tables,
    all_views,
    schema_version,
)

#: Version of the tables in this jobledger.
SCHEMA_VERSION: Final = schema_version()


class Layout(Protocol):
    """A kind of file."""

    @property
    def application_id(self) -> int:
        """The number in SQLite's header that distinguishes files of this kind from all others."""
        ...

    @property
    def draft_journal(self) -> str:
        """SQLite's journal mode while a file is rebuilt; OFF only if it is certain that no statement fails half-way."""
        ...

    def create_tables(self, connection: sqlite3.Connection, environment: str) -> None:
        """Make the tables in an empty file, the position before the first event among them."""
        ...

    def create_indexes(self, connection: sqlite3.Connection) -> None:
        """Make the indexes, which are cheaper to make after the rows."""
        ...

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Refuse a file of this kind that was made by another version.

        Raises: OlderSchemaError for one that a projector rebuilds by itself, and other kinds of ProjectionFileError.
        """
        ...

    def rows(self, connection: sqlite3.Connection, cache: CacheLimits) -> Rows:
        """Return the object that applies all messages through this connection."""
        ...


class _LedgerLayout:
    """The projection of the whole ledger."""

    application_id = 0x6A6C6564  # "jled" in SQLite's header, which marks a file as ours
    draft_journal = "OFF"

    def create_tables(self, connection: sqlite3.Connection, environment: str) -> None:
        """Make the tables; see `Layout.create_tables`."""
        version = schema_version()
        for table in all_tables():
            table.create(connection)
        for view in all_views():
            view.create(connection)
        for query in all_queries():
            query.create(connection)
        put_before_first(connection, environment, version)
        connection.execute(f"PRAGMA user_version = {version:d}")
        connection.execute(f"PRAGMA application_id = {self.application_id:d}")

    def create_indexes(self, connection: sqlite3.Connection) -> None:
        """Make every index. If there are many rows, call it after them, since sorting once is cheaper."""
        for table in all_tables():
            table.create_indexes(connection)

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Compare the schema's version; see `Layout.check`."""
        found, known = connection.execute("PRAGMA user_version").fetchone()[0], schema_version()
        if found > known:
            raise NewerSchemaError(path, found, known)
        if found < known:
            raise OlderSchemaError(path, found, known)

    def rows(self, connection: sqlite3.Connection, cache: CacheLimits) -> Rows:
        """Return the tables behind this connection; see `Layout.rows`."""
        return LedgerRows(connection, cache)


LEDGER: Layout = _LedgerLayout()
