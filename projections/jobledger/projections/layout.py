"""What kind of file a projector keeps: how an empty one is made, known again, and brought forward.

`JOBS` is ours, the tables of `schema`. A user's read model is another kind (`read_model`); files, transactions,
feeding and rebuilding are the same for all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from jobledger.audit.counts import Counts
from jobledger.ledger.model.codec import StoredEvent
from jobledger.projections import schema
from jobledger.projections.errors import NewerSchemaError, OlderSchemaError
from jobledger.projections.tables import Tables


class Rows(Protocol):
    """The rows behind one connection; the caller owns the transaction."""

    def apply(self, events: Sequence[StoredEvent], /) -> None:
        """Bring the rows forward by job events that follow each other in the stream; may be empty."""
        ...

    def go_on_from(self, counts: Counts | None, first_sequence: int, /) -> None:
        """Begin, in an empty file, with what was counted before the ledger began at `first_sequence`; None: unknown."""
        ...

    def forget(self) -> None:
        """Forget what was kept in memory: the rows are not, or no longer, what it came from."""
        ...


class Layout(Protocol):
    """A kind of file."""

    @property
    def application_id(self) -> int:
        """What tells files of this kind from all others, in SQLite's header."""
        ...

    @property
    def draft_journal(self) -> str:
        """SQLite's journal mode while a file is made anew; OFF where no statement may ever fail half-way."""
        ...

    def create_tables(self, connection: sqlite3.Connection, environment: str) -> None:
        """Make the tables in an empty file, the position before the first event among them."""
        ...

    def create_indexes(self, connection: sqlite3.Connection) -> None:
        """Make what is cheaper to make after the rows."""
        ...

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Refuse a file of this kind that was made by another version.

        Raises: OlderSchemaError for one that a projector rebuilds by itself, and other kinds of ProjectionFileError.
        """
        ...

    def rows(self, connection: sqlite3.Connection, *, cache_jobs_max: int, cache_bytes_max: int) -> Rows:
        """Return what applies events behind this connection."""
        ...


class JobsLayout:
    """The projection of jobs, attempts and dead letters."""

    application_id = schema.APPLICATION_ID
    draft_journal = "OFF"

    def create_tables(self, connection: sqlite3.Connection, environment: str) -> None:
        """Make the tables; see `Layout.create_tables`."""
        schema.create_tables(connection, environment)

    def create_indexes(self, connection: sqlite3.Connection) -> None:
        """Make every index; see `Layout.create_indexes`."""
        schema.create_indexes(connection)

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Compare the schema's version; see `Layout.check`."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > schema.SCHEMA_VERSION:
            raise NewerSchemaError(path, version, schema.SCHEMA_VERSION)
        if version < schema.SCHEMA_VERSION:
            raise OlderSchemaError(path, version, schema.SCHEMA_VERSION)

    def rows(self, connection: sqlite3.Connection, *, cache_jobs_max: int, cache_bytes_max: int) -> Rows:
        """Return the tables behind this connection; see `Layout.rows`."""
        return Tables(connection, cache_jobs_max=cache_jobs_max, cache_bytes_max=cache_bytes_max)


JOBS: Layout = JobsLayout()
