"""Jobs of RQ, with the worker that does not fork for each job: it runs one at a time."""

from __future__ import annotations

import importlib
import logging
import time
from typing import Any, Final

from peers.programs.load import HANGS_S, Job, server, starts

redis: Final[Any] = importlib.import_module("redis")
rq: Final[Any] = importlib.import_module("rq")

_connection: Final[Any] = redis.Redis.from_url(server())
_queue: Final[Any] = rq.Queue(connection=_connection)


def noop(job: Job) -> None:
    """Do nothing."""
    starts.note(job)


def hang(job: Job) -> None:
    """Take long."""
    starts.note(job)
    time.sleep(HANGS_S)


class Program:
    """The client."""

    async def open(self) -> None: ...

    async def add(self, job: Job) -> None:
        _queue.enqueue(noop, job)

    async def add_many(self, jobs: list[Job]) -> None:
        _queue.enqueue_many([_queue.prepare_data(noop, args=(job,)) for job in jobs])

    async def hang(self, job: Job) -> None:
        _queue.enqueue(hang, job)

    async def close(self) -> None:
        _connection.close()


def work(_: int) -> None:
    """Be the worker."""
    logging.getLogger("rq").setLevel(logging.ERROR)
    rq.SimpleWorker([_queue], connection=_connection).work(logging_level="ERROR")
