"""Jobs of arq. It has no bulk call; its worker looks for jobs every half second, unless it is busy."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import Any, Final

from peers.programs.load import HANGS_S, Job, add_at_once, run, server, starts

arq: Final[Any] = importlib.import_module("arq")
connections: Final[Any] = importlib.import_module("arq.connections")


async def noop(_: object, job: Job) -> None:
    """Do nothing."""
    starts.note(job)


async def hang(_: object, job: Job) -> None:
    """Take long."""
    starts.note(job)
    await asyncio.sleep(HANGS_S)


class Program:
    """The client."""

    def __init__(self) -> None:
        self._pool: Any

    async def open(self) -> None:
        self._pool = await arq.create_pool(connections.RedisSettings.from_dsn(server()))

    async def add(self, job: Job) -> None:
        await self._pool.enqueue_job("noop", job)

    async def add_many(self, jobs: list[Job]) -> None:
        await add_at_once(self, jobs)

    async def hang(self, job: Job) -> None:
        await self._pool.enqueue_job("hang", job)

    async def close(self) -> None:
        await self._pool.aclose()


async def _work(concurrency: int) -> None:
    settings = connections.RedisSettings.from_dsn(server())
    worker = arq.Worker([noop, hang], redis_settings=settings, max_jobs=concurrency, log_results=False)
    await worker.async_run()


def work(concurrency: int) -> None:
    """Be the worker."""
    logging.getLogger("arq").setLevel(logging.WARNING)
    run(_work(concurrency))
