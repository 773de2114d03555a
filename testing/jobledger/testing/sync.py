"""`BlockingMemoryLedger`: the ledger in memory for tests that block, as `jobledger.ledger.sync` is for programs."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any, cast

from jobledger.ledger import sync
from jobledger.ledger.loop_thread import LoopThread
from jobledger.ledger.model.job import Job
from jobledger.ledger.schedules.in_code import Schedule
from jobledger.ledger.tasks import Task
from jobledger.testing.clock import MovableClock
from jobledger.testing.memory import JOBS_MAX, MemoryLedger


class BlockingMemoryLedger(sync.Ledger):
    """A `MemoryLedger` in a thread of its own, with the verbs of `jobledger.ledger.sync.Ledger`. Close it, or use `with`."""

    def __init__(self, *tasks: Task[..., Any] | Schedule, clock: MovableClock | None = None) -> None:
        """See `MemoryLedger`."""
        self.clock = clock or MovableClock()
        caller = LoopThread(functools.partial(MemoryLedger, *tasks, clock=self.clock))
        caller.open()
        super().__init__(caller)

    def add(self, *found: Task[..., Any] | Schedule) -> None:
        """Give it tasks and schedules; see `MemoryLedger.add`."""

        async def add(ledger: object) -> None:
            cast("MemoryLedger", ledger).add(*found)

        self._caller.call(add)

    def run_pending(self, *, jobs_max: int = JOBS_MAX) -> list[Job]:
        """Run every job that is queued or due; see `MemoryLedger.run_pending`."""
        return self._caller.call(lambda ledger: cast("MemoryLedger", ledger).run_pending(jobs_max=jobs_max))

    def advance(self, by: timedelta | float) -> list[Job]:
        """Move the time forward, and run what is due on the way; see `MemoryLedger.advance`."""
        return self._caller.call(lambda ledger: cast("MemoryLedger", ledger).advance(by))
