"""A worker says once what its tasks are, in the bucket TASKS."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import JetStreamDisabledError, LedgerError, UnreachableError
from jobledger.ledger.nats.task_book import TaskEntry, write_tasks
from jobledger.ledger.tasks import Task, TaskRegistry

logger = logging.getLogger("jobledger.workers")


async def announce_tasks(ledger: Ledger, tasks: TaskRegistry, worker: str) -> None:
    """Write an entry for each task, then wait until cancelled. What the server refuses is logged, and no work ends by it.

    Raises: UnreachableError, JetStreamDisabledError, after which it is worth another try.
    """
    versions: dict[str, list[str]] = {}
    for task in tasks:
        versions.setdefault(task.name, []).append(task.version)
    entries = [_entry(ledger, task, worker, tuple(versions[task.name])) for task in tasks]
    try:
        await write_tasks(ledger.inbox, ledger.names, entries, replicas=ledger.config.replicas)
    except (UnreachableError, JetStreamDisabledError):
        raise
    except LedgerError as error:
        logger.warning("the tasks of this worker are not announced, its work goes on: %s", error)
    await asyncio.Event().wait()


def _entry(ledger: Ledger, task: Task[..., Any], worker: str, versions: tuple[str, ...]) -> TaskEntry:
    return TaskEntry(
        name=task.name,
        queue=task.defaults.queue,
        text=inspect.getdoc(task.function) or "",
        input=task.signature.json_schema(),
        worker=worker,
        announced_at=ledger.clock.now(),
        versions=versions if task.makes_runs else None,
    )
