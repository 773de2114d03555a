"""One attempt, from a delivery to its settlement: read, claim, execute, record, settle.

A crash leaves a prefix of these steps, and the redelivery finishes them: the broker gets the ack only after the
outcome is in the ledger, and the worker that gets the redelivery reads in the ledger what was done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from jobledger.ledger.client import Ledger
from jobledger.ledger.lease_keeper import LeaseKeeper
from jobledger.ledger.logs import job_filter
from jobledger.ledger.model.chain import JobView
from jobledger.ledger.model.commands import ConfirmCancel, Fail, Interrupt, Outcome
from jobledger.ledger.model.errors import (
    AttemptStoppedError,
    CorruptLedgerError,
    LedgerFullError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.outage import Outage
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.tasks import Task, TaskRegistry
from jobledger.ledger.tracing import UNTRACED, AttemptSpan
from jobledger.workers import logs
from jobledger.workers.attempt import settlement as settlements
from jobledger.workers.attempt.abandoned import AbandonedSlots, stack_of_task
from jobledger.workers.attempt.claims import Claimer, read_dispatch
from jobledger.workers.attempt.control import Attempt, Control
from jobledger.workers.attempt.execution import Execution
from jobledger.workers.attempt.hooks import HookRunner
from jobledger.workers.attempt.intake import Intake
from jobledger.workers.attempt.kept import FAILED_BYTES_MAX, KeptChains
from jobledger.workers.attempt.pause_watch import PauseWatch
from jobledger.workers.attempt.recorder import Recorder
from jobledger.workers.attempt.settlement import ACK, DROP, JOIN, Settlement, nak

logger = logging.getLogger("jobledger.workers.attempt")

#: A job whose task needs a process is offered to other workers this many times before it waits for one here.
_PROCESS_DELIVERIES: Final = 3
_PROCESS_DELAY_S: Final = 0.5
#: Their frames are above those of every task.
_OWN_MODULES: Final = frozenset({__name__, Execution.__module__})


class Attempts:
    """Makes the attempts of one worker; without `intake` there is no broker to settle deliveries with."""

    def __init__(
        self,
        ledger: Ledger,
        tasks: TaskRegistry,
        lease: LeaseKeeper,
        intake: Intake | None,
        *,
        execution: Execution,
        hooks: HookRunner,
        abandoned: AbandonedSlots,
        cancel_grace_s: float,
        on_abandoned: Callable[[Attempt, asyncio.Task[None]], None],
        pauses: PauseWatch | None = None,
        kept: KeptChains | None = None,
        on_logged: Callable[[Attempt], None] = lambda _attempt: None,
    ) -> None:
        """`on_abandoned` gets an attempt whose task does not end, and the asyncio task that records its outcome.

        `kept`: chains of runs that were parked here. `pauses`: knows the queues whose jobs are given back; None where a
        person runs them past their queues. `on_logged` hears of the end of an attempt whose code logged something.
        """
        self._ledger = ledger
        self._tasks = tasks
        self._lease = lease
        self._intake = intake
        self._execution = execution
        self._hooks = hooks
        self._pauses = pauses
        failed = KeptChains(FAILED_BYTES_MAX)
        self._recorder = Recorder(ledger, hooks, failed)
        self.running: dict[JobRef, Attempt] = {}
        self._claimer = Claimer(
            ledger,
            lease,
            runs_here=self.running.__contains__,
            on_ended=self._recorder.on_ended_by_claim,
            kept=kept,
            failed=failed,
            passes_on=self._other_version,
        )
        #: Stream sequence of each delivery that is handled now -> the deliveries that are settled with it.
        self._handled: dict[int, list[Delivery]] = {}
        self.begun = 0  #: attempts
        self._abandoned = abandoned
        self._left: set[Attempt] = set()  #: abandoned, and their tasks run on
        self._cancel_grace_s = cancel_grace_s
        self._on_abandoned = on_abandoned
        self._on_logged = on_logged

    @property
    def fenced(self) -> int:
        """How many outcomes were refused because their claim was lost."""
        return self._recorder.fenced

    async def handle(self, delivery: Delivery) -> None:
        """Make the attempt that a delivery asks for and settle it; raises nothing but CancelledError."""
        if delivery.stream_sequence in self._handled:
            # Delivered again while it is handled, perhaps before its claim is answered: to handle it again would
            # mistake that claim for one that this worker made and lost.
            self._settle([delivery], DROP)
            return
        deliveries = self._handled[delivery.stream_sequence] = [delivery]
        settlement = DROP
        try:
            settlement = await self._attempt(delivery)
        except asyncio.CancelledError:  # the worker ends, or the task cancelled the attempt that it runs in
            self._cut_off(delivery)
            raise
        except Exception as error:  # noqa: BLE001 - a delivery that nobody settles would keep its job from everybody
            settlement = _after_trouble(error, delivery, self._ledger.connection.outage)
        finally:
            if self._handled.get(delivery.stream_sequence) is deliveries:  # else the attempt was abandoned
                del self._handled[delivery.stream_sequence]
                self._settle(deliveries, settlement)

    async def _attempt(self, delivery: Delivery) -> Settlement:
        """Read, claim, execute and record; return how the delivery is to be settled."""
        queued = read_dispatch(delivery)
        if queued is None:
            return ACK  # nobody can do anything with it
        task = self._tasks.find(queued.task)
        obstacle = self._obstacle(delivery, queued, task)
        if obstacle is not None:
            return obstacle
        async with self._execution.place(task, wait=delivery.delivered > _PROCESS_DELIVERIES) as has_place:
            if not has_place:  # a job that waits for a process is not claimed yet
                return nak(_PROCESS_DELAY_S)
            if (pauses := self._pauses) and queued.queue in pauses.states and pauses.holds_back(queued.queue):
                return nak(settlements.elsewhere_s(delivery.delivered))
            is_run = task is not None and task.makes_runs
            claimed = await self._claimer.claim(delivery, queued, is_run=is_run)
            if isinstance(claimed, Settlement):
                return self._join(delivery, queued) if claimed is JOIN else claimed
            task = self._of_version(claimed) if queued.version or (task and task.makes_runs) else task
            attempt = self._begin(claimed, task)
            try:
                with self._span(attempt.job) as span:
                    attempt.control.span = span
                    outcome = await self._execute(attempt)
                    if attempt.control.abandoned:
                        return DROP
                    span.ended(outcome)
                    if isinstance(outcome, Fail) and self._intake is not None:
                        few = delivery.delivered <= settlements.AGAIN_DELIVERIES_MAX
                        outcome = msgspec.structs.replace(outcome, offers_again=few)
                    return await self._recorder.record(attempt, outcome)
            finally:
                if not attempt.control.abandoned:
                    self._end(attempt)

    def _settle(self, deliveries: list[Delivery], settlement: Settlement) -> None:
        """Tell the broker what becomes of deliveries that were handled; nothing else does."""
        if self._intake is None or settlement is JOIN:
            return
        for delivery in deliveries:
            self._intake.settle(delivery, settlement)

    def _cut_off(self, delivery: Delivery) -> None:
        level = (
            logging.DEBUG if self._claimer.ends else logging.WARNING
        )  # a worker that ends tells how many, once
        logger.log(level, "stream sequence %d was cut off: left for a redelivery", delivery.stream_sequence)

    # The steps.

    def _obstacle(self, delivery: Delivery, queued: Queued, task: Task[Any, Any] | None) -> Settlement | None:
        """Return what becomes of a delivery that cannot be claimed here and now, None for one that can."""
        if self._intake is not None and not self._intake.is_fresh(delivery):
            return DROP  # the broker may have delivered it to somebody else by now
        if not self._lease.is_valid:
            return nak(settlements.no_lease_s(delivery.delivered))
        if task is not None or delivery.delivered >= settlements.UNKNOWN_TASK_DELIVERIES_MAX:
            return None
        facts = {"queue": queued.queue, "job": queued.job, "task": queued.task}
        logger.warning("task %r is not loaded here: the job is passed on", queued.task, extra=facts)
        return nak(settlements.unknown_task_s(delivery.delivered))

    def _other_version(self, job: Job, delivery: Delivery) -> Settlement | None:
        """Return what becomes of a delivery of a run whose version of the code is not loaded here."""
        if self._tasks.of_version(job.task, job.order.version) is not None:
            return None
        if delivery.delivered >= settlements.UNKNOWN_TASK_DELIVERIES_MAX:
            return None
        facts = {"queue": job.queue, "job": job.id, "task": job.task}
        version = job.order.version
        logger.warning(
            "version %r of workflow %r is not loaded here: the run is passed on",
            version,
            job.task,
            extra=facts,
        )
        return nak(settlements.unknown_task_s(delivery.delivered))

    def _of_version(self, chain: JobView) -> Task[Any, Any] | None:
        assert chain.job is not None, "a claimed chain has a job"
        return self._tasks.of_version(chain.job.task, chain.job.order.version)

    def _join(self, delivery: Delivery, queued: Queued) -> Settlement:
        """Hold a newer work item of a job that runs here, as an archive run makes one, until the attempt ends.

        Dropped, it would be delivered again after every ack wait, each time with a longer delay.
        """
        attempt = self.running[JobRef(queue=queued.queue, job_id=queued.job)]
        self._handled[attempt.job.dispatch_sequence].append(delivery)
        return JOIN

    def _begin(self, chain: JobView, task: Task[Any, Any] | None) -> Attempt:
        job = chain.job
        assert job is not None, "a claimed chain has a job"
        self.begun += 1
        own_task = asyncio.current_task(self._ledger.connection.loop)
        assert own_task is not None, "a coroutine runs in a task"
        attempt = Attempt(
            ref=JobRef(queue=job.queue, job_id=job.id),
            task=task,
            identity=job.attempts[-1].worker,
            chain=chain,
            job=job,
            own_task=own_task,
            control=Control(),
            on_told=self._see_that_it_ends,
        )
        self.running[attempt.ref] = attempt
        job_filter.current.set(attempt)
        return attempt

    def _end(self, attempt: Attempt) -> None:
        job_filter.current.set(None)  # else task, context and attempt hold each other until a collection
        if attempt.control.log is not None:
            self._on_logged(attempt)
        if self.running.get(attempt.ref) is attempt:  # else this worker's next identity took the job over
            del self.running[attempt.ref]

    def _span(self, job: Job) -> AbstractContextManager[AttemptSpan]:
        tracing = self._ledger.tracing
        return UNTRACED if tracing is None else tracing.attempt(job)

    async def _execute(self, attempt: Attempt) -> Outcome:
        """Run the task; an attempt that was told to stop ends as it was told."""
        job, control = attempt.job, attempt.control
        if not self._lease.holds(attempt.identity):
            reason = "the worker lost its lease while it claimed the job"
            return Interrupt(epoch=job.claim_epoch, reason=reason)
        if self._recorder.is_wordy:
            logs.tell_start(job)
        if job.task in self._hooks.hooked:
            if len(job.attempts) > 1 and job.attempts[-2].state == "lost":
                self._hooks.tell_lost(job, job.attempts[-2], goes_on=True)
            self._hooks.tell("start", job, worker=attempt.identity)
        try:
            outcome = await self._execution.run(attempt)
        except (asyncio.CancelledError, AttemptStoppedError):
            if not control.stop_reason:
                raise
            attempt.own_task.uncancel()
            return _as_told(attempt)
        if control.stalled and not control.abandoned:
            self._hooks.tell("stall", job, worker=attempt.identity, reason=control.stalled)
        return outcome

    # Attempts whose tasks swallow their cancellation.

    def _see_that_it_ends(self, attempt: Attempt) -> None:
        self._ledger.connection.loop.call_later(self._cancel_grace_s, self._end_overdue, attempt)

    def _end_overdue(self, attempt: Attempt) -> None:
        control = attempt.control
        if attempt.own_task.done() or control.returned or control.recording or control.abandoned:
            return
        if control.undoing and not control.stop_reason:
            return
        if attempt.on_loop:
            self._abandon(attempt)
        elif attempt.in_thread:
            attempt.cut()

    def _abandon(self, attempt: Attempt) -> None:
        """End an attempt without its task, which runs on in a slot that is not free."""
        attempt.control.abandoned = True
        stack = stack_of_task(attempt.own_task, _OWN_MODULES)
        sequence = attempt.job.dispatch_sequence
        # A new list, which shows `handle` that the deliveries are settled here.
        deliveries = self._handled[sequence] = list(self._handled[sequence])
        self._abandoned.add(attempt.own_task, attempt.name, stack)
        self._left.add(attempt)
        attempt.own_task.add_done_callback(lambda own_task: self._returned(attempt, own_task))
        ending = self._end_without_task(attempt, deliveries, stack)
        self._on_abandoned(attempt, self._ledger.connection.loop.create_task(ending))

    def _returned(self, attempt: Attempt, own_task: asyncio.Task[None]) -> None:
        self._left.discard(attempt)
        self._abandoned.discard(own_task)

    async def _end_without_task(self, attempt: Attempt, deliveries: list[Delivery], stack: str) -> None:
        """Record and settle as `handle` does; raises nothing but CancelledError."""
        control, settlement = attempt.control, DROP
        try:
            job_filter.current.set(attempt)
            if control.stop_reason:
                outcome = _as_told(attempt)
            else:
                outcome = self._execution.timed_out(attempt, stack)
                if control.stalled:
                    self._hooks.tell("stall", attempt.job, worker=attempt.identity, reason=control.stalled)
            if control.span is not None:
                control.span.ended(outcome)
                control.span.close()
            settlement = await self._recorder.record(attempt, outcome)
        except Exception as error:  # noqa: BLE001 - a delivery that nobody settles would keep its job from everybody
            settlement = _after_trouble(error, deliveries[0], self._ledger.connection.outage)
        finally:
            self._end(attempt)
            del self._handled[attempt.job.dispatch_sequence]
            self._settle(deliveries, settlement)

    # What others ask of the attempts that run.

    def made_by(self, task: asyncio.Task[Any]) -> Attempt | None:
        """Return the attempt whose code runs in an asyncio task; from any thread."""
        return next((each for each in [*self.running.values(), *self._left] if each.own_task is task), None)

    def claims_held(self) -> dict[JobRef, int]:
        """Return job -> claim epoch of what runs now and was not told to stop."""
        return {
            ref: attempt.job.claim_epoch
            for ref, attempt in self.running.items()
            if not (attempt.control.stop_reason or attempt.control.recording or attempt.control.undoing)
        }

    def end_claims(self) -> None:
        """Let claims that wait for room in the ledger give their deliveries back: the worker ends."""
        self._claimer.end()

    def cancel(self, ref: JobRef, epoch: int, reason: str) -> None:
        """Stop the attempt of a job that somebody cancelled; one of another claim is left alone."""
        attempt = self.running.get(ref)
        if attempt is not None and attempt.job.claim_epoch == epoch and not attempt.control.undoing:
            attempt.stop(reason or "cancelled", cancelled=True)

    def stop(self, reason: str, *, grace_s: float) -> None:
        """Stop every attempt; each job is given back, after `grace_s` also where the task does not end."""
        self._cancel_grace_s = min(self._cancel_grace_s, grace_s)
        for attempt in list(self.running.values()):
            attempt.stop(reason)

    def give_back(self, queue: str, reason: str) -> None:
        """Stop every attempt of a queue's jobs, which are given back."""
        for attempt in list(self.running.values()):
            if attempt.ref.queue == queue:
                attempt.stop(reason)

    def lose(self, identity: str) -> None:
        """Stop what was claimed under an identity whose lease is lost.

        A thread cannot be stopped: its task runs on, and the ledger judges its outcome.
        """
        for attempt in list(self.running.values()):
            if attempt.identity == identity and not attempt.in_thread:
                attempt.stop("the worker lost its lease")

    def stalled(self, attempt: Attempt, blocked_s: float) -> None:
        """Tell the hooks that an attempt blocked the event loop."""
        reason = f"it blocked its worker's event loop for {blocked_s:.1f} s"
        self._hooks.tell("stall", attempt.job, worker=attempt.identity, reason=reason)


def _as_told(attempt: Attempt) -> Outcome:
    """Return the end of an attempt that was told to stop."""
    control, epoch = attempt.control, attempt.job.claim_epoch
    if control.cancelled:
        return ConfirmCancel(epoch=epoch, reason=control.stop_reason)
    return Interrupt(epoch=epoch, reason=control.stop_reason)


def _after_trouble(error: Exception, delivery: Delivery, outage: Outage) -> Settlement:
    """Return what becomes of a delivery whose attempt could not be brought to an end; the log says why."""
    sequence, delivered = delivery.stream_sequence, delivery.delivered
    if isinstance(error, LedgerFullError):
        logger.log(outage.level(error), "stream sequence %d: %s", sequence, error)
        return nak(settlements.full_ledger_s(delivered))
    if isinstance(error, CorruptLedgerError):
        logger.error("%s", error)
        return nak(settlements.unreadable_s(delivered))
    if isinstance(error, UnreachableError | WrongSequenceError):
        logger.log(outage.level(error), "stream sequence %d is left for a redelivery: %s", sequence, error)
    else:
        logger.error("stream sequence %d is left for a redelivery", sequence, exc_info=error)
    return DROP
