"""Jobs of Dramatiq on Redis: a worker of threads in one process, and no bulk call."""

from __future__ import annotations

import importlib
import time
from typing import Any, Final

from peers.programs.load import HANGS_S, Job, server, starts

dramatiq: Final[Any] = importlib.import_module("dramatiq")
redis: Final[Any] = importlib.import_module("dramatiq.brokers.redis")

_broker: Final[Any] = redis.RedisBroker(url=server())
dramatiq.set_broker(_broker)


def _noop(job: Job) -> None:
    starts.note(job)


def _hang(job: Job) -> None:
    starts.note(job)
    time.sleep(HANGS_S)


noop: Final[Any] = dramatiq.actor(_noop, actor_name="noop")
hang: Final[Any] = dramatiq.actor(_hang, actor_name="hang")


class Program:
    """The client."""

    async def open(self) -> None: ...

    async def add(self, job: Job) -> None:
        noop.send(job)

    async def add_many(self, jobs: list[Job]) -> None:
        for job in jobs:
            noop.send(job)

    async def hang(self, job: Job) -> None:
        hang.send(job)

    async def close(self) -> None:
        _broker.close()


def work(concurrency: int) -> None:
    """Be the worker."""
    dramatiq.Worker(_broker, worker_threads=concurrency).start()
    while True:
        time.sleep(HANGS_S)
