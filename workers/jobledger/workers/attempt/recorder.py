"""The recorder of attempts' outcomes: it appends events, or the receipt of an outcome whose claim was lost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.aggregates import JOB
from jobledger.ledger.model.chain import JobView, commit, load, transact
from jobledger.ledger.model.commands import Complete, Fail, Fence, Outcome, ReportProgress, Stamp
from jobledger.ledger.model.decisions import decide, outcome_type
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    JobNotFoundError,
    LedgerFullError,
    StaleClaimError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import JobEvent
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.lifecycle import ENDED_BY_HOLDER
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers import logs
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.hooks import HookRunner
from jobledger.workers.attempt.kept_chains import KeptChains
from jobledger.workers.attempt.retry_store import retry_store
from jobledger.workers.attempt.settlement import ACK, AGAIN, DROP, Settlement

logger = logging.getLogger("jobledger.workers.attempt")


class Recorder:
    """Records the outcomes of one worker."""

    def __init__(self, ledger: Ledger, hooks: HookRunner, failed: KeptChains) -> None:
        """`failed`: keeps the chains of jobs that a failure queued again, for their next attempt."""
        self._ledger = ledger
        self._failed = failed
        self._hooks = hooks
        self.is_wordy = logs.is_wordy()
        self.fenced = 0  #: outcomes that were refused because their claim was lost

    def begin(self, attempt: Attempt, outcome: Outcome, answered: Callable[[int | Exception], None]) -> bool:
        """Append an ordinary outcome, and call `answered` with whether it is stored; return False for any other.

        An outcome is ordinary if nothing else has to be stored or reported.
        """
        control, job = attempt.control, attempt.job
        if (
            not isinstance(outcome, Complete)
            or control.recorded is not None
            or not (control.channel is None or control.channel.is_quiet)
            or self.is_wordy
            or job.task in self._hooks.hooked
            or self._ledger.tracing is not None  # its span lasts until the outcome is stored
        ):
            return False
        control.recording = True
        log, chain = self._ledger.log, attempt.newest_chain
        events = decide(chain.job, outcome, self._ledger.stamp(attempt.identity))
        log.begin(JOB.link(log.names, events, chain), answered)
        return True

    def tell_enqueuer(self, job: Job) -> None:
        """Notify the enqueuer of a job that has ended, if it asked for that."""
        if job.order.notify:
            self._ledger.hints.tell(job.order.notify, JobRef(queue=job.queue, job_id=job.id))

    async def record(self, attempt: Attempt, outcome: Outcome) -> Settlement:
        """Append the outcome on condition of the claim; return the settlement of the job's work item.

        It is dropped if the claim was lost: another worker has job and message, and an ack would settle that delivery.

        Raises: LedgerFullError, UnreachableError, WrongSequenceError after trying for minutes.
        """
        control, log, identity = attempt.control, self._ledger.log, attempt.identity
        control.recording = True
        if control.recorded is not None:
            return self._tell_recorded(attempt, control.recorded)
        report: ReportProgress | None = None
        if control.channel is not None:
            await control.channel.close()
            report = control.channel.unstored
        chain = attempt.newest_chain
        try:
            stamp = self._ledger.stamp(identity)
            try:
                after = await commit(
                    log,
                    chain,
                    decide(chain.job, outcome, stamp)
                    if report is None
                    else _with_report(chain, report, outcome, stamp),
                )
            except (LedgerFullError, UnreachableError, WrongSequenceError):
                after = await self._retry(attempt, chain, outcome)
        except (
            StaleClaimError,
            IllegalTransitionError,
            JobNotFoundError,
        ):  # not found: it has ended, and is archived
            stored = (await load(log, attempt.ref)).job
            if self._is_recorded(attempt, stored):
                return settled_by_now(attempt.job, stored)
            await self._fence(attempt, outcome)
            return DROP
        if self.is_wordy or isinstance(outcome, Fail):
            self._tell(attempt, outcome, after)
        # The result is folded only if somebody asked for it.
        if attempt.job.order.notify or attempt.job.task in self._hooks.hooked:
            assert after.job is not None, "an outcome leaves the job in the chain"
            self.announce(after.job, identity)
        if isinstance(outcome, Fail) and outcome.offers_again:
            settlement = _settled(after.job)
            if settlement is not ACK:
                self._failed.keep(attempt.ref, after)
            return settlement
        return ACK

    def _tell_recorded(self, attempt: Attempt, outcome: Outcome) -> Settlement:
        """Report an outcome that was recorded already: a run's pause, or its end with its callback job."""
        if self.is_wordy:
            self._tell(attempt, outcome, attempt.newest_chain)
        job = attempt.newest_chain.job
        if job is not None and job.is_final:
            self.announce(job, attempt.identity)
        return ACK

    def _tell(self, attempt: Attempt, outcome: Outcome, after: JobView) -> None:
        if isinstance(outcome, Fail):
            assert after.job is not None, "an outcome leaves the job in the chain"
            logs.tell_failure(outcome, after.job)
        else:
            logs.tell_end(outcome, attempt.job, self._ledger.clock.now())

    async def _retry(self, attempt: Attempt, chain: JobView, outcome: Outcome) -> JobView:
        """Append the events of the outcome after any error of the first try."""
        return await retry_store(
            f"the outcome of job {attempt.job.id}",
            # `known`, so that a lagging replica's view, older than our claim, does not make it look lost.
            lambda: transact(
                self._ledger.log,
                attempt.ref,
                outcome,
                lambda: self._ledger.stamp(attempt.identity),
                known=chain,
            ),
            outage=self._ledger.connection.outage,
        )

    def _is_recorded(self, attempt: Attempt, stored: Job | None) -> bool:
        """Return whether our outcome is stored, and only the server's answer was lost."""
        epoch = attempt.job.claim_epoch
        return stored is not None and any(
            each.epoch == epoch and each.state in ENDED_BY_HOLDER for each in stored.attempts
        )

    async def _fence(self, attempt: Attempt, outcome: Outcome) -> None:
        """Record the receipt of a refused outcome."""
        job, refused = attempt.job, outcome_type(outcome)
        number = job.attempts_count
        self.fenced += 1
        logger.warning("job %s was taken over: our %s for attempt %d is refused", job.id, refused, number)
        command = Fence(epoch=job.claim_epoch, attempt=number, worker=attempt.identity, outcome=refused)
        with contextlib.suppress(IllegalTransitionError, JobNotFoundError):
            await transact(
                self._ledger.log, attempt.ref, command, lambda: self._ledger.stamp(attempt.identity)
            )

    def on_ended_by_claim(self, job: Job, identity: str) -> None:
        """Report a job that its claim ended: it had to be cancelled, or had no attempt left."""
        if job.state is JobState.DEAD_LETTERED:
            logs.tell_dead_letter(job, identity)
        if job.attempts and job.attempts[-1].state == "lost":
            self._hooks.tell_lost(job, job.attempts[-1], goes_on=False)
        self.announce(job, identity)

    def announce(self, job: Job, identity: str) -> None:
        """Report the job's outcome to its enqueuer, if asked for, and to the hooks."""
        if job.is_final:
            self.tell_enqueuer(job)
        if job.state is JobState.COMPLETED:
            self._hooks.tell("success", job, worker=identity)
        elif job.attempts and job.attempts[-1].state == "failed":
            self._hooks.tell("failure", job, worker=identity, error=job.error, will_retry=not job.is_final)
        if job.state is JobState.DEAD_LETTERED:
            self._hooks.tell_dead_letter(job, worker=identity)


def _settled(job: Job | None) -> Settlement:
    """Return the settlement of the work item of a job whose outcome is recorded: an ack, unless it is offered again.

    An ack also if the job has another work item now: a worker that got this one would only find it done.
    """
    is_offered = (
        job is not None and job.state is JobState.QUEUED and job.wait_sequence > job.dispatch_sequence
    )
    return AGAIN if is_offered else ACK


def settled_by_now(job: Job, stored: Job | None) -> Settlement:
    """Return the settlement of the work item of a job whose outcome was stored long before its worker heard of it.

    Another worker may run the next attempt by now, with the same work item: an ack would settle its delivery.
    """
    if (
        stored is not None
        and stored.state is JobState.RUNNING
        and stored.dispatch_sequence == job.dispatch_sequence
    ):
        return DROP
    return _settled(stored)


def _with_report(
    chain: JobView, report: ReportProgress, outcome: Outcome, stamp: Stamp
) -> tuple[JobEvent, ...]:
    """Return the events of a last report of progress and of the outcome after it, to be appended as one."""
    (progressed,) = decide(chain.job, report, stamp)
    job = evolve(chain.job, progressed, chain.last_sequence + 1)
    return (progressed, *decide(job, outcome, stamp))
