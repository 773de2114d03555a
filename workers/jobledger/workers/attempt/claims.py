"""From a delivery to the right to run it: claim, take over, wait, or drop. The ledger decides, never the broker.

A first dispatch is claimed without reading anything: its message is the newest event of the chain, or the
conditional append is refused, and only then the chain is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.chain import JobView, commit, load
from jobledger.ledger.model.codec import decode
from jobledger.ledger.model.commands import Claim, DeadLetter, Stamp, TakeOver
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import MalformedEventError, WrongSequenceError
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.pull import Delivery
from jobledger.workers.attempt import delays

_TRIES_MAX: Final = 8
_WAIT_STEP_S_MIN: Final = 0.25


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """The job is ours to run; `chain` ends with our `started`."""

    chain: JobView


class NotOurs(msgspec.Struct, frozen=True):
    """The job is not to be run now, by us."""

    settle: Literal["ack", "nak", "keep"]
    delay_s: float = 0.0  #: of a nak
    ended: Job | None = None  #: the job, if it came to its end here


Verdict = Claimed | NotOurs

_DONE: Final = NotOurs("ack")
_QUEUED: Final = JobState.QUEUED  # of an enumeration's class each look is a search of its metaclass


class Claimer:
    """Makes claims for one worker."""

    def __init__(self, ledger: Ledger, lease: LeaseKeeper, runs_here: Callable[[JobRef], bool]) -> None:
        self._ledger = ledger
        self._lease = lease
        self._runs_here = runs_here

    async def claim(self, delivery: Delivery, queued: Queued) -> Verdict:
        """Try to get the right to run the job of a delivery; `queued` is its event.

        Raises: UnreachableError, WrongSequenceError after too many lost races: the delivery comes again.
        """
        ref = JobRef(queue=queued.queue, job_id=queued.job)
        if queued.cause == "new":
            chain = _only(delivery, queued)
        else:  # the input and what happened before are in the chain
            chain = await load(self._ledger.log, ref)
        for _ in range(_TRIES_MAX):
            try:
                job = chain.job
                if (
                    job is not None
                    and job.state is _QUEUED
                    and job.dispatch_sequence == delivery.stream_sequence
                    and job.attempts_left
                ):  # nearly always, so it is not left to `_judge`: every coroutine on the way costs each await
                    command = Claim(worker=self._lease.identity, lease_s=self._lease.duration_s)
                    return Claimed(await commit(self._ledger.log, chain, decide(job, command, self._stamp())))
                return await self._judge(chain, ref, delivery)
            except WrongSequenceError:
                chain = await load(self._ledger.log, ref)
        raise WrongSequenceError(self._ledger.names.chain(ref), chain.last_sequence)

    async def _judge(self, chain: JobView, ref: JobRef, delivery: Delivery) -> Verdict:
        """Deal with a job that cannot just be started."""
        job = chain.job
        if job is None or job.dispatch_sequence < delivery.stream_sequence:
            # The view lacks the very event that was delivered: it came from a replica that lags behind.
            return NotOurs("nak", delays.soon_s(_WAIT_STEP_S_MIN, delivery.delivered))
        if job.dispatch_sequence > delivery.stream_sequence:
            return _DONE  # dispatched anew: the newer message is the work item
        if job.state is JobState.QUEUED:  # and has no attempt left
            events = decide(job, DeadLetter(reason="exhausted"), self._stamp())
            return NotOurs("ack", ended=(await commit(self._ledger.log, chain, events)).job)
        if job.state is JobState.RUNNING:
            return await self._rescue(chain, job, ref, delivery.delivered)
        return _DONE  # it came to an end, or waits for something else

    async def _rescue(self, chain: JobView, job: Job, ref: JobRef, delivered: int) -> Verdict:
        """Deal with a job that is running: somewhere, here, or nowhere any more."""
        holder = job.attempts[-1].worker
        if holder == self._lease.identity:
            if self._runs_here(ref):
                return NotOurs("keep")  # a newer work item of what we are at
        else:
            info = await self._ledger.leases.find(holder)
            if info is not None:
                left = (info.renewed_at - self._ledger.clock.now()).total_seconds() + self._lease.duration_s
                step = self._lease.duration_s / 5  # clocks may differ: look again before long
                wait_s = min(max(left, _WAIT_STEP_S_MIN), step)
                return NotOurs("nak", delays.held_elsewhere_s(wait_s, delivered))
        command = TakeOver(
            worker=self._lease.identity, lease_s=self._lease.duration_s, lost_epoch=job.claim_epoch
        )
        after = await commit(self._ledger.log, chain, decide(job, command, self._stamp()))
        if after.job is not None and after.job.state is JobState.RUNNING:
            return Claimed(after)
        return NotOurs("ack", ended=after.job)  # it was to be cancelled, or had no attempt left

    def _stamp(self) -> Stamp:
        return self._ledger.stamp(self._lease.identity)


def read_dispatch(delivery: Delivery) -> Queued:
    """Return the event of a work item.

    Raises: MalformedEventError, UnknownEventError.
    """
    event = decode(delivery.data, stream_sequence=delivery.stream_sequence)
    if not isinstance(event, Queued):
        raise MalformedEventError(f"stream sequence {delivery.stream_sequence} is not a dispatch")
    return event


def _only(delivery: Delivery, queued: Queued) -> JobView:
    """The chain as it is if the delivered first event is still its only one; the claim's condition proves it."""
    sequence = delivery.stream_sequence
    return JobView(evolve(None, queued, sequence), sequence, delivery.data)
