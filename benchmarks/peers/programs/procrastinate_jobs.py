"""Jobs of Procrastinate on PostgreSQL."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import Any, Final

from peers.programs.load import HANGS_S, Job, run, server, starts

procrastinate: Final[Any] = importlib.import_module("procrastinate")


async def _noop(job: Job) -> None:
    starts.note(job)


async def _hang(job: Job) -> None:
    starts.note(job)
    await asyncio.sleep(HANGS_S)


app: Final[Any] = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=server()))
noop: Final[Any] = app.task(name="noop")(_noop)
hang: Final[Any] = app.task(name="hang")(_hang)


class Program:
    """The client; it makes the tables."""

    async def open(self) -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()

    async def add(self, job: Job) -> None:
        await noop.defer_async(job=job)

    async def add_many(self, jobs: list[Job]) -> None:
        await noop.batch_defer_async(*({"job": job} for job in jobs))

    async def hang(self, job: Job) -> None:
        await hang.defer_async(job=job)

    async def close(self) -> None:
        await app.close_async()


async def _work(concurrency: int) -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency)


def work(concurrency: int) -> None:
    """Be the worker."""
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    run(_work(concurrency))
