"""An outbox in PostgreSQL, by psycopg: one connection that listens for commits, made again when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Self, TypeVar

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.outbox.database import ListedRow, OutboxCounts, OutboxRow
from jobledger.ledger.outbox.errors import OutboxNotFoundError, OutboxUnreachableError
from jobledger.ledger.outbox.table import CHANNEL, OF_POSTGRESQL, TABLE, Dialect, schema

try:
    import psycopg
    from psycopg import conninfo
except ImportError as missing:
    raise ConfigurationError(
        "an outbox in PostgreSQL needs the library psycopg: install it with pip install 'jobledger[outbox]'"
    ) from missing

T = TypeVar("T")
_CONNECT_S: Final = 10
_STATEMENT_S: Final = 30.0
Connection = psycopg.AsyncConnection[Any]


class PostgresqlOutbox:
    """The outbox in one database."""

    dialect: Dialect = "postgresql"

    def __init__(self, address: str) -> None:
        """Raises: ConfigurationError, which does not say the address: a password may stand in it."""
        try:
            settings = conninfo.conninfo_to_dict(address)
        except psycopg.Error:  # its own sentence may hold the password
            raise ConfigurationError(
                "the address of the outbox's database cannot be read: it has the form postgresql://user@host:5432/name"
            ) from None
        given = {"connect_timeout": _CONNECT_S, "application_name": "jobledger-outbox", **settings}
        self._address = conninfo.make_conninfo("", **given)
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    async def create(self) -> None:
        """Make the table, and what notifies of rows, as one transaction."""

        async def make(connection: Connection) -> None:
            async with connection.transaction():
                for statement in schema("postgresql"):
                    await connection.execute(_constant(statement))

        await self._do(make)

    async def waiting(self, count: int) -> list[OutboxRow]:
        """Return the oldest rows that wait; see `OutboxDatabase`."""
        return [OutboxRow(*row) for row in await self._fetch(OF_POSTGRESQL.waiting, count)]

    async def delete(self, numbers: Sequence[int]) -> None:
        """Delete rows."""
        await self._change(OF_POSTGRESQL.delete, list(numbers))

    async def refuse(self, number: int, sentence: str) -> None:
        """Put a row aside."""
        await self._change(OF_POSTGRESQL.refuse, sentence.replace("\0", "\\0"), number)

    async def retry(self, numbers: Sequence[int] | None) -> int:
        """Let refused rows wait again."""
        return await self._change(OF_POSTGRESQL.retry, list(numbers or ()), numbers is not None)

    async def discard(self, numbers: Sequence[int] | None) -> int:
        """Delete refused rows."""
        return await self._change(OF_POSTGRESQL.discard, list(numbers or ()), numbers is not None)

    async def counts(self) -> OutboxCounts:
        """Count rows."""
        [(waiting, refused, oldest)] = await self._fetch(OF_POSTGRESQL.counts)
        return OutboxCounts(waiting=waiting, refused=refused, oldest_at=oldest)

    async def rows(self, count: int, *, refused_only: bool) -> list[ListedRow]:
        """Return rows."""
        found = await self._fetch(OF_POSTGRESQL.rows, refused_only, count)
        names = ListedRow.__struct_fields__
        return [ListedRow(**dict(zip(names, row, strict=True))) for row in found]

    async def wait(self, seconds: float) -> None:
        """Wait for a NOTIFY."""

        async def listen(connection: Connection) -> None:
            async for _ in connection.notifies(timeout=seconds, stop_after=1):
                pass

        await self._do(listen, limit_s=seconds + _STATEMENT_S)

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()
        self._connection = None

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def _fetch(self, statement: str, *arguments: Any) -> list[Any]:
        async def fetch(connection: Connection) -> list[Any]:
            return await (await connection.execute(_constant(statement), arguments)).fetchall()

        return await self._do(fetch)

    async def _change(self, statement: str, *arguments: Any) -> int:
        async def change(connection: Connection) -> int:
            return (await connection.execute(_constant(statement), arguments)).rowcount

        return await self._do(change)

    async def _do(self, work: Callable[[Connection], Awaitable[T]], *, limit_s: float = _STATEMENT_S) -> T:
        async with self._turn:
            try:
                async with asyncio.timeout(limit_s):
                    return await work(self._connection or await self._connect())
            except (psycopg.Error, TimeoutError) as error:
                await self.close()
                raise _translated(error) from error
            except BaseException:  # cancelled: a statement that was cut off leaves the connection in between
                await self.close()
                raise

    async def _connect(self) -> Connection:
        # Without a transaction of its own each statement is committed before it returns, and none stays open.
        made = await psycopg.AsyncConnection.connect(self._address, autocommit=True)
        self._connection = made
        await made.execute(_constant(f"LISTEN {CHANNEL}"))
        return made


def _constant(statement: str) -> bytes:
    """Return a statement of `table`, which is made of constants alone."""
    return statement.encode()


def _translated(error: Exception) -> Exception:
    if isinstance(error, psycopg.errors.UndefinedTable):
        return OutboxNotFoundError(
            f"the database has no table {TABLE}: make it with `jobledger outbox create`"
        )
    if isinstance(error, TimeoutError):
        return OutboxUnreachableError("the outbox's database gave no answer in time")
    return OutboxUnreachableError(f"the outbox's database cannot be used now: {' '.join(str(error).split())}")
