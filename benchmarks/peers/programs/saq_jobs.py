"""Jobs of SAQ. It has no bulk call that may be compared: its `map` waits for the results."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, Final

from peers.programs.load import HANGS_S, Job, add_at_once, run, server, starts

saq: Final[Any] = importlib.import_module("saq")


async def noop(_: object, *, job: Job) -> None:
    """Do nothing."""
    starts.note(job)


async def hang(_: object, *, job: Job) -> None:
    """Take long."""
    starts.note(job)
    await asyncio.sleep(HANGS_S)


class Program:
    """The client."""

    def __init__(self) -> None:
        self._queue: Any = saq.Queue.from_url(server())

    async def open(self) -> None:
        await self._queue.connect()

    async def add(self, job: Job) -> None:
        await self._queue.enqueue("noop", job=job)

    async def add_many(self, jobs: list[Job]) -> None:
        await add_at_once(self, jobs)

    async def hang(self, job: Job) -> None:
        await self._queue.enqueue("hang", job=job)

    async def close(self) -> None:
        await self._queue.disconnect()


async def _work(concurrency: int) -> None:
    queue = saq.Queue.from_url(server())
    await queue.connect()
    await saq.Worker(queue, [noop, hang], concurrency=concurrency).start()


def work(concurrency: int) -> None:
    """Be the worker."""
    run(_work(concurrency))
