"""Declarations of the tables of a projection: `Table`, and `AggregateTables` for all tables of one aggregate.

`tables.registry` lists the declared ones. Code that makes a file, fills it, compares two files or shows a past moment
needs only the declaration.
"""

from __future__ import annotations

import abc
import functools
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from jobledger.audit.counts import Counts
from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.times import time_text

S = TypeVar("S")
Value = str | int | float | bytes | bytearray | None
Row = tuple[Value, ...]

_SQL_TYPES: Final = {str: "TEXT", int: "INTEGER", float: "REAL", bytes: "BLOB"}


class Column(NamedTuple):
    """One column: its declaration for SQLite, and its description for readers."""

    type: type  #: str, int, float or bytes
    meaning: str  #: for the table of columns in docs/projections.md
    #: The projector needs it to continue from a row. It may change at any time, so views leave it out.
    is_internal: bool = False
    is_time: bool = False  #: text in ISO-8601, UTC, six digits of microseconds


def text(meaning: str) -> Column:
    """Declare a column of text."""
    return Column(str, meaning)


def timestamp(meaning: str) -> Column:
    """Declare a column of times: text in UTC with six digits of microseconds, so that text order is time order."""
    return Column(str, meaning, is_time=True)


def integer(meaning: str, *, is_internal: bool = False) -> Column:
    """Declare a column of whole numbers; yes and no are 1 and 0."""
    return Column(int, meaning, is_internal)


def real(meaning: str) -> Column:
    """Declare a column of numbers."""
    return Column(float, meaning)


class Index(NamedTuple):
    """An index of a table, named after its columns."""

    columns: tuple[str, ...]
    where: str = ""  #: condition on its rows; "": all rows


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table."""

    name: str
    row: str  #: meaning of a row, for docs/projections.md
    columns: Mapping[str, Column]  #: by name, in the order of the file
    key: tuple[str, ...]  #: the columns of its primary key
    indexes: tuple[Index, ...] = ()
    #: The column with the stream sequence of the event that wrote a row last; "" where rows add up many events.
    sequence: str = ""
    own: str = ""  #: column whose value does not come from the ledger, and is never compared; "": none

    def create(self, connection: sqlite3.Connection) -> None:
        """Make the table, with the statement that sqlite-utils would execute.

        sqlite-utils is not used: its import takes 0.25 s, and 0.5 s more where pandas is installed.
        """
        only = self.key[0] if len(self.key) == 1 else ""
        lines = [
            f'   "{name}" {_SQL_TYPES[column.type]}{" PRIMARY KEY" if name == only else ""}'
            for name, column in self.columns.items()
        ]
        if not only:
            names = ", ".join(f'"{each}"' for each in self.key)
            lines.append(f"   PRIMARY KEY ({names})")
        definitions = ",\n".join(lines)
        connection.execute(f'CREATE TABLE "{self.name}" (\n{definitions}\n)')

    def create_indexes(self, connection: sqlite3.Connection) -> None:
        """Make its indexes."""
        for columns, where in self.indexes:
            name = f"{self.name}_by_{'_'.join(columns)}"
            condition = f" WHERE {where}" if where else ""
            connection.execute(f"CREATE INDEX {name} ON {self.name} ({', '.join(columns)}){condition}")

    def adding(self, columns: Sequence[str], *extra: str) -> str:
        """Return the statement that makes a row, or adds `columns` to the row of the same key.

        Takes the key's values, then those of `columns`. `extra` are assignments, which replace the addition for the
        columns that they name.
        """
        names = (*self.key, *columns)
        assigned = {each.partition(" = ")[0] for each in extra}
        sets = [*extra, *(f"{name} = {name} + excluded.{name}" for name in columns if name not in assigned)]
        return (
            f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({marks(names)}) "  # noqa: S608 - names of columns
            f"ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {', '.join(sets)}"
        )

    def putting(self) -> str:
        """Return the statement that makes a row, or replaces the row of the same key; takes every column's value."""
        return (
            f"INSERT OR REPLACE INTO {self.name} ({', '.join(self.columns)}) VALUES ({marks(self.columns)})"  # noqa: S608
        )


