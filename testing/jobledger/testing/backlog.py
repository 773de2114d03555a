"""Running what a ledger in memory has queued: the attempts of a worker, fed from the log instead of a consumer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.graphs.batch_run import run_batch
from jobledger.ledger.graphs.graph_run import run_graph, run_stored_graph
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.codec import Message, StoredEvent
from jobledger.ledger.model.commands import CancelJob, Dispatch
from jobledger.ledger.model.errors import ConfigurationError, NotFoundError, RefusedError, WrongSequenceError
from jobledger.ledger.model.events import PRIORITIES
from jobledger.ledger.model.job import PENDING_STATES, Job, JobState, evolve
from jobledger.ledger.model.limits.definition import LIMIT, Terms
from jobledger.ledger.model.limits.flow import FLOW, MAIN, Flow, FlowEvent, Granted, GrantedJob, Snapshotted
from jobledger.ledger.model.limits.grants import POLICY, Decision, Granter
from jobledger.ledger.model.limits.names import split
from jobledger.ledger.model.log import events_among
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.subjects import JobRef, aggregate_of
from jobledger.ledger.nats.pauses import queue_state
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.schedules.changes import KnownSchedule, known_from
from jobledger.ledger.tasks import Task, TaskRegistry
from jobledger.ledger.timers import wait_timer
from jobledger.testing.mortal_log import MortalLog
from jobledger.testing.stand_ins import StandIns
from jobledger.workers.bench import Bench, delivery_of
from jobledger.workers.reactors.children.ends import news_in
from jobledger.workers.reactors.children.reactor import ChildrenReactor
from jobledger.workers.reactors.flow.cancels import cancel_command
from jobledger.workers.reactors.timers import DEADLINE

# Limits of a ledger in memory: who is given slots next, by the rules of the reactor, at the time that the test says.

#: The limit of a queue whose jobs take turns. One of them is let in at a time, since one job runs at a time here.
_FAIR: Final = "queue"
#: Slots of a limit that nobody defined: more than there are jobs.
_OPEN: Final = 1_000_000_000


class Slots:
    """Gives slots as the reactor does, one act after the other; what it does is read back from the log."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._granter = Granter()
        self._chain: View[Flow] = View()
        self.wake_at: datetime | None = None  #: when a rate allows the next start of a job that waits for it

    def take_in(self, message: Message) -> None:
        """Fold the next message of the log, whatever it is about."""
        sequence, kind = message.stream_sequence, aggregate_of(message.subject)
        if isinstance(message, StoredEvent):
            self._granter.job(message.event, sequence)
        elif kind == LIMIT.name:
            self._granter.limit(LIMIT.decode(message), sequence)
        elif kind == FLOW.name:
            event = FLOW.decode(message)
            self._chain = View(FLOW.evolve(self._chain.state, event, sequence), sequence, message.data)
            if isinstance(event, Granted):
                self._granter.granted(event, sequence)
        self._granter.through = sequence

    async def give(self, jobs: Mapping[JobRef, Job]) -> bool:
        """Do the next step for held jobs; return whether there was one, so that the log is to be read again.

        `jobs`: all, as they are after what was taken in.
        """
        held = {ref: job for ref, job in jobs.items() if job.state is JobState.HELD}
        if not held:
            self.wake_at = None
            return False
        return await self._admit(held) or await self._decide(held)

    async def _admit(self, held: Mapping[JobRef, Job]) -> bool:
        """Queue those that have their slots."""
        found = False
        for ref, job in held.items():
            holding = self._granter.holders.jobs.get((ref.queue, ref.job_id))
            if holding is not None and holding.held == job.wait_sequence:
                command = Dispatch(cause="admitted", asked_by=holding.held, grant=holding.grant)
                await self._ledger.execute(ref, command)
                found = True
        return found

    async def _decide(self, held: Mapping[JobRef, Job]) -> bool:
        now = self._ledger.clock.now()
        if self._chain.state is None:
            snapshot = Snapshotted(shard=MAIN, at=now, by=self._by, through=self._granter.through, low=1)
            await self._append(snapshot)
            return True
        self._see_terms()
        await self._see_queues({ref.queue for ref in held}, now)
        decision = self._granter.decide(now)
        self.wake_at = decision.wake_at
        for cancel in decision.cancels:
            with contextlib.suppress(NotFoundError, RefusedError):
                ref = JobRef(queue=cancel.queue, job_id=cancel.job)
                await self._ledger.execute(ref, cancel_command(cancel))
        if decision.grants:
            self._granter.take_back()  # the grant counts when it is read from the log
            await self._append(self._granted(decision))
        return bool(decision.grants or decision.cancels)

    def _see_terms(self) -> None:
        """Open the limits that nobody defined, and admit jobs of a fair queue one by one."""
        definitions = self._granter.definitions
        for key in [key for key in self._granter.picker.keys if key]:
            name = split(key)[0]
            definition = definitions.limits.get(name)
            is_set = definition is not None and definition.is_set
            self._granter.offer(key, None if is_set else Terms(slots=1 if name == _FAIR else _OPEN))

    async def _see_queues(self, queues: set[str], now: datetime) -> None:
        for queue in sorted(queues):
            is_paused = (await queue_state(self._ledger.log, queue)).is_paused(now)
            (self._granter.close if is_paused else self._granter.open)(queue)

    def _granted(self, decision: Decision) -> Granted:
        return Granted(
            shard=MAIN,
            by=self._by,
            at=decision.at,
            through=decision.through,
            limits_sequence=decision.limits_sequence,
            jobs=tuple(
                GrantedJob(queue=each.queue, job=each.job, held=each.held) for each in decision.grants
            ),
            slots=decision.slots,
            policy=POLICY,
        )

    @property
    def _by(self) -> str:
        return self._ledger.stamp().by

    async def _append(self, event: FlowEvent) -> None:
        (entry,) = FLOW.link(self._ledger.names, [event], self._chain)
        await self._ledger.log.append((entry,))


