"""Jobs of jobledger: `enqueue`, `enqueue_many` and one `Worker`, as `jobledger worker` runs it."""

from __future__ import annotations

import asyncio
import contextlib

from peers.programs.load import HANGS_S, Job, run, server, starts

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.process import tune_collector


@task(queue="bench")
async def noop(number: int, sent_ns: int, padding: str) -> None:  # noqa: ARG001 - the input is part of the cost
    """Do nothing."""
    starts.note({"number": number, "sent_ns": sent_ns})


@task(queue="bench")
async def hang(number: int, sent_ns: int, padding: str) -> None:
    """Take long."""
    await noop(number, sent_ns, padding)
    await asyncio.sleep(HANGS_S)


class Program:
    """The client."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._ledger: Ledger

    async def open(self) -> None:
        self._ledger = await self._stack.enter_async_context(connect(server()))

    async def add(self, job: Job) -> None:
        await self._ledger.enqueue(noop, **job)

    async def add_many(self, jobs: list[Job]) -> None:
        await self._ledger.enqueue_many(noop, jobs)

    async def hang(self, job: Job) -> None:
        await self._ledger.enqueue(hang, **job)

    async def close(self) -> None:
        await self._stack.aclose()


async def _work(concurrency: int) -> None:
    tune_collector()
    async with connect(server()) as ledger:
        worker = Worker(ledger, TaskRegistry([noop, hang]), WorkerConfig(concurrency=concurrency))
        asyncio.get_running_loop().add_signal_handler(15, worker.stop)
        await worker.run()


def work(concurrency: int) -> None:
    """Be the worker."""
    run(_work(concurrency))
