"""A worker with a budget: runs ready jobs and ends, for platforms that start work by a request or a clock."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.nats.durables import find_consumer
from jobledger.ledger.tasks import TaskRegistry
from jobledger.workers.config import WorkerConfig
from jobledger.workers.idle import until_idle
from jobledger.workers.services import end
from jobledger.workers.worker import Worker

LIMIT_MAX: Final = 10_000
BUDGET_S_MAX: Final = 3_600.0
_CONCURRENCY_MAX: Final = 100


class BudgetResult(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a worker within its budget."""

    ran: int  #: attempts that it began
    left: int  #: dispatches in its queues that nobody has settled yet; those of paused queues do not count


async def run_within(
    ledger: Ledger,
    tasks: TaskRegistry,
    *,
    queue: str | None = None,
    limit: int = 100,
    budget_s: float = 30.0,
    grace_s: float = 5.0,
) -> BudgetResult:
    """Run ready jobs until none is left, `limit` were taken, or `budget_s` is over; return the numbers.

    It is a worker like any other: its lease names the queue (None: those of the tasks), and it hosts reactors and timers
    while it works, so that jobs wait neither for their limits nor for their time. Attempts that still run at the end
    of the budget get `grace_s`, then their jobs are given back. When cancelled, it gives its jobs back at once.

    Raises: InvalidInputError for a limit or a budget out of range; InvalidTokenError, UnreachableError,
        PermissionRefusedError.
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidInputError(f"limit must be from 1 to {LIMIT_MAX:,}, got {limit}")
    if not 0 < budget_s <= BUDGET_S_MAX:
        raise InvalidInputError(f"budget_s must be above 0 and at most {BUDGET_S_MAX:g}, got {budget_s!r}")
    config = WorkerConfig(
        queues=() if queue is None else (queue,),
        concurrency=min(limit, _CONCURRENCY_MAX),
        jobs_max=limit,
        grace_s=grace_s,
        schedules=False,
    )
    worker = Worker(ledger, tasks, config)
    running = asyncio.create_task(worker.run(), name="a worker with a budget")
    idle = asyncio.create_task(until_idle(ledger, worker))
    try:
        await asyncio.wait((running, idle), timeout=budget_s, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        worker.stop()  # a second call, below, stops the worker at once
        raise
    finally:
        worker.stop()
        await end(idle)
        await asyncio.wait((running,))
    running.result()  # raises the error of the worker
    return BudgetResult(ran=worker.begun, left=await _left(ledger, worker.queues))


async def _left(ledger: Ledger, queues: tuple[str, ...]) -> int:
    found = 0
    for queue in queues:
        for priority in PRIORITIES:
            name = ledger.names.consumer(queue, priority)
            info = await find_consumer(ledger.inbox, ledger.names.ledger_stream, name)
            found += info.unsettled if info is not None and not info.paused else 0
    return found
