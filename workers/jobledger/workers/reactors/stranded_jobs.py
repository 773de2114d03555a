"""The fate of a job whose dispatch is no longer handed out: `judge` decides, `StrandedJobs` acts.

A consumer hands a dispatch out `DELIVERIES_MAX` times and then drops it. Most often its job has ended by then;
otherwise the job would wait for ever. The dead-letter reactor and the reconciler find such jobs and ask here. Source:
ADR 010.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.chain import JobView, commit, load, retry_raced
from jobledger.ledger.model.commands import DeadLetter, Dispatch, Rescue
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef

logger = logging.getLogger("jobledger.workers.reactors.stranded_jobs")

#: After this many successive dispatches that nobody started, another one would be useless, too.
DISPATCHES_MAX: Final = 3

OnDeadLetter = Callable[[Job], None]

#: A command that rescues the job; `wait` while it may still run or a replica lags; None if nothing has to be done.
Verdict = DeadLetter | Dispatch | Rescue | Literal["wait"] | None


def judge(job: Job | None, dispatch_sequence: int, *, holder_lives: bool, deliveries: int = 0) -> Verdict:
    """Return the verdict on a job whose dispatch at `dispatch_sequence` is no longer handed out.

    `holder_lives`: whether the lease of the worker that runs it is valid; meaningless for a job that does not run.
    `deliveries`: how often the dispatch was handed out, 0 if not known. Pure.
    """
    if job is None or job.dispatch_sequence < dispatch_sequence:
        return "wait"  # a view without the dispatch comes from a lagging replica
    if job.dispatch_sequence > dispatch_sequence:
        return None  # dispatched again: the newer message is the work item
    if job.state is JobState.QUEUED:
        # Workers pass on a job with an owner until one of them has the master key, for about 80 minutes for each
        # dispatch.
        is_useless = job.dispatches >= DISPATCHES_MAX and not job.order.key
        if is_useless or not job.attempts_left:
            return DeadLetter(reason="max_deliver", error=_never_started(job, deliveries))
        return Dispatch(cause="redispatched", asked_by=job.wait_sequence)
    if job.state is not JobState.RUNNING:
        return None  # it has an end, or waits for something else
    if holder_lives:
        return "wait"
    if job.attempts_left_if_lost or job.cancel_requested:
        return Rescue(lost_epoch=job.claim_epoch)
    return DeadLetter(reason="max_deliver", epoch=job.claim_epoch, error=_lost(job, deliveries))


def _never_started(job: Job, deliveries: int) -> ErrorInfo:
    dispatches = f"{job.dispatches} dispatches" if job.dispatches > 1 else "its dispatch"
    message = (
        f"{dispatches} came to no verdict{_last(deliveries)}: no worker of queue {job.queue} started it. "
        "Look at their logs, then requeue it"
    )
    return ErrorInfo(kind="undeliverable", type="undeliverable", message=message)


def _lost(job: Job, deliveries: int) -> ErrorInfo:
    lost = job.attempts[-1]
    message = (
        f"worker {lost.worker} died while running attempt {lost.number}, the last one, and nobody took the job over"
        f"{_last(deliveries)}"
    )
    return ErrorInfo(kind="undeliverable", type="undeliverable", message=message)


def _last(deliveries: int) -> str:
    return f" (the last one was delivered {deliveries} times)" if deliveries else ""


class RescueResult(msgspec.Struct, frozen=True):
    """The verdict on one stranded job, and the job after it."""

    verdict: Verdict
    job: Job | None  #: the job after the verdict


class StrandedJobs:
    """Judges jobs by their chains and appends the verdict; one object per reactor.

    `on_dead_letter` is called with each job that became a dead letter here.
    """

    def __init__(self, ledger: Ledger, on_dead_letter: OnDeadLetter | None = None) -> None:
        self._ledger = ledger
        self._on_dead_letter = on_dead_letter

    async def rescue(
        self, ref: JobRef, dispatch_sequence: int, *, deliveries: int = 0, certain: bool = True
    ) -> RescueResult:
        """Carry out the verdict of `judge`; only return it if it is not `certain` that the dispatch is given up.

        Raises: WrongSequenceError after too many lost races, UnreachableError, LedgerFullError, CorruptLedgerError.
        """
        log = self._ledger.log

        async def attempt() -> RescueResult:
            chain = await load(log, ref)
            verdict = await self._judge(chain.job, dispatch_sequence, deliveries)
            if verdict is None or verdict == "wait" or not certain:
                return RescueResult(verdict, chain.job)
            assert chain.job is not None, "a verdict is about a job"
            after = await commit(log, chain, decide(chain.job, verdict, self._ledger.stamp()))
            return RescueResult(verdict, self._tell(ref, after))

        return await retry_raced(attempt)

    async def _judge(self, job: Job | None, dispatch_sequence: int, deliveries: int) -> Verdict:
        attempt = job.running_attempt if job is not None else None
        # Check the lease after reading the chain and before the verdict: a lease that is over stays over.
        lives = attempt is not None and await self._ledger.leases.find(attempt.worker) is not None
        return judge(job, dispatch_sequence, holder_lives=lives, deliveries=deliveries)

    def _tell(self, ref: JobRef, after: JobView) -> Job:
        job = after.job
        assert job is not None, "an append leaves a job"
        if job.state is JobState.QUEUED:
            logger.warning("job %s of %s was stranded: dispatched again", ref.job_id, ref.queue)
            return job
        logger.error("job %s of %s was stranded: it is %s", ref.job_id, ref.queue, job.state.value)
        if job.order.notify:
            self._ledger.hints.tell(job.order.notify, ref)
        if job.state is JobState.DEAD_LETTERED and self._on_dead_letter is not None:
            self._on_dead_letter(job)
        return job
