"""The announcement of a process's tasks in the bucket TASKS; it also logs limits that the ledger defines otherwise."""

from __future__ import annotations

import asyncio
import logging

from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.client import Ledger
from jobledger.ledger.limits.in_code import difference
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    JetStreamDisabledError,
    LedgerError,
    UnreachableError,
)
from jobledger.ledger.model.limits.definition import LIMIT
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.named_chain import look
from jobledger.ledger.model.subjects import HOOKS_TASK, is_own_queue
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.tasks import TaskRegistry

logger = logging.getLogger("jobledger.workers")


async def announce_tasks(
    ledger: Ledger, tasks: TaskRegistry, worker: str, *, done: asyncio.Event | None = None
) -> None:
    """Write an entry for each task, then wait until cancelled. A refusal of the server is logged, and stops no work.

    `worker`: the identity of the worker or gateway that has the tasks; `done` is set once they are written or refused.

    Raises: UnreachableError, JetStreamDisabledError, after which it is worth another try.
    """
    versions: dict[str, list[str]] = {}
    for task in tasks:
        # Nobody enqueues the ledger's own tasks by name.
        if not is_own_queue(task.defaults.queue) and not task.name.startswith(HOOKS_TASK):
            versions.setdefault(task.name, []).append(task.version)
    try:
        entries = [
            # Of several versions of a workflow only the one that an enqueue by the task's name takes.
            entry_of(tasks.get(name), worker=worker, at=ledger.clock.now(), versions=tuple(known))
            for name, known in versions.items()
        ]
        await write_tasks(ledger.inbox, ledger.names, entries, replicas=ledger.config.replicas)
    except (UnreachableError, JetStreamDisabledError):
        raise
    except LedgerError as error:
        logger.warning("the tasks of this process are not announced, its work goes on: %s", error)
    if done is not None:
        done.set()
    await _tell_limits(ledger, tasks)
    await asyncio.Event().wait()


async def _tell_limits(ledger: Ledger, tasks: TaskRegistry) -> None:
    """Log each limit whose definition differs between the code here and the ledger. Raises: UnreachableError."""
    for limit, terms in tasks.limits.items():
        try:
            definition = (await look(ledger.log, LIMIT, split(limit)[0])).state
        except CorruptLedgerError as error:
            logger.warning("limit %s cannot be read: %s", limit, error)
            continue
        differs = difference(definition, limit, terms)
        if differs:
            logger.warning("%s: `jobledger limits show %s`", differs, limit)
