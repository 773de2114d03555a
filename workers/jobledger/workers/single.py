"""Running one job here and now, without its queue."""

from __future__ import annotations

import asyncio
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import JobView, fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import IllegalTransitionError, JobNotFoundError
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.tasks import TaskRegistry
from jobledger.workers.bench import Bench

_WAITS: Final = frozenset({JobState.SCHEDULED, JobState.RETRY_WAIT, JobState.WAITING, JobState.PAUSED})
_CAN_BE_RUN: Final = _WAITS | {JobState.QUEUED, JobState.HELD}
#: How long the limits of a job may take to admit it before it is left as it is.
_ADMITTED_WITHIN_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.02


async def run_one(ledger: Ledger, tasks: TaskRegistry, ref: JobRef, *, by: str = "") -> Job:
    """Run one attempt of a waiting job in this process and return the job after it.

    The job's dispatch stays with its queue's consumer; the worker that gets it finds the job running or ended.
    Meanwhile this process holds a lease that names the queue, and hosts reactors and timers as a worker does: a job with
    limits is admitted, and one that fails is retried in time as soon as somebody works again.
    When this is cancelled, it gives the job back as a worker does that is stopped.

    Raises: JobNotFoundError, UnknownTaskError, UnreachableError, IllegalTransitionError for a job that runs, has ended,
    was claimed by a worker meanwhile, or within 10 s was not admitted by its limits or could not be claimed.
    """
    job = (await _read(ledger, ref))[1].job
    if job is None:
        raise JobNotFoundError(ref.job_id)
    if job.state not in _CAN_BE_RUN:
        raise IllegalTransitionError(job.id, job.state.value, "be run now")
    tasks.get(job.task)
    async with Bench(ledger, tasks, queue=ref.queue) as bench:
        until = ledger.clock.monotonic() + _ADMITTED_WITHIN_S
        while True:
            await bench.run(await _queued(ledger, ref, by, until))
            job = await _after(ledger, ref, bench.identity, until)
            if job is not None:
                return job


async def _queued(ledger: Ledger, ref: JobRef, by: str, until: float) -> StoredEvent:
    """Return the dispatch of a queued job; a job that waits is queued first, and one with limits admitted by them."""
    history, chain = await _read(ledger, ref)
    if chain.job is not None and chain.job.state in _WAITS:
        await ledger.retry(ref, reason="run at once by an operator", by=by)
        history, chain = await _read(ledger, ref)
    while chain.job is not None and chain.job.state is JobState.HELD:
        if ledger.clock.monotonic() >= until:
            message = f"held, and its limits did not admit it within {_ADMITTED_WITHIN_S:g} s"
            raise IllegalTransitionError(ref.job_id, message, "be run now")
        await asyncio.sleep(_LOOK_AGAIN_S)
        history, chain = await _read(ledger, ref)
    job = chain.job
    if job is None or job.state is not JobState.QUEUED:  # another worker was quicker
        state = "gone" if job is None else job.state.value
        raise IllegalTransitionError(ref.job_id, state, "be run now")
    return next(each for each in history if each.stream_sequence == job.dispatch_sequence)


async def _read(ledger: Ledger, ref: JobRef) -> tuple[list[StoredEvent], JobView]:
    history = await ledger.log.read_chain(ledger.names.chain(ref))
    return history, fold(history)


async def _after(ledger: Ledger, ref: JobRef, identity: str, until: float) -> Job | None:
    """Return the job that was run here; None if its dispatch was replaced before it was claimed, so that it still waits.

    A reactor replaces the dispatch of a job that was admitted while nobody worked in its queue: its limits admit it
    again.
    """
    job = (await _read(ledger, ref))[1].job
    assert job is not None, "it was there before"
    if any(attempt.worker == identity for attempt in job.attempts):
        return job
    if job.state not in {JobState.QUEUED, JobState.HELD}:
        raise IllegalTransitionError(
            job.id, f"{job.state.value}, claimed by a worker meanwhile", "be run here"
        )
    if ledger.clock.monotonic() >= until:
        message = f"{job.state.value}, and it could not be claimed within {_ADMITTED_WITHIN_S:g} s"
        raise IllegalTransitionError(job.id, message, "be run here")
    await asyncio.sleep(_LOOK_AGAIN_S)
    return None