# The reactor of runs' children on a ledger in memory: the same code, handed what was stored instead of deliveries.


class _ChildEnds:
    """Counts the ends of children and lets them follow their runs."""

    def __init__(self, ledger: Ledger) -> None:
        self._reactor = ChildrenReactor(ledger)
        self._at_hand: list[Delivery] = []

    def take_in(self, stored: StoredEvent) -> None:
        """Keep what concerns runs and their children."""
        if news_in(stored.event) is not None:
            kept = self._reactor.keep(delivery_of(stored))
            assert kept is not None, "it tells news"
            self._at_hand.append(kept)

    async def act(self) -> bool:
        """React to the events that are kept; return whether one was done with, so that the log is to be read again."""
        some, self._at_hand = self._at_hand, []
        outcomes = await asyncio.gather(*map(self._reactor.react, some), return_exceptions=True)
        self._at_hand = _left(some, outcomes)
        return len(self._at_hand) < len(some)


def _left(some: Sequence[Delivery], outcomes: Sequence[object]) -> list[Delivery]:
    """Return those to try again, such as an end in a batch whose run has not begun. Raises: any other error."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, WrongSequenceError):
            raise outcome
    return [each for each, outcome in zip(some, outcomes, strict=True) if outcome is not None]


_BUILT_IN: Final = {each.name: each for each in (run_graph, run_stored_graph, run_batch)}


class Backlog:
    """What waits in a ledger in memory, followed event by event."""

    def __init__(
        self,
        ledger: Ledger,
        log: MortalLog,
        tasks: Mapping[str, Task[Any, Any]],
        stand_ins: StandIns | None = None,
    ) -> None:
        """`tasks` by name; others may be added while it runs."""
        self._ledger = ledger
        self._tasks = tasks
        self._log = log
        self._jobs: dict[JobRef, Job] = {}
        self._dispatches: dict[JobRef, StoredEvent] = {}
        self._slots = Slots(ledger)
        self._following = _ChildEnds(ledger)
        self._stand_ins = stand_ins or StandIns()
        self._schedules: dict[str, KnownSchedule] = {}
        self._seen = 0

    async def run(self, jobs_max: int, *, before: int = 0) -> list[Job]:
        """Run what is queued or due until nothing is; see `MemoryLedger.run_pending`. `before`: how many were run."""
        ran: list[Job] = []
        registry, known = TaskRegistry(), set[str]()
        for built_in in _BUILT_IN.values():
            registry.add_built_in(built_in)
        cut_off: StoredEvent | None = None  # by a crash: the next bench gets it, as the next worker would
        while True:
            async with Bench(self._ledger, registry, in_place_of=self._stand_ins.of_step) as bench:
                while (stored := cut_off or await self._next()) is not None:
                    if before + len(ran) >= jobs_max:
                        raise ConfigurationError(
                            f"{jobs_max:,} jobs were run and more are queued: do tasks enqueue each other for ever?"
                        )
                    for name in (
                        self._tasks.keys() - known - _BUILT_IN.keys()
                    ):  # also those that jobs enqueued meanwhile
                        known.add(name)
                        registry.add(self._stand_ins.of_task(self._tasks[name]))
                    registry.get(stored.event.task)
                    cut_off = None if await self._survives(bench, stored) else stored
                    if cut_off is not None:
                        break
                    ran.append(await self._after(stored))
            if cut_off is None:
                return ran
            self._log.revive()

    async def _survives(self, bench: Bench, stored: StoredEvent) -> bool:
        """Make an attempt; return False where the log simulated a crash of the process meanwhile."""
        log = self._log
        attempt = asyncio.create_task(bench.run(stored))
        log.kill = attempt.cancel
        try:
            await attempt
        except asyncio.CancelledError:
            if not log.is_down:
                raise
        return not log.is_down

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
        """Queue the jobs that are due or get their slots, cancel those past their deadlines, and let schedules tick."""
        await self._read()
        for ref, job in list(self._jobs.items()):
            if (due := _due_at(job)) is not None and due <= self._ledger.clock.now():
                timer = wait_timer(job)
                await self._ledger.execute(ref, Dispatch(cause=timer.cause, asked_by=timer.asked_by))
            elif (deadline := _deadline(job)) is not None and deadline <= self._ledger.clock.now():
                await self._ledger.execute(ref, CancelJob(reason=DEADLINE))
        await self._tick()
        await self._read()
        while await self._following.act() or await self._slots.give(self._jobs):
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
        self._following.take_in(stored)
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
        """The next moment when a job or its deadline is due, a schedule ticks, or a rate admits a job; None: never."""
        ticks = (known.schedule.next_at for known in self._schedules.values() if known.schedule is not None)
        dues = (each(job) for job in self._jobs.values() for each in (_due_at, _deadline))
        return min((each for each in (*ticks, *dues, self._slots.wake_at) if each is not None), default=None)

    @property
    def jobs(self) -> Mapping[JobRef, Job]:
        """Every job as it was at the last look."""
        return self._jobs

    async def _after(self, stored: StoredEvent) -> Job:
        await self._read()
        return self._jobs[JobRef(queue=stored.event.queue, job_id=stored.event.job)]


def _due_at(job: Job) -> datetime | None:
    """Return when a job moves on by itself; None where only somebody else moves it on."""
    return job.due_at if job.state in PENDING_STATES and job.state is not JobState.PAUSED else None


def _deadline(job: Job) -> datetime | None:
    """Return when a run is cancelled, None where it has no deadline or is to end already."""
    if job.order.deadline_s is None or job.is_final or job.cancel_requested:
        return None
    return job.created_at + timedelta(seconds=job.order.deadline_s)
