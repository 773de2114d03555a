"""One worker process: takes work, runs it, renews its lease, and stops in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.graphs.batch_run import run_batch
from jobledger.ledger.graphs.graph_run import run_graph, run_stored_graph
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.errors import (
    ConfigurationError,
    LedgerError,
    PermissionRefusedError,
    ServerUnreachableError,
)
from jobledger.ledger.model.forms import FORM
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.nats.fleet_clock import apart_s
from jobledger.ledger.nats.leases import task_word
from jobledger.ledger.nats.owner_keys import OwnerKeys
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.tasks import TaskRegistry
from jobledger.workers.announcement import announce_tasks
from jobledger.workers.attempt.abandoned import AbandonedSlots
from jobledger.workers.attempt.at_hand import AtHand
from jobledger.workers.attempt.attempt import Attempts
from jobledger.workers.attempt.cancels import CancelWatch
from jobledger.workers.attempt.execution import Execution
from jobledger.workers.attempt.hooks import HookRunner
from jobledger.workers.attempt.intake import Intake
from jobledger.workers.attempt.kept_chains import KeptChains
from jobledger.workers.attempt.log_keeper import LogKeeper
from jobledger.workers.attempt.pause_watch import PauseWatch
from jobledger.workers.attempt.settlement import elsewhere_s, nak
from jobledger.workers.attempt.threads import Threads
from jobledger.workers.config import WorkerConfig
from jobledger.workers.declared_routes import declare_routes
from jobledger.workers.pool.pool import ProcessPool
from jobledger.workers.reactors.flow.reactor import FlowCounts, FlowReactor
from jobledger.workers.reactors.hosts import flow_reactor, start_reactors
from jobledger.workers.reactors.schedules.declarations import ScheduleDeclarer
from jobledger.workers.reactors.schedules.hooks import with_hooks
from jobledger.workers.retry_policy import RetryPolicy
from jobledger.workers.runs.children import ChildJobs
from jobledger.workers.runs.execution import RunExecution
from jobledger.workers.runs.journal import RunSurroundings
from jobledger.workers.runs.tables import WorkerTables
from jobledger.workers.services import end, outlive
from jobledger.workers.surroundings import Surroundings
from jobledger.workers.watchdog import Watchdog

logger = logging.getLogger("jobledger.workers")

#: How long attempts that were told to stop may take to give their jobs back and settle.
_FAREWELL_S: Final = 10.0
_FORM_EVERY_S: Final = 60.0
#: The last part of the grace, kept for giving jobs back: thousands of jobs take seconds, and after the grace the worker
#: may be killed.
_GIVE_BACK_S: Final = 5.0


class WorkerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that only the worker process itself knows, at one moment; all others are in the ledger."""

    concurrency: int
    running: int  #: attempts
    free: int  #: slots for more attempts; below 0 while an abandoned one is recorded
    abandoned: int  #: slots held by code that runs on although its attempt has ended
    held: int  #: deliveries on hand, running ones included
    asked: int  #: messages asked for that have not come
    deliveries: int
    redeliveries: int  #: deliveries that JetStream had handed out before
    fenced: int  #: outcomes refused because their claim was lost
    lease_is_valid: bool
    clock_apart_s: float  #: how far this machine's clock is ahead of the server's; below 0: behind it
    lease_renewals: int
    lease_failures: int  #: renewals that were not answered in time
    lease_losses: int
    flow: FlowCounts  #: what the process did as host of the limits' reactor