def marks(columns: Sequence[str] | Mapping[str, Column]) -> str:
    """Return one question mark per column, as `VALUES` wants them."""
    return ", ".join("?" * len(columns))


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a table that outside readers may rely on: all columns that are not internal, under lasting names."""

    name: str
    of: Table
    renamed: Mapping[str, str] = msgspec.field(
        default_factory=dict[str, str]
    )  #: the view's name of a column, by the table's name

    @property
    def columns(self) -> dict[str, Column]:
        """Its columns by the names for readers."""
        return {
            self.renamed.get(name, name): column
            for name, column in self.of.columns.items()
            if not column.is_internal
        }

    def create(self, connection: sqlite3.Connection) -> None:
        """Make the view."""
        shown = (
            f"{name} AS {self.renamed.get(name, name)}"
            for name, column in self.of.columns.items()
            if not column.is_internal
        )
        connection.execute(f"CREATE VIEW {self.name} AS SELECT {', '.join(shown)} FROM {self.of.name}")  # noqa: S608


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A view that puts several rows together, for readers outside jobledger as `View`."""

    name: str
    columns: Mapping[str, Column]  #: by name, in the order of the statement
    sql: str  #: a SELECT

    def create(self, connection: sqlite3.Connection) -> None:
        """Make the view."""
        connection.execute(f"CREATE VIEW {self.name} ({', '.join(self.columns)}) AS {self.sql}")


class CacheLimits(NamedTuple):
    """Limits of the data that is kept in memory between transactions."""

    jobs_max: int  #: folds of unfinished jobs
    bytes_max: int  #: encoded size of these folds


class Rows(abc.ABC):
    """The rows of some tables behind one connection; the caller owns the transaction."""

    @abc.abstractmethod
    def apply(self, messages: Sequence[Message], /) -> None:
        """Bring the rows forward by messages in stream order; never empty.

        Rows depend on messages and earlier rows alone: the same messages must give the same rows, however they are cut
        into calls. If the ledger's beginning was archived, the first message of a chain may not be its first event.
        """

    def go_on_from(self, counts: Counts | None, first_sequence: int, /) -> None:  # noqa: B027 - most count nothing
        """Begin an empty file with the counts of events archived before `first_sequence`; None: they are unknown."""

    def forget(self) -> None:  # noqa: B027 - most keep nothing
        """Drop the data in memory, because the rows differ from it."""


class AggregateTables(msgspec.Struct, frozen=True, kw_only=True):
    """All tables of one aggregate. A new aggregate needs a module that makes one, and a line in `tables.registry`.

    A past moment needs no declaration of its own: the same `apply` stops there.
    """

    aggregate: str  #: its name, the second word of a ledger subject
    #: From 1; raise it with every change of a table, an index or the meaning of a column. Older files are then rebuilt.
    version: int
    tables: tuple[Table, ...]
    views: tuple[View, ...] = ()
    queries: tuple[Query, ...] = ()
    rows: Callable[[sqlite3.Connection, CacheLimits], Rows]  #: makes the writer of the rows
    #: True: its rows depend on other aggregates, too. They get every message, before the rows of those aggregates do.
    reads_all: bool = False


def named_tables(
    of: Aggregate[Any, S], version: int, table: Table, values: Callable[[S, str], Row | None]
) -> AggregateTables:
    """Declare the one table of an aggregate whose values people set by name: a row for each name, as set now.

    `values`: values of the columns after the name, from the state and the time of its newest event; None: no row.
    """
    rows = functools.partial(_NamedRows, of, table, values)
    return AggregateTables(aggregate=of.name, version=version, tables=(table,), rows=rows)


class _NamedRows(Rows, Generic[S]):
    """The rows of such a table."""

    def __init__(
        self,
        of: Aggregate[Any, S],
        table: Table,
        values: Callable[[S, str], Row | None],
        connection: sqlite3.Connection,
        _cache: CacheLimits,
    ) -> None:
        self._of, self._values, self._connection = of, values, connection
        self._put = table.putting()
        self._forget = f"DELETE FROM {table.name} WHERE {table.key[0]} = ?"  # noqa: S608 - names of the table

    def apply(self, messages: Sequence[Message]) -> None:
        """Bring the rows forward; see `Rows`."""
        for message in messages:
            name = self._of.key_in(message.subject)
            state = self._of.evolve(None, self._of.decode(message), message.stream_sequence)
            values = self._values(state, time_text(message.stored_at))
            if values is None:
                self._connection.execute(self._forget, name)
            else:
                self._connection.execute(self._put, (*name, *values))
