"""Running one job here and now, without its queue."""

from __future__ import annotations

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import JobView, fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import IllegalTransitionError, JobNotFoundError
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.tasks import TaskRegistry
from jobledger.workers.bench import Bench

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
    async with Bench(ledger, tasks) as bench:
        await bench.run(stored)
    return await _after(ledger, ref, bench.identity)


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
