"""One worker process that ticks: `ticking.py URL ENVIRONMENT CHANCE SEED`.

With the probability CHANCE it dies right after it has appended a schedule's event and before it makes the event's jobs.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence

from jobledger.ledger import TaskRegistry, connect, task
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.schedules.events import ScheduleEvent
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.schedules.changes import Schedules
from jobledger.workers import Worker, WorkerConfig

DIED_IN_BETWEEN = 9


@task(queue="ticks")
async def add() -> None:
    """Run the jobs of schedules of this queue; those of others are for other workers."""


def die_in_between(chance: float, seed: str) -> None:
    """Make this process die between the two appends, now and then."""
    choices, make = random.Random(seed), Schedules._make

    async def make_or_die(
        self: Schedules, event: ScheduleEvent, jobs: Sequence[Enqueue]
    ) -> tuple[JobRef, ...]:
        if jobs and choices.random() < chance:
            os._exit(DIED_IN_BETWEEN)
        return await make(self, event, jobs)

    Schedules._make = make_or_die  # type: ignore[method-assign]


async def main(url: str, environment: str) -> None:
    """Work until killed."""
    async with connect(url, environment=environment, create=False) as ledger:
        await Worker(ledger, TaskRegistry([add]), WorkerConfig()).run()


if __name__ == "__main__":
    die_in_between(float(sys.argv[3]), sys.argv[4])
    asyncio.run(main(sys.argv[1], sys.argv[2]))
