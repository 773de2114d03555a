"""Jobs of Celery on Redis: processes that it forks, results ignored, as its guide on speed says."""

from __future__ import annotations

import importlib
import time
from typing import Any, Final

from peers.programs.load import HANGS_S, Job, server, starts

celery: Final[Any] = importlib.import_module("celery")

app: Final[Any] = celery.Celery("bench", broker=server())
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_prefetch_multiplier = 64  # 4 unless set, for tasks that take long


def _noop(job: Job) -> None:
    starts.note(job)


def _hang(job: Job) -> None:
    starts.note(job)
    time.sleep(HANGS_S)


noop: Final[Any] = app.task(name="noop")(_noop)
hang: Final[Any] = app.task(name="hang")(_hang)


class Program:
    """The client. A `group` sends one message a job."""

    async def open(self) -> None: ...

    async def add(self, job: Job) -> None:
        noop.delay(job)

    async def add_many(self, jobs: list[Job]) -> None:
        celery.group([noop.s(job) for job in jobs]).apply_async()

    async def hang(self, job: Job) -> None:
        hang.delay(job)

    async def close(self) -> None:
        app.close()


def work(concurrency: int) -> None:
    """Be the worker."""
    app.worker_main(["worker", "--concurrency", str(concurrency), "--loglevel", "ERROR"])
