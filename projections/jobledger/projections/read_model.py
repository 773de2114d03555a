"""A user's read model: the user's tables, which the projector keeps in a SQLite file of their own.

The file has the user's tables and two of ours, `position` and `read_model`. Rows and position change in one
transaction, so `apply` may do anything to the rows but end that transaction or touch our tables.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.events import event_type
from jobledger.ledger.model.log import jobs_among
from jobledger.ledger.model.subjects import is_token
from jobledger.projections import files
from jobledger.projections.errors import (
    DamagedProjectionError,
    NewerReadModelError,
    NotAProjectionError,
    OlderSchemaError,
    ReadModelDefinitionError,
    ReadModelFailedError,
)
from jobledger.projections.position import POSITION_COLUMNS, put_before_first
from jobledger.projections.table import CacheLimits, Rows

#: "jlrm" in SQLite's header, which marks a file as a read model's.
APPLICATION_ID: Final = 0x6A6C726D
_OURS: Final = ("position", "read_model")
_ENDS_TRANSACTION: Final = re.compile(
    r"\bON\s+CONFLICT\s+ROLLBACK\b|\bRAISE\s*\(\s*ROLLBACK\b", re.IGNORECASE
)
_USE_ABORT: Final = "where it says ROLLBACK it must say ABORT"
_VERSION_MAX: Final = 2**31 - 1
#: Columns that a file of another jobledger may lack; such a file is rebuilt.
_FORM: Final = ",".join(POSITION_COLUMNS)


class ReadModel(Protocol):
    """The methods of a user's class; it is instantiated without arguments, and lives as long as the projector runs.

    It may also have `keys` (table -> its primary key's columns), for `tables` given as a mapping, and `forget()`, which
    is called whenever data in its memory may differ from the rows: after a transaction that was not committed, and when
    another process wrote to the file.
    """

    @property
    def name(self) -> str:
        """The name of the model: 1 to 64 of A-Z a-z 0-9 _ and -; a file of another name is left alone."""
        ...

    @property
    def version(self) -> int:
        """The version, from 1; raise it when tables or `apply` change: the file is rebuilt from the first event."""
        ...

    @property
    def tables(self) -> Mapping[str, Mapping[str, Any]] | str:
        """Columns and their types by table, as sqlite-utils takes them, or SQL."""
        ...

    def apply(self, connection: sqlite3.Connection, events: Sequence[StoredEvent], /) -> None:
        """Bring the rows forward by job events, which are in stream order and never empty.

        Rows must depend on the events and earlier rows alone: the same events give the same rows, however they are cut
        into calls. The transaction belongs to the projector. Any exception ends it, and none of its changes is kept.
        """
        ...


class ReadModelLayout:
    """The file of one read model; see `layout.Layout`.

    Raises: ReadModelDefinitionError when the object cannot be one.
    """

    application_id = APPLICATION_ID
    # With OFF a statement that fails half-way would leave half of its changes, and the user's code may catch the error.
    draft_journal = "MEMORY"

    def __init__(self, model: ReadModel, what: str = "") -> None:
        self.model = model
        self.what = what or f"{type(model).__module__}:{type(model).__qualname__}"  # class, for errors
        check_shape(model, self.what)

    def create_tables(self, connection: sqlite3.Connection, environment: str) -> None:
        """Make the model's tables and ours; see `Layout.create_tables`.

        Raises: ReadModelDefinitionError when theirs cannot be made.
        """
        try:
            self._create_theirs(connection)
        except Exception as error:  # the user's statements may raise anything
            if files.is_of_the_file(error):
                raise
            raise ReadModelDefinitionError(
                f"{self.what}: its tables cannot be made: {_said(error)}"
            ) from error
        if connection.in_transaction:
            raise ReadModelDefinitionError(f"{self.what}: the SQL of its tables leaves a transaction open")
        connection.execute(f"CREATE TABLE position (id INTEGER PRIMARY KEY, {_FORM})")
        put_before_first(connection, environment, self.model.version)
        connection.execute("CREATE TABLE read_model (name TEXT, version INTEGER, form TEXT)")
        ours = (self.model.name, self.model.version, _FORM)
        connection.execute("INSERT INTO read_model VALUES (?, ?, ?)", ours)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")

    def _create_theirs(self, connection: sqlite3.Connection) -> None:
        if isinstance(self.model.tables, str):
            connection.executescript(self.model.tables)
        else:
            from sqlite_utils import Database  # noqa: PLC0415 - a tenth of a second that readers need not pay

            database = Database(connection, execute_plugins=False)
            keys: Mapping[str, Any] = getattr(self.model, "keys", {})
            for name, columns in self.model.tables.items():
                database.table(name).create(dict(columns), pk=keys.get(name))
        for name, sql in connection.execute("SELECT name, sql FROM sqlite_master").fetchall():
            if name.lower() in _OURS:
                raise ValueError(f"the name {name.lower()} is the projector's, give it another")
            if _ENDS_TRANSACTION.search(sql or ""):
                raise ValueError(f"{name} would end the projector's transaction: {_USE_ABORT}")

    def create_indexes(self, connection: sqlite3.Connection) -> None:
        """Make nothing: `tables` may hold indexes, which `apply` may need; see `Layout.create_indexes`."""

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Compare name and version; see `Layout.check`.

        Raises: NotAProjectionError for another model's file, NewerReadModelError, OlderSchemaError.
        """
        found = connection.execute("SELECT name, version, form FROM read_model").fetchone()
        if found is None:
            raise DamagedProjectionError(path, "it does not say whose it is")
        if found[0] != self.model.name:
            raise NotAProjectionError(path)
        if found[1] > self.model.version:
            raise NewerReadModelError(path, found[1], self.model.version)
        if found[1:] != (self.model.version, _FORM):
            raise OlderSchemaError(path, found[1], self.model.version)

    def rows(self, connection: sqlite3.Connection, cache: CacheLimits) -> Rows:
        """Return the model behind this connection; see `Layout.rows`."""
        del cache  # the model itself decides what it keeps in memory
        return _ModelRows(self, connection)


class _ModelRows(Rows):
    """Calls `apply` inside the projector's transaction, and names the event at which it failed."""

    def __init__(self, layout: ReadModelLayout, connection: sqlite3.Connection) -> None:
        self._layout = layout
        self._model = layout.model
        self._connection = connection
        self.forget()  # the file may not be the one that the model has in memory

    def apply(self, messages: Sequence[Message]) -> None:
        """Hand the job events to the model; messages about other things are not for it."""
        events = jobs_among(messages)
        if not events:
            return
        watched = _WatchedBatch(events)
        refused: list[str] = []
        try:
            with _guarded(self._connection, refused):
                self._call(watched)
        except Exception as error:  # the user's `apply` may raise anything
            if files.is_of_the_file(error):
                raise
            why = refused[-1] if refused and "not authorized" in str(error) else _said(error)
            if not self._connection.in_transaction and _ENDED not in why:
                why = f"{why}; {_ENDED}"
            raise ReadModelFailedError(self._layout.what, watched.place(), why) from error

    def _call(self, events: Sequence[StoredEvent]) -> None:
        answer = cast("Any", self._model).apply(self._connection, events)
        if answer is not None:
            raise TypeError(f"apply returned a {type(answer).__name__}, and has nothing to return")
        if not self._connection.in_transaction:
            raise RuntimeError(_ENDED)

    def forget(self) -> None:
        """Let the model forget data that may not be in its rows."""
        forget = getattr(self._model, "forget", None)
        if forget is not None:
            forget()


class _WatchedBatch(list[StoredEvent]):
    """A batch that notes which of its events was handed out last."""

    def __init__(self, events: Sequence[StoredEvent]) -> None:
        super().__init__(events)
        self._current: StoredEvent | None = None

    def __iter__(self) -> Iterator[StoredEvent]:
        for each in super().__iter__():
            self._current = each
            yield each
        self._current = None

    def place(self) -> str:
        """Return the event at which an exception was raised, as exactly as known."""
        at = self._current or (self[0] if len(self) == 1 else None)
        if at is None:
            return f"among stream sequences {self[0].stream_sequence} to {self[-1].stream_sequence}"
        return f"at stream sequence {at.stream_sequence} (`{event_type(at.event)}` of job {at.event.job})"


_WRITES: Final = frozenset(
    {
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_ALTER_TABLE,
    }
)
_MAKES: Final = frozenset(
    {
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_VIEW,
    }
)
_ENDED: Final = f"a ROLLBACK clause of a statement, table or trigger ended the transaction: {_USE_ABORT}"
_PRAGMAS: Final = frozenset({"application_id", "user_version", "journal_mode", "synchronous", "locking_mode"})


@contextlib.contextmanager
def _guarded(connection: sqlite3.Connection, refused: list[str]) -> Generator[None, None, None]:
    """Refuse statements that would separate the rows from their position; add the reason to `refused`."""

    def authorize(action: int, one: str | None, two: str | None, _file: str | None, _by: str | None) -> int:
        table = two if action == sqlite3.SQLITE_ALTER_TABLE else one
        if not connection.in_transaction and (
            action == sqlite3.SQLITE_TRANSACTION or action in _WRITES or action in _MAKES
        ):
            refused.append(_ENDED)
        elif action == sqlite3.SQLITE_TRANSACTION:
            refused.append(f"{one}, `commit()` and their like are the projector's: leave them out")
        elif action in _WRITES and table in _OURS:
            refused.append(f"the table {table} is the projector's: leave it alone")
        elif action == sqlite3.SQLITE_PRAGMA and two is not None and str(one).lower() in _PRAGMAS:
            refused.append(f"the pragma {one} is the projector's: leave it alone")
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    # After a statement that ended the transaction, each further one would be committed by itself, and prepared
    # statements do not call the authorizer. So sqlite3 must begin a transaction before it writes, which does call it.
    connection.isolation_level = "IMMEDIATE"
    connection.set_authorizer(authorize)
    try:
        yield
    finally:
        connection.set_authorizer(None)
        connection.row_factory, connection.text_factory = None, str  # our own reads come next


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def check_shape(model: object, what: str) -> None:
    """Refuse an object that cannot be a read model, with a sentence on its first mistake.

    Raises: ReadModelDefinitionError.
    """
    for problem in _problems(model):
        raise ReadModelDefinitionError(f"{what} is no read model: {problem}")


def _problems(model: Any) -> Iterator[str]:
    missing = [name for name in ("name", "version", "tables", "apply") if not hasattr(model, name)]
    if missing:
        yield f"it has no `{missing[0]}`"
        return
    if not isinstance(model.name, str) or not is_token(model.name):
        yield "`name` must be 1 to 64 characters out of A-Z a-z 0-9 _ and -"
    if type(model.version) is not int or not 1 <= model.version <= _VERSION_MAX:
        yield f"`version` must be a whole number from 1, got {str(model.version)[:40]!r}"
    if not model.tables or not isinstance(model.tables, str | Mapping):
        yield "`tables` must be SQL, or a mapping from tables to their columns"
    elif isinstance(model.tables, Mapping):
        tables = cast("Mapping[object, object]", model.tables)
        wrong = [name for name, columns in tables.items() if not isinstance(columns, Mapping) or not columns]
        if wrong:
            yield f"`tables[{str(wrong[0])[:60]!r}]` must be a mapping from columns to types"
    if not isinstance(getattr(model, "keys", {}), Mapping):
        yield "`keys` must be a mapping from tables to their primary keys"
    for name in ("apply", "forget"):
        method = getattr(model, name, _problems)
        if not callable(method):
            yield f"`{name}` must be a method"
        elif inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            yield f"`{name}` must be a plain method: an async one cannot run inside the transaction"
        elif name == "apply" and inspect.isgeneratorfunction(method):
            yield "`apply` must be a plain method: as a generator it would do nothing"
