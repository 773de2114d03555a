"""From a delivery to the right to run its job: claim, take over, wait, or drop. The ledger decides, never the broker.

A dispatch with the whole order (of a new job, and mostly of an admitted or retried one) is claimed without a read: if
its message is not the newest event of the chain, the conditional append is refused, and only then the chain is read. A
job that failed here, so that the same message is delivered again, is also claimed without a read; in other workers its
newest event is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from jobledger.ledger.client import Ledger
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.aggregates import read_job_event
from jobledger.ledger.model.chain import JobView, begin_commit, commit, load
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Claim, DeadLetter, Stamp, TakeOver
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import (
    LedgerFullError,
    LedgerThrottledError,
    MalformedEventError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import Failed, Queued
from jobledger.ledger.model.job import Job, JobState, evolve, retried
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.pull import Delivery
from jobledger.workers.attempt.kept_chains import KeptChains
from jobledger.workers.attempt.retry_store import FULL_PAUSE_S, LIMIT_S
from jobledger.workers.attempt.settlement import (
    ACK,
    JOIN,
    Settlement,
    held_elsewhere_s,
    nak,
    soon_s,
)

logger = logging.getLogger("jobledger.workers.attempt.claims")

_TRIES_MAX: Final = 8
_WAIT_STEP_S_MIN: Final = 0.25


_QUEUED: Final = JobState.QUEUED  # reading a member of an enumeration class is slow, and every job needs it


class Claimer:
    """Makes claims for one worker.

    `runs_here` returns whether a job runs in this worker; `on_ended` is called for each job that a claim ended.
    """

    def __init__(
        self,
        ledger: Ledger,
        lease: LeaseKeeper,
        *,
        runs_here: Callable[[JobRef], bool],
        on_ended: Callable[[Job, str], None],
        kept: KeptChains | None = None,
        failed: KeptChains | None = None,
        passes_on: Callable[[Job, Delivery], Settlement | None] = lambda _job, _delivery: None,
    ) -> None:
        """`kept`: chains of runs that were parked here; `failed`: chains of jobs that failed here.

        `passes_on` returns the settlement of a run of another version.
        """
        self._ledger = ledger
        self._lease = lease
        self._runs_here = runs_here
        self._on_ended = on_ended
        self._kept = kept
        self._failed = failed
        self._passes_on = passes_on
        self.ends = False  #: True once the worker is to end

    def end(self) -> None:
        """Let claims that wait for room in the ledger give their deliveries back: the worker ends."""
        self.ends = True

    async def claim(
        self, delivery: Delivery, queued: Queued, *, is_run: bool = False
    ) -> JobView | Settlement:
        """Try to get the right to run the job of a delivery; `queued` is its event.

        `is_run`: its task records steps, so a retry needs the errors of earlier attempts. If the ledger is full, the
        claim waits for room; the delivery is kept alive meanwhile, and no dispatch is used up.

        Returns the chain, which ends with our claim, or otherwise the settlement of the delivery.

        Raises: UnreachableError, WrongSequenceError after too many lost races, LedgerFullError after some minutes or
        when the worker ends; the caller then leaves the delivery to a redelivery.
        """
        try:
            return await self._claim(delivery, queued, is_run=is_run)
        except LedgerFullError as error:
            full = error
        loop, outage = self._ledger.connection.loop, self._ledger.connection.outage
        logger.log(outage.level(full), "claims wait until there is room: %s", full)
        deadline = loop.time() + LIMIT_S
        # Nothing is wrong with a job that waits for room below the limit: its deliveries are not used up.
        while not self.ends and (isinstance(full, LedgerThrottledError) or loop.time() < deadline):
            await asyncio.sleep(FULL_PAUSE_S)
            try:
                return await self._claim(delivery, queued, is_run=is_run)
            except LedgerFullError as error:
                full = error
        raise full

    def begin(
        self, delivery: Delivery, queued: Queued, answered: Callable[[JobView | Exception], None]
    ) -> None:
        """Claim a job by its first dispatch, without a read; `answered` gets the chain, or the error.

        Raises: PayloadTooLargeError.
        """
        chain, identity = _only(delivery, queued), self._lease.identity
        command = Claim(worker=identity, lease_s=self._lease.duration_s)
        events = decide(chain.folded, command, self._ledger.stamp(identity))
        begin_commit(self._ledger.log, chain, events, answered)

    async def _claim(self, delivery: Delivery, queued: Queued, *, is_run: bool) -> JobView | Settlement:
        ref = JobRef(queue=queued.queue, job_id=queued.job)
        # Other dispatches need the earlier events of the chain.
        is_enough = queued.has_order and not (is_run and queued.cause == "retried")
        known = self._known(ref, delivery, queued)
        if known is not None:
            chain = known
        elif is_enough and delivery.delivered == 1:
            chain = _only(delivery, queued)
        else:
            chain = await self._look(ref, delivery, queued if is_enough else None)
        for _ in range(_TRIES_MAX):
            try:
                job = chain.job
                if (
                    job is not None
                    and job.state is _QUEUED
                    and job.dispatch_sequence == delivery.stream_sequence
                    and job.attempts_left
                ):  # nearly always; here, not in `_judge`, since each await costs a call in every coroutine on the way
                    if job.order.version:
                        elsewhere = self._passes_on(job, delivery)
                        if elsewhere is not None:
                            return elsewhere
                    if self._ledger.throttle.holds_claims():
                        raise LedgerThrottledError("what room the ledger has is kept for the jobs that run")
                    command = Claim(worker=self._lease.identity, lease_s=self._lease.duration_s)
                    return await commit(self._ledger.log, chain, decide(job, command, self._stamp()))
                return await self._judge(chain, ref, delivery)
            except WrongSequenceError:
                chain = await load(self._ledger.log, ref)
        raise WrongSequenceError(self._ledger.names.chain(ref), chain.last_sequence)

    def _known(self, ref: JobRef, delivery: Delivery, queued: Queued) -> JobView | None:
        """Return the chain of a job that ran here before, if it is kept and seems to be the newest."""
        offered = None if self._failed is None else self._failed.offered(ref, delivery)
        if offered is not None or self._kept is None:
            return offered
        return self._kept.following(ref, delivery, queued)

    async def _look(self, ref: JobRef, delivery: Delivery, order: Queued | None) -> JobView:
        """Return the chain of a job; `order`: its dispatch; with it the chain's newest event may suffice."""
        log = self._ledger.log
        newest = None if order is None else await log.last(log.names.chain(ref))
        if order is None or newest is None:
            return await load(log, ref)
        sequence = newest.stream_sequence
        if sequence == delivery.stream_sequence:  # nobody claimed it: it was only given back
            return _only(delivery, order)
        failed = newest.event if isinstance(newest, StoredEvent) else None
        if not isinstance(failed, Failed) or failed.dispatch != delivery.stream_sequence:
            return await load(log, ref)
        job = retried(order, failed, sequence) if failed.offers_again else None
        return await load(log, ref) if job is None else JobView(job, sequence, newest.data)

    async def _judge(self, chain: JobView, ref: JobRef, delivery: Delivery) -> JobView | Settlement:
        """Decide on a job that cannot simply be started."""
        job = chain.job
        if job is None or job.dispatch_sequence < delivery.stream_sequence:
            # The view lacks the delivered event: a lagging replica answered.
            return nak(soon_s(_WAIT_STEP_S_MIN, delivery.delivered))
        if job.dispatch_sequence > delivery.stream_sequence:
            return ACK  # the job was dispatched again: the newer message is the work item
        if job.state is JobState.QUEUED:  # the job has no attempt left
            events = decide(job, DeadLetter(reason="exhausted"), self._stamp())
            return self._ended(await commit(self._ledger.log, chain, events))
        if job.state is JobState.RUNNING:
            return await self._rescue(chain, job, ref, delivery.delivered)
        return ACK  # the job ended, or waits for something else

    async def _rescue(self, chain: JobView, job: Job, ref: JobRef, delivered: int) -> JobView | Settlement:
        """Decide on a running job: it runs elsewhere, or here, or its worker is gone."""
        holder = job.attempts[-1].worker
        if holder == self._lease.identity:
            if self._runs_here(ref):
                return JOIN  # a newer work item of a job that runs here
        else:
            info = await self._ledger.leases.find(holder)
            if info is not None:
                left = (info.renewed_at - self._ledger.clock.now()).total_seconds() + self._lease.duration_s
                step = self._lease.duration_s / 5  # clocks may differ: look again before long
                return nak(held_elsewhere_s(min(max(left, _WAIT_STEP_S_MIN), step), delivered))
        command = TakeOver(
            worker=self._lease.identity, lease_s=self._lease.duration_s, lost_epoch=job.claim_epoch
        )
        after = await commit(self._ledger.log, chain, decide(job, command, self._stamp()))
        if after.job is not None and after.job.state is JobState.RUNNING:
            return after
        return self._ended(after)  # the job had to be cancelled, or had no attempt left

    def _ended(self, after: JobView) -> Settlement:
        if after.job is not None:
            self._on_ended(after.job, self._lease.identity)
        return ACK

    def _stamp(self) -> Stamp:
        return self._ledger.stamp(self._lease.identity)


def read_dispatch(delivery: Delivery) -> Queued | None:
    """Return the event of a work item, or None for another message under such a subject.

    Raises: UnknownEventError.
    """
    try:
        event = read_job_event(
            delivery.subject.decode(errors="replace"), delivery.data, delivery.stream_sequence
        )
    except MalformedEventError as error:
        logger.warning("%s: set aside", error)
        return None
    if isinstance(event, Queued):
        return event
    logger.warning("stream sequence %d is no dispatch: set aside", delivery.stream_sequence)
    return None


def _only(delivery: Delivery, queued: Queued) -> JobView:
    """Return the chain, if the delivered event is its newest; the claim's condition checks that.

    The event has the whole order. For a job that was held before, only the time of its first event differs.
    """
    sequence = delivery.stream_sequence
    return JobView(evolve(None, queued, sequence), sequence, delivery.data)
