"""The application of the storm: places orders, each with a job in the outbox, and rolls some back; ends when it is killed."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg

from jobledger.ledger import JobRef, outbox, task
from jobledger.ledger.outbox.addresses import open_database

_TABLE = "CREATE TABLE placed (job text NOT NULL)"
_PLACE = "INSERT INTO placed (job) VALUES ({})"


@task(queue="mail")
async def ship(number: int) -> None: ...


@contextlib.contextmanager
def connected(address: str) -> Generator[tuple[Any, str]]:
    """Give a connection, and what stands for an argument in its statements."""
    if address.startswith("sqlite:"):
        connection: Any = sqlite3.connect(address.removeprefix("sqlite:"), timeout=30)
    else:
        connection = psycopg.connect(address)
    try:
        yield connection, "?" if isinstance(connection, sqlite3.Connection) else "%s"
    finally:
        connection.close()


async def make_tables(address: str) -> None:
    async with open_database(address) as database:
        await database.create()
    with connected(address) as (connection, _):
        connection.execute(_TABLE)
        connection.commit()


def committed(address: str) -> list[str]:
    """The jobs of the orders that were committed."""
    with connected(address) as (connection, _):
        return [job for (job,) in connection.execute("SELECT job FROM placed").fetchall()]


def _place(connection: Any, mark: str, told: Path, number: int) -> None:
    ref: JobRef = outbox.enqueue(connection, ship, number)  # pyright: ignore[reportUnknownVariableType]
    connection.execute(_PLACE.format(mark), (ref.job_id,))
    if random.random() < 0.8:
        connection.commit()
        return
    with told.open("a", encoding="utf-8") as file:
        file.write(f"{ref.job_id}\n")
    connection.rollback()


def main() -> None:
    address, told = os.environ["JOBLEDGER_OUTBOX_DATABASE"], Path(sys.argv[1])
    number = 0
    while True:
        try:
            with connected(address) as (connection, mark):
                while True:
                    _place(connection, mark, told, number)
                    number += 1
                    time.sleep(random.random() * 0.01)
        except (
            psycopg.Error,
            sqlite3.Error,
        ):  # the database was killed: what was under way may be committed or not
            time.sleep(0.05)


if __name__ == "__main__":
    main()