class Worker:
    """Runs the jobs of some queues until it is stopped.

    The first `stop` lets running attempts go on for `grace_s`, the second ends them at once; `run` returns when every
    attempt is recorded or given back. An attempt that does not end is left behind, and others take its job over.
    """

    def __init__(
        self,
        ledger: Ledger,
        tasks: TaskRegistry,
        config: WorkerConfig | None = None,
        *,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        """`announce` gets every identity of this worker before the worker does anything under it: see `Parent`."""
        self._ledger = ledger
        self._config = config or WorkerConfig()
        self.queues = self._config.queues or tuple(tasks.queues)
        #: Whether it hosts the reactors, and runs no task of an application.
        self.hosts_only = self._config.reactors and self.queues == (BUILT_IN_QUEUE,)
        self._tasks = self._all_tasks(tasks)
        built_in = (BUILT_IN_QUEUE,) if self._config.reactors or BUILT_IN_QUEUE in self.queues else ()
        own = tuple(queue for queue in self.queues if queue not in built_in)
        #: The queues that it takes jobs of: its own, and that of the ledger's own runs.
        self.served = (*own, *built_in)
        self._pool: ProcessPool | None = None
        self._taken = 0  #: deliveries that were begun
        self._is_filling = False
        self.taking = asyncio.Event()  #: set once it has a lease and asks for work
        self._stopping = asyncio.Event()
        self._stopping_at_once = asyncio.Event()
        self._is_told_worn_out = False
        self._idle = asyncio.Event()
        self._intake = Intake(
            ledger, self._config, own, built_in=built_in, free=self._wanted, on_work=self._on_work
        )
        self._at_hand = AtHand(ledger.connection.loop, self._config.concurrency, self._give_back)
        self._lease = self._lease_keeper(announce)
        self._abandoned = AbandonedSlots(self._on_abandoned_slots)
        self._threads = Threads(ledger.connection.loop, self._config.concurrency, self._abandoned)
        self._kept = KeptChains()
        self._tables = WorkerTables(ledger, self._config, self._threads)
        policy = RetryPolicy(random.Random())  # noqa: S311 - jitter
        self._execution = Execution(Surroundings.of(ledger), self._threads, policy)
        self._runs = self._execution.runs = self._make_runs()
        self._hooks = HookRunner(tasks)
        self._pauses = PauseWatch(ledger, self.served, on_change=self._on_queue)
        self._logs = LogKeeper(ledger, self._config, lambda: self._attempts.running)
        self._attempts = self._make_attempts()
        self._cancels = CancelWatch(
            ledger, self.served, running=self._attempts.claims_held, on_cancel=self._attempts.cancel
        )
        self._watchdog = Watchdog(
            ledger.connection.loop,
            limit_s=self._config.stall_s,
            find=self._attempts.made_by,
            on_stall=self._attempts.stalled,
        )

    def _all_tasks(self, tasks: TaskRegistry) -> TaskRegistry:
        """Return the application's tasks, the tasks that call hooks of its schedules, and the ledger's own.

        Raises: ConfigurationError if there is none, unless the worker takes the queue of the ledger's own runs alone.
        """
        if not len(tasks) and not self.hosts_only:
            raise ConfigurationError("the worker has no task: load a module that holds some")
        found = with_hooks(tasks)
        for task in (run_graph, run_stored_graph, run_batch):
            found.add_built_in(task)
        return found

    def _lease_keeper(self, announce: Callable[[str], None] | None) -> LeaseKeeper:
        return LeaseKeeper(
            self._ledger.leases,
            self._ledger.clock,
            self.queues,
            running=lambda: len(self._attempts.running),
            on_lost=lambda identity: self._attempts.lose(identity),  # noqa: PLW0108 - made below
            jobs=self._job_ids,
            waits=self._ledger.locks.waits,
            tasks=tuple(
                {task_word(task.name, each): None for task in self._tasks for each in ("", task.version)}
            ),
            schedules=self._tasks.fingerprints,
            limits=self._tasks.limits,
            masters=self._ledger.keys.masters_here if isinstance(self._ledger.keys, OwnerKeys) else None,
            supervisor=self._config.supervisor,
            concurrency=self._config.concurrency,
            reactors=self._config.reactors,
            announce=announce,
            outage=self._ledger.connection.outage,
        )

    def _make_runs(self) -> RunExecution:
        return RunExecution(
            RunSurroundings(
                execution=self._execution,
                children=ChildJobs(self._ledger),
                tables=self._tables,
                kept=self._kept,
                may_linger=lambda: self._free() > 0 and not self._stopping.is_set(),
            )
        )

    def _make_attempts(self) -> Attempts:
        return Attempts(
            self._ledger,
            self._tasks,
            self._lease,
            self._intake,
            execution=self._execution,
            hooks=self._hooks,
            abandoned=self._abandoned,
            cancel_grace_s=self._config.cancel_grace_s,
            on_settled=self._on_settled,
            on_run=self._on_run,
            pauses=self._pauses,
            kept=self._kept,
            on_logged=self._logs.on_end,
        )

    flow: FlowReactor | None = (
        None  #: the reactor that gives slots of limits here; None before it takes work, and without reactors
    )

    @property
    def identity(self) -> str:
        """The name under which the worker claims at present; it changes when a lease is lost."""
        return self._lease.identity

    def name(self) -> str:
        """Return the identity of this moment, for log lines."""
        return self._lease.identity

    @property
    def running(self) -> int:
        """How many attempts run at this moment; one whose outcome is on its way has run."""
        return len(self._attempts.running) - self._attempts.recording

    @property
    def begun(self) -> int:
        """How many attempts it has begun."""
        return self._attempts.begun

    def counts(self) -> WorkerCounts:
        """Return the figures of this moment; from any thread."""
        intake, lease = self._intake, self._lease
        return WorkerCounts(
            concurrency=self._config.concurrency,
            running=self.running,
            free=self._free(),
            abandoned=len(self._abandoned),
            held=intake.held,
            asked=intake.asked,
            deliveries=intake.deliveries,
            redeliveries=intake.redeliveries,
            fenced=self._attempts.fenced,
            lease_is_valid=lease.is_valid,
            clock_apart_s=apart_s(self._ledger.clock),
            lease_renewals=lease.renewals,
            lease_failures=lease.failures,
            lease_losses=lease.losses,
            flow=FlowCounts() if self.flow is None else self.flow.counts(),
        )

    def stop(self) -> None:
        """Ask the worker to stop; the second call ends running attempts at once. Safe in a signal handler of the loop."""
        if self._stopping.is_set():
            self._stopping_at_once.set()
        self._stopping.set()

    async def run(self) -> None:
        """Work until stopped.

        Raises: StreamMismatchError, UnreachableError and PermissionRefusedError while starting;
            ServerUnreachableError when the connection is closed for good.
        """
        await self._lease.open()
        self._open_pool()
        await self._cancels.open()
        await self._pauses.open()
        if any(task.makes_runs for task in self._tasks):
            for queue in self.served:
                await self._ledger.hints.listen_resumes(queue, self._runs.on_hint)
        await self._intake.open()
        self._logs.start()
        if self._config.reactors:
            self.flow = flow_reactor(self._ledger, self.name)
        self.taking.set()
        logger.info("worker %s takes %s", self.identity, ", ".join(self.served))
        keepers = [
            self._serve("the lease", self._lease.run),
            self._serve("keep-alive", self._intake.keep_alive),
            self._serve("the floors of lanes", self._intake.note_floors),
            self._serve("the watch for cancels", self._cancels.run),
            self._serve("the watch for pauses", self._pauses.run),
            self._serve("the watchdog", self._watchdog.run),
            self._serve("the logs of attempts", self._logs.run),
            self._serve("the ledger's form", self._learn_form),
            self._serve("the announcement", lambda: announce_tasks(self._ledger, self._tasks, self.identity)),
        ]
        if self._config.schedules:
            declaring = ScheduleDeclarer(self._ledger, self._tasks.schedules.values(), self.queues)
            keepers.append(self._serve("the schedules", declaring.run))
            routes = list(self._tasks.routes.values())
            keepers.append(self._serve("the routes", lambda: declare_routes(self._ledger, routes)))
        pulling = self._serve("the intake", self._intake.run, fatal=(PermissionRefusedError,))
        reactors = (
            start_reactors(self._ledger, self._on_dead_letter, self.flow) if self._config.reactors else []
        )
        try:
            await self._until_stopped(pulling)
            await end(pulling)
            self._at_hand.give_back()
            await self._intake.close()
            await self._drain()
        finally:
            await end(pulling, *keepers, *reactors)
            await self._farewell()
            await self._logs.end()
            if self._pool is not None:
                await self._pool.close()
            self._tables.close()

    async def _learn_form(self) -> None:
        """Notice that somebody has finished the upgrade of the ledger. Raises: as `Ledger.learn_form`."""
        while True:
            await asyncio.sleep(_FORM_EVERY_S)
            if self._ledger.form < FORM:
                await self._ledger.learn_form()

    def _on_queue(self, queue: str, state: QueueState) -> None:
        """Obey a pause or the end of one."""
        if not state.is_paused(self._ledger.clock.now()):
            logger.info("queue %s is not paused any more", queue)
            self._intake.resume(queue)
            return
        logger.info("queue %s is %s", queue, state.words())
        self._intake.pause(queue)
        if state.interrupt:
            self._attempts.give_back(queue, f"queue {queue} was paused")

    def _on_dead_letter(self, job: Job) -> None:
        """Tell the hooks of a job that a reactor in this process gave up."""
        self._hooks.tell_dead_letter(job, worker=self.identity)

    def _open_pool(self) -> None:
        """Open the pool if a task, or a step of a run, may run in processes; each is started when it is needed."""
        in_processes = any(task.rules.run_in == "process" for task in self._tasks)
        if in_processes or any(task.makes_runs for task in self._tasks):
            settings = self._config.pool(self._lease.duration_s, self._ledger.config.payload_bytes_max)
            self._pool = ProcessPool(
                self._tasks.modules,
                settings,
                connection=self._ledger.config.for_another_process(),
                for_tasks=in_processes,
            )
            self._execution.open(self._pool)

    def _serve(
        self, name: str, run: Callable[[], Awaitable[None]], *, fatal: tuple[type[Exception], ...] = ()
    ) -> asyncio.Task[None]:
        return asyncio.create_task(outlive(self._ledger.connection, name, run, fatal=fatal), name=name)

    async def _until_stopped(self, pulling: asyncio.Task[None]) -> None:
        """Wait for a stop, or for the end of the connection, with which pulling ends.

        Raises: ServerUnreachableError, PermissionRefusedError.
        """
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([stopping, pulling], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if pulling in done and (error := pulling.exception()) is not None:
            raise error
        if stopping not in done:
            raise ServerUnreachableError(
                "the connection to the server is closed for good: restart the worker"
            )

    # Deliveries: started by the reader's call, or given back at once.

    def _wanted(self) -> int:
        """Return how many jobs to ask for: none without a lease, since each would have to wait for a later delivery."""
        if not self._lease.is_valid:
            return 0
        # A worker with `jobs_max` takes no more than that number from other workers, not even for a moment.
        return self._free() + (self._at_hand.room if self._config.jobs_max is None else 0)

    def _free(self) -> int:
        """Return the number of free slots; a job whose outcome is on its way has left its slot.

        At most as many such jobs as slots count: if the server answers no outcomes, no further jobs begin.
        """
        slots, attempts = self._config.concurrency, self._attempts
        free = slots - attempts.active + min(attempts.recording, slots) - len(self._abandoned)
        most = self._config.jobs_max
        return free if most is None else min(free, most - self._taken)

    def _on_work(self, delivery: Delivery) -> None:
        if not self._stopping.is_set():
            if self._free() > 0:
                self._taken += 1
                self._attempts.take(delivery)
                return
            if self._at_hand.add(delivery):
                return
        self._give_back(delivery)

    def _give_back(self, delivery: Delivery) -> None:
        """Let an idle worker have a delivery for which no slot is free here."""
        self._intake.settle(delivery, nak(elsewhere_s(delivery.delivered)))

    def _on_run(self, seconds: float) -> None:
        self._at_hand.ran(seconds)
        if self._at_hand.waiting:
            self._fill()
        self._intake.wake()

    def _on_settled(self) -> None:
        if not self._attempts.active:
            self._idle.set()
            if self._taken == self._config.jobs_max:
                self.stop()
        if self._at_hand.waiting:
            self._fill()
        self._intake.wake()

    def _fill(self) -> None:
        """Begin deliveries at hand in slots that became free."""
        if self._stopping.is_set() or self._is_filling:
            return
        self._is_filling = True  # one that is settled at once frees its slot from within
        waiting = self._at_hand.waiting
        while waiting and self._free() > 0:
            self._taken += 1
            self._attempts.take(waiting.popleft()[0])
        self._is_filling = False

    def _job_ids(self) -> list[str]:
        return [ref.job_id for ref in self._attempts.running]

    # Slots that are held by code which does not end.

    def _on_abandoned_slots(self) -> None:
        self._intake.wake()
        if not self.is_worn_out:
            self._is_told_worn_out = False
        else:  # the code in such a slot may be about to end
            self._ledger.connection.loop.call_later(self._config.cancel_grace_s, self._retire)

    @property
    def is_worn_out(self) -> bool:
        """Whether every slot is held by code that runs on although its attempt has ended."""
        return len(self._abandoned) >= self._config.concurrency

    def _retire(self) -> None:
        """Log that this worker must be replaced, and stop it if a supervisor starts another."""
        if not self.is_worn_out or self._stopping.is_set() or self._is_told_worn_out:
            return
        self._is_told_worn_out = True
        logger.error(
            "every slot (%d) is held by a task that was told to end and does not: %s",
            self._config.concurrency,
            "this worker stops, and its supervisor starts another"
            if self._config.supervisor
            else "this worker takes no more jobs until one of them returns. Restart it; under a supervisor "
            "(--processes) it would be restarted",
        )
        if self._config.supervisor:
            self.stop()

    # The end.

    async def _drain(self) -> None:
        """Let running attempts end within the grace, then make them give their jobs back."""
        if self._pool is not None:
            self._pool.refuse()  # a job that waits for a process is not claimed yet, and is given back
        self._attempts.end_claims()
        grace_s = self._config.grace_s
        if not await self._all_done(grace_s - min(grace_s / 5, _GIVE_BACK_S), self._stopping_at_once):
            self._attempts.stop("the worker was stopped", grace_s=_FAREWELL_S / 2)
            await self._all_done(_FAREWELL_S)

    async def _all_done(self, limit_s: float, cut: asyncio.Event | None = None) -> bool:
        """Wait until nothing is active, for `limit_s` at the most, or until `cut` is set."""
        self._idle.clear()
        if not self._attempts.active:
            return True
        waits = [asyncio.create_task(self._idle.wait())]
        if cut is not None:
            waits.append(asyncio.create_task(cut.wait()))
        try:
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*waits)
        return not self._attempts.active

    async def _farewell(self) -> None:
        """Let hooks end, cut off remaining attempts, and end the lease only if no code of ours can still be running."""
        await self._hooks.close()
        left = self._attempts.active
        if tasks := self._attempts.cut_off():  # a task that swallows its cancellation is left behind
            await asyncio.wait(tasks, timeout=_FAREWELL_S / 5)
        if left:
            logger.warning("%d attempts were cut off: others take them over when the lease expires", left)
            return
        with contextlib.suppress(LedgerError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S / 5):
                await self._lease.close()
