"""`enqueue`: a row of the outbox in the transaction of the caller's connection, whichever driver that is of.

No driver is imported here: a connection tells by its class where it comes from.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, ParamSpec, Protocol, cast, overload

from jobledger.ledger.model.clock import SYSTEM_CLOCK
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.identity import new_identity
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.outbox.table import insertion
from jobledger.ledger.tasks import Task, TaskWithOptions
from jobledger.ledger.written_orders import WrittenOrder, write_order

P = ParamSpec("P")


class AwaitedConnection(Protocol):
    """A connection or session whose statements are awaited: of psycopg, asyncpg or SQLAlchemy."""

    @property
    def execute(self) -> Callable[..., Awaitable[Any]]:
        """What does one statement."""
        ...


class BlockingConnection(Protocol):
    """A connection whose statements block: of psycopg, sqlite3, SQLAlchemy or Django."""

    def close(self) -> None:
        """Give it back."""
        ...


@overload
def enqueue(
    connection: AwaitedConnection,
    task: Task[P, Any] | TaskWithOptions[P, Any],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Awaitable[JobRef]: ...
@overload
def enqueue(
    connection: BlockingConnection,
    task: Task[P, Any] | TaskWithOptions[P, Any],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> JobRef: ...
@overload
def enqueue(  # of a driver without types
    connection: object,
    task: Task[P, Any] | TaskWithOptions[P, Any],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Any: ...
def enqueue(
    connection: Any,
    task: Task[P, Any] | TaskWithOptions[P, Any],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> JobRef | Awaitable[JobRef]:
    """Write one job into the outbox, in the transaction that the connection is in; return the job's name.

    It becomes a job when that transaction is committed and the relay has seen the row, and never if it is rolled back.
    With an asynchronous driver the answer is awaited. All that code can check is checked before the row is written, as
    `Ledger.enqueue` does; times such as `delay_s` count from here.

    Raises: InvalidInputError also for a connection that would commit the row by itself, for `debounce_s` and for
        `on_conflict="reject"`; TaskDefinitionError, PayloadTooLargeError; what the driver raises.
    """
    insert = _way_in(connection)
    written = _written(task, args, kwargs)
    inserted = insert(connection, written.text())
    return written.ref if inserted is None else _named(inserted, written.ref)


def _written(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WrittenOrder:
    try:
        plain, options = cast("Task[..., Any]", task).unpacked
    except AttributeError as error:
        raise InvalidInputError(f"{task!r} is not a task: decorate the function with @task") from error
    return write_order(
        plain, options, plain.signature.encode(args, kwargs), SYSTEM_CLOCK, _identity(os.getpid())
    )


@functools.lru_cache(maxsize=1)
def _identity(pid: int) -> str:  # noqa: ARG001 - a forked process is another one
    return new_identity()


async def _named(inserted: Awaitable[Any], ref: JobRef) -> JobRef:
    await inserted
    return ref


Insert = Callable[[Any, str], Awaitable[Any] | None]
_BEGIN: Final = "begin a transaction, so that the job and your own rows are committed together"


def _way_in(connection: object) -> Insert:
    """Return what inserts a row through a connection. Raises: InvalidInputError."""
    packages = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    insert = next((each for name, each in _WAYS.items() if name in packages), None)
    if insert is None or not hasattr(connection, "close"):
        kind = type(connection)
        raise InvalidInputError(
            f"an outbox cannot write through a {kind.__module__}.{kind.__qualname__}: give a connection of "
            f"{', '.join(_WAYS)}, or a session of SQLAlchemy"
        )
    return insert


def _require(is_in_transaction: object, kind: str) -> None:
    """Refuse a connection that would commit the row alone. Raises: InvalidInputError."""
    if not is_in_transaction:
        raise InvalidInputError(f"this connection of {kind} commits each statement by itself: {_BEGIN}")


def _by_psycopg(connection: Any, text: str) -> Awaitable[Any] | None:
    # Outside of a transaction, with autocommit, its status is IDLE, which is 0.
    _require(not connection.autocommit or connection.info.transaction_status, "psycopg")
    done = connection.execute(insertion("%s"), (text,))
    return cast("Awaitable[Any]", done) if hasattr(done, "__await__") else None


def _by_asyncpg(connection: Any, text: str) -> Awaitable[Any]:
    if not hasattr(connection, "is_in_transaction"):
        raise InvalidInputError(
            "give a connection of asyncpg's pool, not the pool: `async with pool.acquire()`"
        )
    _require(connection.is_in_transaction(), "asyncpg")
    return cast("Awaitable[Any]", connection.execute(insertion("$1"), text))


def _by_sqlite3(connection: Any, text: str) -> None:
    if not hasattr(connection, "in_transaction"):
        raise InvalidInputError("give the connection of sqlite3, not a cursor")
    # Python begins a transaction by itself before the row, unless it was told not to.
    begins = connection.isolation_level is not None and getattr(connection, "autocommit", False) is not True
    _require(begins or connection.in_transaction, "sqlite3")
    connection.execute(insertion("?"), (text,))


def _by_sqlalchemy(connection: Any, text: str) -> Awaitable[Any] | None:
    from sqlalchemy import text as statement  # noqa: PLC0415 - who gives its connection has it

    if not hasattr(connection, "in_transaction"):
        raise InvalidInputError("give a connection or a session of SQLAlchemy, not the engine")
    done = connection.execute(statement(insertion(":written")), {"written": text})
    return cast("Awaitable[Any]", done) if hasattr(done, "__await__") else None


def _by_django(connection: Any, text: str) -> None:
    if not hasattr(connection, "in_atomic_block"):
        raise InvalidInputError("give Django's connection: `from django.db import connection`")
    _require(connection.in_atomic_block or not connection.get_autocommit(), "Django")
    with connection.cursor() as cursor:
        cursor.execute(insertion("%s"), [text])


#: The function that inserts, by the package of the connection's class. SQLAlchemy and Django are first: they wrap connections of the others.
_WAYS: Final[dict[str, Insert]] = {
    "sqlalchemy": _by_sqlalchemy,
    "django": _by_django,
    "psycopg": _by_psycopg,
    "asyncpg": _by_asyncpg,
    "sqlite3": _by_sqlite3,
}
