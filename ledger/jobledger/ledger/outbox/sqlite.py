"""An outbox in SQLite: each call in a thread, on one connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import anyio
import anyio.to_thread
import msgspec

from jobledger.ledger.files import refuse_unfit
from jobledger.ledger.outbox.database import ListedRow, OutboxCounts, OutboxRow
from jobledger.ledger.outbox.errors import OutboxNotFoundError, OutboxUnreachableError
from jobledger.ledger.outbox.table import OF_SQLITE, TABLE, Dialect, schema

T = TypeVar("T")
_BUSY_S: Final = 5.0  #: how long a statement waits for the application's transactions


class SqliteOutbox:
    """The outbox in one file."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._turn = anyio.Lock()

    async def create(self) -> None:
        """Make the table, and the file where that is missing."""

        def make(connection: sqlite3.Connection) -> None:
            for statement in schema("sqlite"):
                connection.execute(statement)

        await self._do(make, mode="rwc")

    async def waiting(self, count: int) -> list[OutboxRow]:
        """Return the oldest rows that wait; see `OutboxDatabase`."""
        found = await self._fetch(OF_SQLITE.waiting, count)
        return [OutboxRow(number, _text(stored)) for number, stored in found]

    async def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows."""
        await self._change(OF_SQLITE.delete, _listed(numbers))

    async def refuse(self, number: int, sentence: str) -> None:
        """Put a row aside."""
        await self._change(OF_SQLITE.refuse, sentence, number)

    async def retry(self, numbers: Sequence[int] | None) -> int:
        """Let refused rows wait again."""
        return await self._change(OF_SQLITE.retry, _listed(numbers or ()), numbers is not None)

    async def discard(self, numbers: Sequence[int] | None) -> int:
        """Delete refused rows."""
        return await self._change(OF_SQLITE.discard, _listed(numbers or ()), numbers is not None)

    async def counts(self) -> OutboxCounts:
        """Count rows."""
        [(waiting, refused, oldest)] = await self._fetch(OF_SQLITE.counts)
        return msgspec.convert({"waiting": waiting, "refused": refused, "oldest_at": oldest}, OutboxCounts)

    async def rows(self, count: int, *, refused_only: bool) -> list[ListedRow]:
        """Return rows."""
        found = await self._fetch(OF_SQLITE.rows, refused_only, count)
        names = ListedRow.__struct_fields__
        rows = [dict(zip(names, row, strict=True)) for row in found]
        return [msgspec.convert({**row, "text": _text(row["text"])}, ListedRow) for row in rows]

    async def wait(self, seconds: float) -> None:
        """Wait: SQLite tells nobody of a commit."""
        await anyio.sleep(seconds)

    async def close(self) -> None:
        """Close the connection."""
        async with self._turn:
            self._drop()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        with anyio.CancelScope(shield=True):  # a thread may be at it
            await self.close()

    async def _fetch(self, statement: str, *arguments: Any) -> list[Any]:
        return await self._do(lambda connection: connection.execute(statement, arguments).fetchall())

    async def _change(self, statement: str, *arguments: Any) -> int:
        return await self._do(lambda connection: connection.execute(statement, arguments).rowcount)

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, mode: str = "rw") -> T:
        def in_thread() -> T:
            if self._connection is None:
                refuse_unfit(self._path, links=True)
                # Without a transaction of its own each statement is committed before it returns.
                self._connection = sqlite3.connect(
                    f"{self._path.absolute().as_uri()}?mode={mode}",
                    uri=True,
                    timeout=_BUSY_S,
                    isolation_level=None,
                    check_same_thread=False,
                )
                # SQLite stores any bytes as text. Bytes that are no UTF-8 are read as escapes, which are no JSON, so the
                # relay refuses that row.
                self._connection.text_factory = _text
            return work(self._connection)

        async with self._turn:
            try:
                return await anyio.to_thread.run_sync(in_thread)
            except (sqlite3.Error, OSError) as error:
                self._drop()
                raise self._translated(error) from error

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _translated(self, error: Exception) -> Exception:
        if not self._path.exists():
            return OutboxNotFoundError(f"there is no file {self._path}: is its name right?")
        if f"no such table: {TABLE}" in str(error):
            return OutboxNotFoundError(
                f"{self._path} has no table {TABLE}: make it with `jobledger outbox create`"
            )
        if isinstance(error, sqlite3.Error):
            return OutboxUnreachableError(f"the outbox in {self._path} cannot be used now: {error}")
        return error


def _text(stored: bytes | str) -> str:
    return stored.decode(errors="backslashreplace") if isinstance(stored, bytes) else stored


def _listed(numbers: Sequence[int]) -> str:
    return msgspec.json.encode(numbers).decode()
