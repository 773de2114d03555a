"""Running one job here and now, without its queue: by the same attempt as in any worker."""

from __future__ import annotations

import asyncio
import contextlib
import random

from jobledger.ledger.client import Ledger
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.chain import JobView, fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import IllegalTransitionError, JobNotFoundError, LedgerError
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.tasks import TaskRegistry
from jobledger.workers.attempt.abandoned import Abandoned
from jobledger.workers.attempt.attempt import Attempts
from jobledger.workers.attempt.cancels import CancelWatch
from jobledger.workers.attempt.execution import Execution
from jobledger.workers.attempt.hooks import HookRunner
from jobledger.workers.attempt.threads import Threads
from jobledger.workers.config import WorkerConfig
from jobledger.workers.pool.pool import ProcessPool
from jobledger.workers.retry_policy import RetryPolicy
from jobledger.workers.services import outlive
from jobledger.workers.surroundings import Surroundings

_FAREWELL_S = 2.0
_WAITS = frozenset({JobState.SCHEDULED, JobState.RETRY_WAIT, JobState.PAUSED})


async def run_one(ledger: Ledger, tasks: TaskRegistry, ref: JobRef, *, by: str = "") -> Job:
    """Run one attempt of a waiting job in this process and return the job after it.

    The job's dispatch stays with its queue's consumer; the worker that gets it finds the job running or ended.
    When this is cancelled, it gives the job back as a worker does that is stopped.

    Raises: JobNotFoundError, UnknownTaskError, UnreachableError, IllegalTransitionError for a job that runs, has ended
    or was claimed by a worker meanwhile.
    """
    stored, job = await _queued(ledger, ref, by)
    tasks.get(job.task)

    def on_lost(_identity: str) -> None:
        attempts.stop("the lease was lost", grace_s=_FAREWELL_S / 2)

    lease = LeaseKeeper(
        ledger.leases,
        ledger.clock,
        (),
        running=lambda: 1,
        on_lost=on_lost,
        jobs=lambda: (ref.job_id,),
    )
    hooks = HookRunner(tasks)
    policy = RetryPolicy(random.Random())  # noqa: S311 - jitter
    abandoned = Abandoned()
    execution = Execution(Surroundings.of(ledger), Threads(ledger.connection.loop, 1, abandoned), policy)
    ended = asyncio.Event()
    # No broker is told anything: the dispatch is still delivered to a worker, which finds in the ledger what was done.
    attempts = Attempts(
        ledger,
        tasks,
        lease,
        None,
        execution=execution,
        hooks=hooks,
        abandoned=abandoned,
        cancel_grace_s=WorkerConfig().cancel_grace_s,
        on_abandoned=lambda _attempt, ending: ending.add_done_callback(lambda _: ended.set()),
    )
    cancels = CancelWatch(ledger, (ref.queue,), running=attempts.claims_held, on_cancel=attempts.cancel)
    await lease.open()
    pool = None
    if tasks.get(job.task).rules.run_in == "process":
        settings = WorkerConfig(pool_size=1).pool(lease.duration_s, ledger.config.payload_bytes_max)
        pool = ProcessPool(tasks.modules, settings, connection=ledger.config.for_another_process())
        execution.open(pool)
    await cancels.open()
    services = (("the lease", lease.run), ("the watch for cancels", cancels.run))
    keepers = [asyncio.create_task(outlive(ledger.connection, name, run)) for name, run in services]
    attempt = asyncio.create_task(attempts.handle(_delivery(stored)))
    attempt.add_done_callback(lambda _: ended.set())
    try:
        await _until(ended, attempts)
    finally:
        await _close([*keepers, attempt], hooks, pool, lease)
    return await _after(ledger, ref, lease.identity)


async def _until(ended: asyncio.Event, attempts: Attempts) -> None:
    """Wait for the end of the attempt; cancelled, make it give its job back."""
    try:
        await ended.wait()
    except asyncio.CancelledError:
        attempts.stop("its operator stopped it", grace_s=_FAREWELL_S / 2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await ended.wait()
        raise


async def _close(
    tasks: list[asyncio.Task[None]], hooks: HookRunner, pool: ProcessPool | None, lease: LeaseKeeper
) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_FAREWELL_S)  # a job's task may swallow it
    await hooks.close()
    if pool is not None:
        await pool.close()
    with contextlib.suppress(LedgerError, TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await lease.close()


async def _queued(ledger: Ledger, ref: JobRef, by: str) -> tuple[StoredEvent, Job]:
    """Return the dispatch of a queued job; a job that waits is queued first."""
    history, chain = await _read(ledger, ref)
    if chain.job is not None and chain.job.state in _WAITS:
        await ledger.retry(ref, reason="run at once by an operator", by=by)
        history, chain = await _read(ledger, ref)
    job = chain.job
    if job is None:
        raise JobNotFoundError(ref.job_id)
    if job.state is not JobState.QUEUED:
        raise IllegalTransitionError(job.id, job.state.value, "be run now")
    return next(each for each in history if each.stream_sequence == job.dispatch_sequence), job


async def _read(ledger: Ledger, ref: JobRef) -> tuple[list[StoredEvent], JobView]:
    history = await ledger.log.read_chain(ledger.names.chain(ref))
    return history, fold(history)


async def _after(ledger: Ledger, ref: JobRef, identity: str) -> Job:
    job = (await _read(ledger, ref))[1].job
    assert job is not None, "it was there before"
    if not any(attempt.worker == identity for attempt in job.attempts):
        raise IllegalTransitionError(
            job.id, f"{job.state.value}, claimed by a worker meanwhile", "be run here"
        )
    return job


def _delivery(stored: StoredEvent) -> Delivery:
    """The work item as a consumer would hand it out."""
    return Delivery(
        data=stored.data,
        reply="",
        stream_sequence=stored.stream_sequence,
        delivered=1,
        stored_ns=0,
        pending=0,
        subject=stored.subject.encode(),
    )
