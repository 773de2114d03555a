"""Databases with an outbox and an application's table beside it, through each driver that an application may have."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import asyncpg
import psycopg
from django.apps import apps
from django.conf import settings
from django.db.utils import ConnectionHandler
from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from jobledger.ledger import outbox
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.outbox.addresses import open_database

#: Does some enqueues in one transaction, given as task and arguments; True: commits it, False: rolls it back.
Transaction = Callable[[list[tuple[Any, dict[str, Any]]], bool], Awaitable[list[JobRef]]]
Orders = list[tuple[Any, dict[str, Any]]]


async def make_table(address: str) -> None:
    async with open_database(address) as database:
        await database.create()


def _path(address: str) -> str:
    return address.removeprefix("sqlite:")


def _blocking(connect: Callable[[str], Any]) -> Callable[[str], Transaction]:
    """Of a driver whose connection has `commit` and `rollback`, and begins a transaction by itself."""

    def of(address: str) -> Transaction:
        def transact(orders: Orders, commits: bool) -> list[JobRef]:
            connection = connect(address)
            try:
                made: list[JobRef] = [outbox.enqueue(connection, task, **values) for task, values in orders]
                if commits:
                    connection.commit()
                else:
                    connection.rollback()
            finally:
                connection.close()
            return made

        async def call(orders: Orders, commits: bool) -> list[JobRef]:
            return await asyncio.to_thread(transact, orders, commits)

        return call

    return of


def _psycopg(address: str) -> Any:
    return psycopg.connect(address)


def _sqlalchemy_url(address: str, driver: str) -> str:
    if address.startswith("sqlite:"):
        return f"sqlite:///{_path(address)}"
    return address.replace("postgresql://", f"postgresql+{driver}://")


def _session(address: str) -> Any:
    return Session(create_engine(_sqlalchemy_url(address, "psycopg"), poolclass=NullPool))


def _core(address: str) -> Any:
    return create_engine(_sqlalchemy_url(address, "psycopg"), poolclass=NullPool).connect()


def django_connection(address: str) -> Any:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="of a test")
    apps.populate(settings.INSTALLED_APPS)  # as `django.setup()` does, which also sets up logging
    where: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": _path(address)}
    if not address.startswith("sqlite:"):
        host = address.partition("host=")[2]
        name = address.partition("@/")[2].partition("?")[0]
        where = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "HOST": host, "USER": "app"}
    handler: Any = ConnectionHandler({"default": where})
    return handler["default"]


def _django(address: str) -> Transaction:
    def transact(orders: Orders, commits: bool) -> list[JobRef]:
        connection = django_connection(address)
        try:
            connection.set_autocommit(False)
            made: list[JobRef] = [outbox.enqueue(connection, task, **values) for task, values in orders]
            (connection.commit if commits else connection.rollback)()
        finally:
            connection.close()
        return made

    async def call(orders: Orders, commits: bool) -> list[JobRef]:
        return await asyncio.to_thread(transact, orders, commits)

    return call


@asynccontextmanager
async def _asyncpg(address: str) -> AsyncGenerator[Any]:
    connection: Any = await asyncpg.connect(address)  # pyright: ignore[reportUnknownVariableType]
    try:
        yield connection
    finally:
        await connection.close()


def _by_asyncpg(address: str) -> Transaction:
    async def call(orders: Orders, commits: bool) -> list[JobRef]:
        async with _asyncpg(address) as connection:
            transaction = connection.transaction()
            await transaction.start()
            made: list[JobRef] = [await outbox.enqueue(connection, task, **values) for task, values in orders]
            await (transaction.commit() if commits else transaction.rollback())
        return made

    return call


def _awaited(open_: Callable[[str], AbstractAsyncContextManager[Any]]) -> Callable[[str], Transaction]:
    """Of a driver whose connection is awaited and begins a transaction by itself."""

    def of(address: str) -> Transaction:
        async def call(orders: Orders, commits: bool) -> list[JobRef]:
            async with open_(address) as connection:
                made: list[JobRef] = [
                    await outbox.enqueue(connection, task, **values) for task, values in orders
                ]
                await (connection.commit() if commits else connection.rollback())
            return made

        return call

    return of


@asynccontextmanager
async def _async_psycopg(address: str) -> AsyncGenerator[Any]:
    async with await psycopg.AsyncConnection.connect(address) as connection:
        yield connection


@asynccontextmanager
async def _async_session(address: str) -> AsyncGenerator[Any]:
    engine = create_async_engine(_sqlalchemy_url(address, "asyncpg"))
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


SQLITE_WAYS: Final[dict[str, Callable[[str], Transaction]]] = {
    "sqlite3": _blocking(lambda address: sqlite3.connect(_path(address))),
    "sqlalchemy-session": _blocking(_session),
    "sqlalchemy-core": _blocking(_core),
    "django": _django,
}
POSTGRESQL_WAYS: Final[dict[str, Callable[[str], Transaction]]] = {
    "psycopg": _blocking(_psycopg),
    "psycopg-async": _awaited(_async_psycopg),
    "asyncpg": _by_asyncpg,
    "sqlalchemy-session": _blocking(_session),
    "sqlalchemy-async": _awaited(_async_session),
    "django": _django,
}
