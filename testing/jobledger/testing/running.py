"""Running what a ledger in memory has queued: the attempts of a worker, fed from the log instead of a consumer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Dispatch
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.job import WAITING_STATES, Job, JobState, evolve
from jobledger.ledger.model.log import only_jobs
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.pauses import queue_state
from jobledger.ledger.tasks import Task, TaskRegistry
from jobledger.ledger.timers import wait_timer
from jobledger.workers.bench import Bench


class Pending:
    """What waits in a ledger in memory, followed event by event."""

    def __init__(self, ledger: Ledger, tasks: Mapping[str, Task[Any, Any]]) -> None:
        """`tasks` by name; others may be added while it runs."""
        self._ledger = ledger
        self._tasks = tasks
        self._jobs: dict[JobRef, Job] = {}
        self._dispatches: dict[JobRef, StoredEvent] = {}
        self._seen = 0

    async def run(self, jobs_max: int) -> list[Job]:
        """Run what is queued or due until nothing is; see `MemoryLedger.run_pending`."""
        ran: list[Job] = []
        registry, known = TaskRegistry(), set[str]()
        async with Bench(self._ledger, registry) as bench:
            while (stored := await self._next()) is not None:
                if len(ran) == jobs_max:
                    raise ConfigurationError(
                        f"{jobs_max:,} jobs were run and more are queued: do tasks enqueue each other for ever?"
                    )
                for name in self._tasks.keys() - known:  # also those that jobs enqueued meanwhile
                    known.add(name)
                    registry.add(_in_this_process(self._tasks[name]))
                registry.get(stored.event.task)
                await bench.run(stored)
                ran.append(await self._after(stored))
        return ran

    async def _next(self) -> StoredEvent | None:
        """Return the dispatch of the job that a worker would take first; None where nothing is queued or due."""
        await self._read()
        for ref, job in list(self._jobs.items()):
            if job.state in WAITING_STATES and job.due_at and job.due_at <= self._ledger.clock.now():
                timer = wait_timer(job)
                await self._ledger.execute(ref, Dispatch(cause=timer.cause, asked_by=timer.asked_by))
        await self._read()
        for ref, job in list(self._jobs.items()):
            if job.state is JobState.HELD:  # one job runs at a time here: no limit is in its way
                admit = Dispatch(cause="admitted", asked_by=job.wait_sequence, grant=job.wait_sequence)
                await self._ledger.execute(ref, admit)
        await self._read()
        queued = [job for job in self._jobs.values() if job.state is JobState.QUEUED]
        now, log = self._ledger.clock.now(), self._ledger.log
        paused = {
            queue for queue in {job.queue for job in queued} if (await queue_state(log, queue)).is_paused(now)
        }
        queued = [job for job in queued if job.queue not in paused]
        if not queued:
            return None
        first = min(queued, key=lambda job: (PRIORITIES.index(job.order.priority), job.dispatch_sequence))
        return self._dispatches[JobRef(queue=first.queue, job_id=first.id)]

    async def _read(self) -> None:
        """Take in what was stored since the last look."""
        log = self._ledger.log
        if (await log.head()).last_sequence <= self._seen:
            return
        async for batch in only_jobs(log.read_messages(from_sequence=self._seen + 1)):
            for stored in batch:
                event = stored.event
                ref = JobRef(queue=event.queue, job_id=event.job)
                job = self._jobs[ref] = evolve(self._jobs.get(ref), event, stored.stream_sequence)
                if job.dispatch_sequence == stored.stream_sequence:
                    self._dispatches[ref] = stored
        self._seen = (await log.head()).last_sequence

    async def _after(self, stored: StoredEvent) -> Job:
        await self._read()
        return self._jobs[JobRef(queue=stored.event.queue, job_id=stored.event.job)]


def _in_this_process(task: Task[Any, Any]) -> Task[Any, Any]:
    """Return the task as it runs here: in a thread where a worker would use its pool."""
    if task.rules.run_in != "process":
        return task
    here = copy.copy(task)
    here.rules = msgspec.structs.replace(task.rules, run_in="auto")
    return here
