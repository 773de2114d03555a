"""Running what a ledger in memory has queued: the attempts of a worker, fed from the log instead of a consumer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Dispatch
from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.job import WAITING_STATES, Job, JobState, evolve
from jobledger.ledger.model.log import events_among
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.subjects import JobRef, aggregate_of
from jobledger.ledger.nats.pauses import queue_state
from jobledger.ledger.schedules.acting import Known, known_from
from jobledger.ledger.tasks import Task, TaskRegistry
from jobledger.ledger.timers import wait_timer
from jobledger.testing.slots import Slots
from jobledger.workers.bench import Bench


class Pending:
    """What waits in a ledger in memory, followed event by event."""

    def __init__(self, ledger: Ledger, tasks: Mapping[str, Task[Any, Any]]) -> None:
        """`tasks` by name; others may be added while it runs."""
        self._ledger = ledger
        self._tasks = tasks
        self._jobs: dict[JobRef, Job] = {}
        self._dispatches: dict[JobRef, StoredEvent] = {}
        self._slots = Slots(ledger)
        self._schedules: dict[str, Known] = {}
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

    async def look(self) -> datetime | None:
        """Return when something happens by itself; see `wake_at`. Nothing is run."""
        await self._settle()
        return self.wake_at

    async def _next(self) -> StoredEvent | None:
        """Return the dispatch of the job that a worker would take first; None where nothing is queued or due."""
        await self._settle()
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

    async def _settle(self) -> None:
        """Queue whatever is due or is given its slots, and let schedules tick."""
        await self._read()
        for ref, job in list(self._jobs.items()):
            if job.state in WAITING_STATES and job.due_at and job.due_at <= self._ledger.clock.now():
                timer = wait_timer(job)
                await self._ledger.execute(ref, Dispatch(cause=timer.cause, asked_by=timer.asked_by))
        await self._tick()
        await self._read()
        while await self._slots.give(self._jobs):
            await self._read()

    async def _read(self) -> None:
        """Take in what was stored since the last look."""
        log = self._ledger.log
        if (await log.head()).last_sequence <= self._seen:
            return
        async for batch in log.read_messages(from_sequence=self._seen + 1):
            for message in events_among(batch):
                if isinstance(message, StoredEvent):
                    self._take_in(message)
                elif aggregate_of(message.subject) == SCHEDULE.name:
                    self._schedules[SCHEDULE.key_in(message.subject)[0]] = known_from(message)
                self._slots.take_in(message)
        self._seen = (await log.head()).last_sequence

    def _take_in(self, stored: StoredEvent) -> None:
        event = stored.event
        ref = JobRef(queue=event.queue, job_id=event.job)
        job = self._jobs[ref] = evolve(self._jobs.get(ref), event, stored.stream_sequence)
        if job.dispatch_sequence == stored.stream_sequence:
            self._dispatches[ref] = stored

    async def _tick(self) -> None:
        """Make the jobs of the schedules that are due at the time at which the clock stands."""
        now, schedules = self._ledger.clock.now(), self._ledger.schedules
        for name, known in list(self._schedules.items()):
            if known.schedule is not None and known.schedule.next_at and known.schedule.next_at <= now:
                self._schedules[name] = await schedules.tick(name, known)

    @property
    def wake_at(self) -> datetime | None:
        """When the next schedule ticks, or a rate allows the next start of a job that waits for it; None: never."""
        ticks = (known.schedule.next_at for known in self._schedules.values() if known.schedule is not None)
        return min((each for each in (*ticks, self._slots.wake_at) if each is not None), default=None)

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
