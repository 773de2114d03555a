"""A bench: runs jobs one at a time in this process, past their queues, with the same attempts as any worker."""

from __future__ import annotations

import asyncio
import contextlib
import random
from types import TracebackType
from typing import Any, Self

from jobledger.ledger.client import Ledger
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.tasks import TaskRegistry
from jobledger.workers.attempt.abandoned import AbandonedSlots
from jobledger.workers.attempt.attempt import Attempts
from jobledger.workers.attempt.cancels import CancelWatch
from jobledger.workers.attempt.execution import Execution
from jobledger.workers.attempt.hooks import HookRunner
from jobledger.workers.attempt.threads import Threads
from jobledger.workers.config import WorkerConfig
from jobledger.workers.pool.pool import ProcessPool
from jobledger.workers.reactors.hosts import flow_reactor, start_reactors
from jobledger.workers.retry_policy import RetryPolicy
from jobledger.workers.runs.children import ChildJobs
from jobledger.workers.runs.execution import RunExecution
from jobledger.workers.runs.journal import InPlaceOf, RunSurroundings
from jobledger.workers.runs.tables import WorkerTables
from jobledger.workers.services import outlive
from jobledger.workers.surroundings import Surroundings

_FAREWELL_S = 2.0


class Bench:
    """Takes a lease like a worker, and makes the attempts that its caller asks for; use it as a block.

    It acknowledges nothing: a dispatch stays with its queue's consumer, and the worker that gets it finds the outcome
    in the ledger.
    """

    def __init__(
        self,
        ledger: Ledger,
        tasks: TaskRegistry,
        *,
        queue: str | None = None,
        in_place_of: InPlaceOf = lambda step: step,
    ) -> None:
        """`queue`: its name in the lease; with it the bench hosts the reactors while it is open; None: neither.

        `in_place_of`: the function that is called instead of a step of a run.
        """
        self._ledger = ledger
        self._tasks = tasks
        self._job_id = ""
        self._lease = LeaseKeeper(
            ledger.leases,
            ledger.clock,
            () if queue is None else (queue,),
            running=lambda: 1,
            on_lost=self._on_lost,
            jobs=lambda: (self._job_id,) if self._job_id else (),
            reactors=queue is not None,
        )
        self._hosts_reactors = queue is not None
        self._hooks = HookRunner(tasks)
        policy, abandoned = RetryPolicy(random.Random()), AbandonedSlots()  # noqa: S311 - jitter
        threads = Threads(ledger.connection.loop, 1, abandoned)
        self._execution = Execution(Surroundings.of(ledger), threads, policy)
        self._tables = WorkerTables(ledger, WorkerConfig(pool_size=1), threads)
        self._execution.runs = RunExecution(
            RunSurroundings(
                execution=self._execution,
                children=ChildJobs(ledger),
                tables=self._tables,
                in_place_of=in_place_of,
            )
        )
        self._ended = asyncio.Event()
        self._attempts = Attempts(
            ledger,
            tasks,
            self._lease,
            None,
            execution=self._execution,
            hooks=self._hooks,
            abandoned=abandoned,
            cancel_grace_s=WorkerConfig().cancel_grace_s,
            on_settled=lambda: self._ended.set(),  # noqa: PLW0108 - there is a new one for each run
        )
        self._cancels = CancelWatch(
            ledger, (), running=self._attempts.claims_held, on_cancel=self._attempts.cancel
        )
        self._queues: set[str] = set()  #: queues whose cancel requests are heard
        self._pool: ProcessPool | None = None
        self._running: list[asyncio.Task[None]] = []

    @property
    def identity(self) -> str:
        """The name under which it claims at present."""
        return self._lease.identity

    def _on_lost(self, _identity: str) -> None:
        self._attempts.stop("the lease was lost", grace_s=_FAREWELL_S / 2)

    async def __aenter__(self) -> Self:
        """Take the lease. Raises: UnreachableError."""
        await self._lease.open()
        services = (("the lease", self._lease.run), ("the watch for cancels", self._cancels.run))
        connection = self._ledger.connection
        self._running = [asyncio.create_task(outlive(connection, name, run)) for name, run in services]
        if self._hosts_reactors:
            flow = flow_reactor(self._ledger, lambda: self._lease.identity)
            self._running += start_reactors(self._ledger, None, flow)
        return self

    async def run(self, dispatch: StoredEvent) -> None:
        """Make the attempt of a stored dispatch; when cancelled, give its job back like a worker that stops."""
        event = dispatch.event
        self._job_id, self._ended = event.job, asyncio.Event()
        if event.queue not in self._queues:
            self._queues.add(event.queue)
            await self._cancels.listen(event.queue)
        self._open_pool(event.task)
        self._attempts.take(delivery_of(dispatch))
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self._attempts.stop("its operator stopped it", grace_s=_FAREWELL_S / 2)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await self._ended.wait()
            raise

    def _open_pool(self, name: str) -> None:
        task = self._tasks.find(name)
        if self._pool is not None or task is None:
            return
        if task.rules.run_in != "process" and not task.makes_runs:
            return
        config = self._ledger.config
        settings = WorkerConfig(pool_size=1).pool(self._lease.duration_s, config.payload_bytes_max)
        self._pool = ProcessPool(
            self._tasks.modules,
            settings,
            connection=config.for_another_process(),
            for_tasks=task.rules.run_in == "process",
        )
        self._execution.open(self._pool)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lease back; an attempt that still runs is left behind after some seconds."""
        for task in self._running:
            task.cancel()
        running = [*self._running, *self._attempts.cut_off()]
        waiting: set[asyncio.Task[Any]] = {task for task in running if not task.done()}
        if waiting:
            await asyncio.wait(waiting, timeout=_FAREWELL_S)  # a job's task may swallow it
        await self._hooks.close()
        if self._pool is not None:
            await self._pool.close()
        self._tables.close()
        with contextlib.suppress(LedgerError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self._lease.close()


def delivery_of(stored: StoredEvent) -> Delivery:
    """Return a stored event in the form of a consumer's delivery."""
    return Delivery(
        subject=stored.subject.encode(),
        data=stored.data,
        reply="",
        stream_sequence=stored.stream_sequence,
        delivered=1,
        stored_ns=0,
        pending=0,
    )
