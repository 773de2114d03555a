"""One attempt, from a delivery to a recorded outcome: read -> claim -> run -> record -> acknowledge.

A crash anywhere leaves a prefix of this, and a redelivery finishes it: the ack comes last, after the outcome
is in the ledger, and whoever is delivered the job next finds in the ledger what was done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final, Protocol

from jobledger.ledger.client import Ledger
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.model.chain import JobView, commit, load, transact
from jobledger.ledger.model.commands import ConfirmCancel, Fail, Fence, Interrupt, Outcome
from jobledger.ledger.model.decisions import decide, outcome_type
from jobledger.ledger.model.errors import (
    AttemptStoppedError,
    CorruptLedgerError,
    IllegalTransitionError,
    JobNotFoundError,
    LedgerFullError,
    StaleClaimError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import ErrorInfo, Queued
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.tasks import Task, TaskRegistry
from jobledger.ledger.tracing import AttemptSpan
from jobledger.workers.attempt import delays
from jobledger.workers.attempt.claims import Claimed, Claimer, NotOurs, read_dispatch
from jobledger.workers.attempt.execution import Execution
from jobledger.workers.attempt.hooks import HookRunner
from jobledger.workers.attempt.retry_store import retry_store
from jobledger.workers.attempt.running import Running

logger = logging.getLogger("jobledger.workers.attempt")

_NOBODY_S: Final = 0.5
#: Ends of an attempt that only the holder of its claim can record.
_BY_ITS_HOLDER: Final = frozenset({"completed", "failed", "interrupted", "snoozed", "paused"})


#: While all processes of the pool are taken, a job is offered to other workers so often before it waits here.
_PROCESS_DELIVERIES: Final = 3
_PROCESS_DELAY_S: Final = 0.5


class Settlement(Protocol):
    """What an attempt says to the broker about its delivery; see `Intake`, which is the usual one."""

    def is_fresh(self, delivery: Delivery) -> bool:
        """Return whether the broker can still take the delivery to be ours."""
        ...

    def ack(self, delivery: Delivery) -> None:
        """Settle it for good."""
        ...

    def nak(self, delivery: Delivery, delay_s: float = 0.0) -> None:
        """Give it back."""
        ...

    def drop(self, delivery: Delivery) -> None:
        """Let it go without a word."""
        ...


class Attempts:
    """Carries deliveries through to their end; one per worker."""

    def __init__(
        self,
        ledger: Ledger,
        tasks: TaskRegistry,
        lease: LeaseKeeper,
        intake: Settlement,
        *,
        execution: Execution,
        hooks: HookRunner,
    ) -> None:
        self._ledger = ledger
        self._tasks = tasks
        self._lease = lease
        self._intake = intake
        self._execution = execution
        self._hooks = hooks
        self.running: dict[JobRef, Running] = {}
        self.fenced = 0  #: outcomes of ours that were refused because their claim was lost
        self._carried: set[int] = set()  # stream sequences of the dispatches under way
        self._claimer = Claimer(ledger, lease, self.running.__contains__)

    async def carry(self, delivery: Delivery) -> None:
        """Do all that is to be done about one delivery; never raises but for cancellation."""
        if delivery.stream_sequence in self._carried:
            # Delivered again while we are at it, perhaps before our claim is answered: it must not look like a
            # claim that we made and lost.
            self._intake.drop(delivery)
            return
        self._carried.add(delivery.stream_sequence)
        try:
            await self._carry(delivery)
        except LedgerFullError as error:
            logger.error("stream sequence %d: %s", delivery.stream_sequence, error)  # noqa: TRY400 - a sentence
            self._intake.nak(delivery, delays.full_ledger_s(delivery.delivered))
        except CorruptLedgerError as error:
            logger.error("%s", error)  # noqa: TRY400 - a sentence
            self._intake.nak(delivery, delays.unreadable_s(delivery.delivered))
        except (UnreachableError, WrongSequenceError) as error:
            logger.warning("stream sequence %d is left for a redelivery: %s", delivery.stream_sequence, error)
            self._intake.drop(delivery)
        except asyncio.CancelledError:
            # The worker's end, or a task that cancelled the very attempt it runs in; held, it would be kept alive.
            logger.warning(
                "stream sequence %d was cut off and is left for a redelivery", delivery.stream_sequence
            )
            self._intake.drop(delivery)
            raise
        except Exception:
            # Also for what nobody thought of: a delivery that is held for ever would keep its job from everybody.
            logger.exception("stream sequence %d is left for a redelivery", delivery.stream_sequence)
            self._intake.drop(delivery)
        finally:
            self._carried.discard(delivery.stream_sequence)

    async def _carry(self, delivery: Delivery) -> None:
        queued = read_dispatch(delivery)
        if queued.task not in self._tasks:
            await self._pass_on(delivery, queued)
            return
        identity = self._lease.identity
        if not self._intake.is_fresh(delivery):
            self._intake.drop(delivery)  # it may be somebody else's by now
            return
        if not self._lease.holds(identity):
            # We are nobody, until the next lease.
            self._intake.nak(delivery, delays.soon_s(_NOBODY_S, delivery.delivered))
            return
        task = self._tasks.get(queued.task)
        if task.rules.run_in != "process":
            await self._claim_and_run(delivery, queued, task, identity)
            return
        # A job that waits for a process is not claimed yet; at first it is left to workers that have one free.
        wait = delivery.delivered > _PROCESS_DELIVERIES
        async with self._execution.place(wait=wait) as free:
            if free:
                await self._claim_and_run(delivery, queued, task, identity)
            else:
                self._intake.nak(delivery, _PROCESS_DELAY_S)

    async def _claim_and_run(
        self, delivery: Delivery, queued: Queued, task: Task[Any, Any], identity: str
    ) -> None:
        verdict = await self._claimer.claim(delivery, queued)
        if not isinstance(verdict, Claimed):
            self._settle(delivery, verdict, queued)
        elif self._lease.holds(identity):
            await self._run(delivery, verdict, task, identity)
        else:
            self._finish(delivery, await self._give_back(verdict.chain))

    def _finish(self, delivery: Delivery, accepted: bool) -> None:  # noqa: FBT001 - what `_record` said
        """Ack after an accepted outcome; else the message is its new holder's, and an ack would settle theirs."""
        if accepted:
            self._intake.ack(delivery)
        else:
            self._intake.drop(delivery)

    def _settle(self, delivery: Delivery, verdict: NotOurs, queued: Queued) -> None:
        if verdict.ended is not None:
            self._announce(verdict.ended, self._lease.identity)
        if verdict.settle == "ack":
            self._intake.ack(delivery)
        elif verdict.settle == "nak":
            self._intake.nak(delivery, verdict.delay_s)
        else:
            self._keep(delivery, JobRef(queue=queued.queue, job_id=queued.job))

    def _keep(self, delivery: Delivery, ref: JobRef) -> None:
        """Hold a newer work item of a job that runs here, as an archive run makes one, until the attempt ends.

        Dropped, it would come again after every ack wait, and each delay of it would be longer than the last.
        """
        running = self.running.get(ref)
        if running is None:
            self._intake.drop(delivery)
            return
        if running.newer is not None:
            self._intake.drop(running.newer)
        running.newer = delivery

    async def _run(self, delivery: Delivery, claimed: Claimed, task: Task[Any, Any], identity: str) -> None:
        running = self._begin(claimed.chain, task, identity)
        self.running[running.ref] = running
        tracing = self._ledger.tracing
        try:
            if tracing is None:
                accepted = await self._run_and_record(task, running)
            else:
                with tracing.attempt(running.job) as span:
                    accepted = await self._run_and_record(task, running, span)
            self._finish(delivery, accepted)
            if running.newer is not None:
                self._finish(running.newer, accepted)
        finally:
            if running.newer is not None:
                self._intake.drop(running.newer)  # unless it was settled just now
            if self.running.get(running.ref) is running:
                del self.running[running.ref]

    def _begin(self, chain: JobView, task: Task[Any, Any], identity: str) -> Running:
        job = _job(chain)
        own_task = asyncio.current_task(self._ledger.connection.loop)
        assert own_task is not None
        in_thread = not task.is_async and task.rules.run_in != "process"
        ref = JobRef(queue=job.queue, job_id=job.id)
        if job.task in self._hooks.hooked:
            self._hooks.tell("start", job, worker=identity)
        return Running(ref=ref, task=own_task, in_thread=in_thread, identity=identity, chain=chain, job=job)

    async def _run_and_record(
        self, task: Task[Any, Any], running: Running, span: AttemptSpan | None = None
    ) -> bool:
        """Return whether the outcome was accepted; see `_record`."""
        outcome = await self._execute(task, running)
        running.recording = True
        if running.channel is not None:
            await running.channel.close()
        if span is not None:
            span.ended(outcome)
        return await self._record(running.newest_chain, outcome, running.identity)

    async def _execute(self, task: Task[Any, Any], running: Running) -> Outcome:
        """Run the task; an attempt that was told to stop ends as it was told."""
        job = running.job
        try:
            outcome = await self._execution.run(task, running)
        except (asyncio.CancelledError, AttemptStoppedError):
            if not running.stop_reason:
                raise
            running.task.uncancel()
            if running.cancelled:
                return ConfirmCancel(epoch=job.claim_epoch, reason=running.stop_reason)
            return Interrupt(epoch=job.claim_epoch, reason=running.stop_reason)
        if running.stalled:
            self._hooks.tell("stall", job, worker=running.identity, reason=running.stalled)
        return outcome

    def claims_held(self) -> dict[JobRef, int]:
        """Return job -> claim epoch of what runs now and was not told to stop."""
        return {
            ref: running.job.claim_epoch
            for ref, running in self.running.items()
            if not (running.stop_reason or running.recording)
        }

    def cancel(self, ref: JobRef, epoch: int, reason: str) -> None:
        """End a running attempt because somebody cancelled its job; one of another claim is left alone."""
        running = self.running.get(ref)
        if running is not None and running.job.claim_epoch == epoch:
            running.stop(reason or "cancelled", cancelled=True)

    def stalled(self, running: Running, blocked_s: float) -> None:
        """Tell the hooks that an attempt blocked the event loop."""
        reason = f"it blocked its worker's event loop for {blocked_s:.1f} s"
        self._hooks.tell("stall", running.job, worker=running.identity, reason=reason)

    async def _record(self, chain: JobView, outcome: Outcome, identity: str) -> bool:
        """Append the outcome on condition of the claim and return True; when it is lost, leave the receipt."""
        job, log = _job(chain), self._ledger.log
        try:
            try:
                after = await commit(log, chain, decide(job, outcome, self._ledger.stamp(identity)))
            except (LedgerFullError, UnreachableError, WrongSequenceError):
                after = await self._store(chain, outcome, identity)
        except (StaleClaimError, IllegalTransitionError, JobNotFoundError):  # not found: over, and archived
            if await self._is_recorded(job):
                return True
            await self._fence(job, outcome, identity)
            return False
        # Else nobody asked, and what it made need not be folded.
        if job.order.notify or job.task in self._hooks.hooked:
            self._announce(_job(after), identity)
        return True

    async def _store(self, chain: JobView, outcome: Outcome, identity: str) -> JobView:
        """Append what follows from the outcome, whatever trouble a first try met."""
        job, log = _job(chain), self._ledger.log
        ref = JobRef(queue=job.queue, job_id=job.id)
        return await retry_store(
            f"the outcome of job {job.id}",
            # `known`, so that no lagging replica's view, older than our claim, makes it look lost.
            lambda: transact(log, ref, outcome, lambda: self._ledger.stamp(identity), known=chain),
        )

    def _announce(self, job: Job, identity: str) -> None:
        """Tell whoever asked what became of the job: its enqueuer, and the hooks."""
        if job.is_final and job.order.notify:
            self._ledger.hints.tell(job.order.notify, JobRef(queue=job.queue, job_id=job.id))
        if job.state is JobState.COMPLETED:
            self._hooks.tell("success", job, worker=identity)
        elif job.attempts and job.attempts[-1].state == "failed":
            self._hooks.tell("failure", job, worker=identity, error=job.error, will_retry=not job.is_final)
        if job.state is JobState.DEAD_LETTERED:
            self._hooks.tell(
                "dead_letter", job, worker=identity, error=job.error, reason=job.dead_reason or ""
            )

    async def _is_recorded(self, job: Job) -> bool:
        """Return whether the claim came to an outcome all the same: ours, whose answer was lost for too long."""
        stored = (await load(self._ledger.log, JobRef(queue=job.queue, job_id=job.id))).job
        held = [] if stored is None else [each for each in stored.attempts if each.epoch == job.claim_epoch]
        return any(each.state in _BY_ITS_HOLDER for each in held)

    async def _fence(self, job: Job, outcome: Outcome, identity: str) -> None:
        refused = outcome_type(outcome)
        self.fenced += 1
        logger.warning(
            "job %s was taken over: our %s for attempt %d is refused", job.id, refused, len(job.attempts)
        )
        command = Fence(epoch=job.claim_epoch, attempt=len(job.attempts), worker=identity, outcome=refused)
        with contextlib.suppress(IllegalTransitionError, JobNotFoundError):
            await transact(
                self._ledger.log,
                JobRef(queue=job.queue, job_id=job.id),
                command,
                lambda: self._ledger.stamp(identity),
            )

    async def _give_back(self, chain: JobView) -> bool:
        job = _job(chain)
        command = Interrupt(
            epoch=job.claim_epoch, reason="the worker lost its lease while it claimed the job"
        )
        return await self._record(chain, command, job.attempts[-1].worker)

    async def _pass_on(self, delivery: Delivery, queued: Queued) -> None:
        """Offer a task that we do not have to other workers, and give it up when nobody has it."""
        if delivery.delivered < delays.UNKNOWN_TASK_DELIVERIES_MAX:
            logger.warning("task %r of job %s is not loaded here: passed on", queued.task, queued.job)
            self._intake.nak(delivery, delays.unknown_task_s(delivery.delivered))
            return
        ref = JobRef(queue=queued.queue, job_id=queued.job)
        message = (
            f"no worker of queue {queued.queue} knew task {queued.task!r} in {delivery.delivered} deliveries: "
            "start one with the module that holds it, then requeue the job"
        )
        error = ErrorInfo(kind="unknown_task", type="UnknownTaskError", message=message)
        verdict = await self._claimer.claim(delivery, queued)
        if isinstance(verdict, NotOurs):
            self._settle(delivery, verdict, queued)
            return
        epoch = _job(verdict.chain).claim_epoch
        command = Fail(epoch=epoch, error=error, give_up="rejected")
        self._finish(delivery, await self._record(verdict.chain, command, self._lease.identity))
        logger.error("job %s in %s is a dead letter: %s", ref.job_id, ref.queue, message)


def _job(chain: JobView) -> Job:
    job = chain.job
    assert job is not None, "a claimed chain has a job"
    return job
