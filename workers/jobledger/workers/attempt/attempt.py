"""One attempt, from a delivery to its settlement: read, claim, execute, record, settle.

A crash leaves a prefix of these steps, and the redelivery finishes them: the broker gets the ack only after the
outcome is in the ledger, and the worker that gets the redelivery reads in the ledger which steps were done.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
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
    ErasedError,
    KeyUnavailableError,
    LedgerFullError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.seals import ValueKey, kept_key
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.nats.outage import Outage
from jobledger.ledger.nats.pull import Delivery
from jobledger.ledger.tasks import Task, TaskRegistry
from jobledger.workers import logs
from jobledger.workers.attempt import settlement as settlements
from jobledger.workers.attempt.abandoned import AbandonedSlots, stack_of_task
from jobledger.workers.attempt.claims import Claimer, read_dispatch
from jobledger.workers.attempt.control import Attempt, Control
from jobledger.workers.attempt.execution import Execution
from jobledger.workers.attempt.hooks import HookRunner
from jobledger.workers.attempt.intake import Intake
from jobledger.workers.attempt.kept_chains import FAILED_BYTES_MAX, KeptChains
from jobledger.workers.attempt.pause_watch import PauseWatch
from jobledger.workers.attempt.recorder import Recorder
from jobledger.workers.attempt.settlement import ACK, DROP, JOIN, Settlement, nak

logger = logging.getLogger("jobledger.workers.attempt")

#: A job whose task needs a process is offered to other workers this many times before it waits for one here.
_PROCESS_DELIVERIES: Final = 3
_PROCESS_DELAY_S: Final = 0.5
#: Their frames are above those of every task.
_OWN_MODULES: Final = frozenset({__name__, Execution.__module__})


class Work(msgspec.Struct, eq=False):
    """A delivery in work."""

    delivery: Delivery
    deliveries: list[Delivery]  #: the deliveries that are settled together, this one first
    own_task: asyncio.Task[None] | None = (
        None  #: the asyncio task that handles it; None before its claim is answered
    )
    is_left: bool = False  #: True: its attempt was abandoned, and another one settles it
    ran_s: float = 0.0  #: how long the code of an ordinary job ran
    key: ValueKey | None = None  #: the key of the job's owner, if it was in memory before the claim


class Attempts:
    """Makes the attempts of one worker; without `intake` no deliveries are settled at a broker."""

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
        on_settled: Callable[[], None],
        on_run: Callable[[float], None] = lambda _seconds: None,
        pauses: PauseWatch | None = None,
        kept: KeptChains | None = None,
        on_logged: Callable[[Attempt], None] = lambda _attempt: None,
    ) -> None:
        """`on_settled` is called for each delivery that is not in work any more, which frees a slot.

        `on_run` gets the run time of an ordinary job's code once its outcome is on its way: that frees a slot, too.
        `kept`: chains of runs that were parked here. `pauses`: knows the queues whose jobs are given back; None if a
        person runs jobs past their queues. `on_logged` is called at the end of an attempt whose code logged something.
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
        self._handled: dict[int, Work] = {}  # deliveries in work, by their stream sequence
        #: The tasks whose jobs need no process, and no look at the events of a run, before they are claimed.
        self._ordinary = {
            task.name: task for task in tasks if not (task.makes_runs or task.rules.run_in == "process")
        }
        self.begun = 0  #: attempts
        self._abandoned = abandoned
        self._left: set[Attempt] = set()  #: abandoned, and their tasks run on
        self._cancel_grace_s = cancel_grace_s
        self._on_settled = on_settled
        self._on_run = on_run
        self.recording = (
            0  #: deliveries whose code has returned, and which only wait until the outcome is stored
        )
        self._is_cut_off = False
        self._on_logged = on_logged

    @property
    def fenced(self) -> int:
        """The number of outcomes refused because their claim was lost."""
        return self._recorder.fenced

    def take(self, delivery: Delivery) -> None:
        """Read and claim the job of a delivery; called by the connection's reader, raises nothing.

        An ordinary job is claimed without an asyncio task: the answer to its claim starts the task in which its code
        runs, and the answer to its outcome settles the delivery. All work that may have to wait runs in a task.
        """
        if delivery.stream_sequence in self._handled:
            # Delivered again while it is handled, perhaps before its claim is answered: to handle it again would
            # mistake that claim for one that this worker made and lost.
            self._settle([delivery], DROP)
            return
        work = self._handled[delivery.stream_sequence] = Work(delivery, [delivery])
        try:
            queued = read_dispatch(delivery)
            if queued is None:
                self._conclude(work, ACK)  # no worker can use it
            elif (task := self._ordinary.get(queued.task)) and self._can_claim_at_once(work, queued):
                answered = functools.partial(self._on_claimed, work, queued, task)
                self._claimer.begin(delivery, queued, answered)
            else:
                self._go_on(work, self._attempt(work, queued))
        except Exception as error:  # noqa: BLE001 - a delivery that nobody settles would keep its job from everybody
            self._conclude(work, _after_trouble(error, delivery, self._ledger.connection.outage))

    def _on_claimed(
        self, work: Work, queued: Queued, task: Task[Any, Any], claimed: JobView | Exception
    ) -> None:
        """Go on with the answer to the claim of an ordinary job."""
        if self._is_cut_off:
            return
        if not isinstance(claimed, Exception):
            self._go_on(work, self._run(work, claimed, task))
        elif isinstance(claimed, LedgerFullError | WrongSequenceError):
            self._go_on(work, self._attempt(work, queued))  # waits for room, or reads the state of the job
        else:
            outage = self._ledger.connection.outage
            self._conclude(work, _after_trouble(claimed, work.delivery, outage))

    async def _attempt(self, work: Work, queued: Queued) -> Settlement | None:
        """Claim, execute and record; return the settlement of the delivery."""
        delivery, task = work.delivery, self._tasks.find(queued.task)
        work.key = None  # it may be destroyed by now
        obstacle = self._obstacle(delivery, queued, task) or await self._locked(delivery, queued)
        if obstacle is not None:
            return obstacle
        async with self._execution.place(task, wait=delivery.delivered > _PROCESS_DELIVERIES) as has_place:
            if not has_place:  # a job that waits for a process is not claimed yet
                return nak(_PROCESS_DELAY_S)
            if self._pauses is not None and self._pauses.holds_back(queued.queue):
                return nak(settlements.elsewhere_s(delivery.delivered))
            is_run = task is not None and task.makes_runs
            claimed = await self._claimer.claim(delivery, queued, is_run=is_run)
            if isinstance(claimed, Settlement):
                return self._join(delivery, queued) if claimed is JOIN else claimed
            task = self._of_version(claimed) if queued.version or (task and task.makes_runs) else task
            return await self._run(work, claimed, task)

    async def _run(self, work: Work, chain: JobView, task: Task[Any, Any] | None) -> Settlement | None:
        """Execute a claimed job and record its outcome; None: the answer to its outcome settles the delivery."""
        attempt, tracing = self._begin(work, chain, task), self._ledger.tracing
        settlement: Settlement | None = DROP
        try:
            if tracing is None:
                settlement = await self._execute_and_record(work, attempt)
            else:
                with tracing.attempt(attempt.job) as attempt.control.span:
                    settlement = await self._execute_and_record(work, attempt)
            return settlement
        finally:
            job_filter.current.set(None)  # otherwise task, context and attempt keep each other alive
            if settlement is not None and not attempt.control.abandoned:
                self._end(attempt)

    async def _execute_and_record(self, work: Work, attempt: Attempt) -> Settlement | None:
        now, control = self._ledger.connection.loop.time, attempt.control
        began = now()
        outcome = control.sealed(await self._execute(attempt))
        if control.abandoned:
            return DROP
        if control.span is not None:
            control.span.ended(outcome)
        if isinstance(outcome, Fail) and self._intake is not None:
            few = work.delivery.delivered <= settlements.AGAIN_DELIVERIES_MAX
            outcome = msgspec.structs.replace(outcome, offers_again=few)
        answered = functools.partial(self._on_recorded, work, attempt, outcome)
        if self._recorder.begin(attempt, outcome, answered):
            work.ran_s = now() - began
            return None
        return await self._recorder.record(attempt, outcome)

    def _on_recorded(self, work: Work, attempt: Attempt, outcome: Outcome, answer: int | Exception) -> None:
        """Settle the delivery of an ordinary job whose outcome is stored; otherwise find out whether it is."""
        self.recording -= 1
        if not isinstance(answer, Exception):
            self._end(attempt)
            self._conclude(work, ACK)
            self._recorder.tell_enqueuer(attempt.job)
        elif not self._is_cut_off:
            self._go_on(work, self._record_again(attempt, outcome))

    def _conclude(self, work: Work, settlement: Settlement) -> None:
        """Release a delivery that is done, with those that are settled with it."""
        del self._handled[work.delivery.stream_sequence]
        self._settle(work.deliveries, settlement)
        self._on_settled()

    def _settle(self, deliveries: list[Delivery], settlement: Settlement) -> None:
        """Send the broker the settlement of handled deliveries; only this method does so."""
        if self._intake is None or settlement is JOIN:
            return
        for delivery in deliveries:
            self._intake.settle(delivery, settlement)

    def _go_on(self, work: Work, steps: Coroutine[Any, Any, Settlement | None]) -> None:
        """Take further steps with a delivery in a task of its own."""
        work.own_task = self._ledger.connection.loop.create_task(self._see_through(work, steps))

    async def _see_through(self, work: Work, steps: Coroutine[Any, Any, Settlement | None]) -> None:
        """Take steps and settle the delivery by their result; raises only CancelledError."""
        settlement: Settlement | None = DROP
        try:
            settlement = await steps
        except asyncio.CancelledError:  # the worker ends, or the task cancelled its own attempt
            self._cut_off(work.delivery)
            raise
        except Exception as error:  # noqa: BLE001 - as in `take`
            settlement = _after_trouble(error, work.delivery, self._ledger.connection.outage)
        finally:
            if settlement is None:
                self.recording += 1
                self._on_run(work.ran_s)
            elif not work.is_left:
                self._conclude(work, settlement)

    def _cut_off(self, delivery: Delivery) -> None:
        level = (
            logging.DEBUG if self._claimer.ends else logging.WARNING
        )  # a worker that ends logs only their number
        logger.log(level, "stream sequence %d was cut off: left for a redelivery", delivery.stream_sequence)

    async def _record_again(self, attempt: Attempt, outcome: Outcome) -> Settlement:
        """Record an outcome whose first append failed: it is decided and appended again, on the same condition."""
        job_filter.current.set(attempt)
        try:
            return await self._recorder.record(attempt, outcome)
        finally:
            job_filter.current.set(None)
            self._end(attempt)

    # The steps.

    def _obstacle(self, delivery: Delivery, queued: Queued, task: Task[Any, Any] | None) -> Settlement | None:
        """Return the settlement of a delivery that cannot be claimed here and now; None if it can."""
        if self._intake is not None and not self._intake.is_fresh(delivery):
            return DROP  # the broker may have delivered it to another worker by now
        if not self._lease.is_valid:
            return nak(settlements.no_lease_s(delivery.delivered))
        if task is not None or delivery.delivered >= settlements.UNKNOWN_TASK_DELIVERIES_MAX:
            return None
        facts = {"queue": queued.queue, "job": queued.job, "task": queued.task}
        logger.warning("task %r is not loaded here: the job is passed on", queued.task, extra=facts)
        return nak(settlements.unknown_task_s(delivery.delivered))

    async def _locked(self, delivery: Delivery, queued: Queued) -> Settlement | None:
        """Return the settlement of a job whose values this worker cannot read; None otherwise, and for erased ones."""
        if not queued.key:
            return None
        try:
            await self._ledger.keys.key(queued.key)
        except ErasedError:
            return None
        except KeyUnavailableError as error:
            facts = {"queue": queued.queue, "job": queued.job, "task": queued.task}
            logger.warning("the job is passed on: %s", error, extra=facts)
            return nak(settlements.unknown_task_s(delivery.delivered))
        return None

    def _can_claim_at_once(self, work: Work, queued: Queued) -> bool:
        """Whether a job of an ordinary task can be claimed at once, because the delivered event is its whole chain."""
        if queued.key:
            work.key = kept_key(self._ledger.keys, queued.key)
        return (
            queued.cause == "new"
            and (not queued.key or work.key is not None)
            and work.delivery.delivered == 1
            and not queued.version
            and self._lease.is_valid
            and self._intake is not None  # else the task runs in the context of the caller
            and not (self._pauses and self._pauses.states and self._pauses.holds_back(queued.queue))
            and not self._ledger.throttle.holds_claims()
        )

    def _other_version(self, job: Job, delivery: Delivery) -> Settlement | None:
        """Return the settlement of a run's delivery whose version of the code is not loaded here."""
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
        """Hold a newer work item of a job that runs here, such as one from an archive run, until the attempt ends.

        If it were dropped, it would be delivered again after every ack wait, each time with a longer delay.
        """
        attempt = self.running[JobRef(queue=queued.queue, job_id=queued.job)]
        self._handled[attempt.job.dispatch_sequence].deliveries.append(delivery)
        return JOIN

    def _begin(self, work: Work, chain: JobView, task: Task[Any, Any] | None) -> Attempt:
        job = chain.job
        own_task = work.own_task or asyncio.current_task(
            self._ledger.connection.loop
        )  # an eager task begins before `own_task` is set
        assert job is not None, "a claimed chain has a job"
        assert own_task is not None, "a coroutine runs in a task"
        self.begun += 1
        attempt = Attempt(
            ref=JobRef(queue=job.queue, job_id=job.id),
            task=task,
            identity=job.attempts[-1].worker,
            chain=chain,
            job=job,
            own_task=own_task,
            control=Control(key=work.key),
            on_told=self._see_that_it_ends,
        )
        self.running[attempt.ref] = attempt
        job_filter.current.set(attempt)
        return attempt

    def _end(self, attempt: Attempt) -> None:
        if attempt.control.log is not None:
            self._on_logged(attempt)
        if (
            self.running.get(attempt.ref) is attempt
        ):  # else this worker took the job over under its next identity
            del self.running[attempt.ref]

    async def _execute(self, attempt: Attempt) -> Outcome:
        """Run the task; an attempt that was told to stop ends accordingly."""
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
        """End an attempt without its task, which runs on and keeps its slot."""
        attempt.control.abandoned = True
        stack = stack_of_task(attempt.own_task, _OWN_MODULES)
        sequence = attempt.job.dispatch_sequence
        work = self._handled[sequence]
        work.is_left = True
        left = self._handled[sequence] = Work(work.delivery, work.deliveries)
        self._abandoned.add(attempt.own_task, attempt.name, stack)
        self._left.add(attempt)
        attempt.own_task.add_done_callback(lambda own_task: self._returned(attempt, own_task))
        self._go_on(left, self._end_without_task(attempt, stack))

    def _returned(self, attempt: Attempt, own_task: asyncio.Task[None]) -> None:
        self._left.discard(attempt)
        self._abandoned.discard(own_task)

    async def _end_without_task(self, attempt: Attempt, stack: str) -> Settlement:
        """Record the outcome of an attempt whose task does not end; return the settlement of its delivery."""
        control = attempt.control
        try:
            job_filter.current.set(attempt)
            if control.stop_reason:
                outcome = _as_told(attempt)
            else:
                outcome = control.sealed(self._execution.timed_out(attempt, stack))
                if control.stalled:
                    self._hooks.tell("stall", attempt.job, worker=attempt.identity, reason=control.stalled)
            if control.span is not None:
                control.span.ended(outcome)
                control.span.close()
            return await self._recorder.record(attempt, outcome)
        finally:
            job_filter.current.set(None)
            self._end(attempt)

    # Requests of others to running attempts.

    def made_by(self, task: asyncio.Task[Any]) -> Attempt | None:
        """Return the attempt whose code runs in an asyncio task; may be called from any thread."""
        return next((each for each in [*self.running.values(), *self._left] if each.own_task is task), None)

    def claims_held(self) -> dict[JobRef, int]:
        """Return job -> claim epoch of the running attempts that were not told to stop."""
        return {
            ref: attempt.job.claim_epoch
            for ref, attempt in self.running.items()
            if not (attempt.control.stop_reason or attempt.control.recording or attempt.control.undoing)
        }

    @property
    def active(self) -> int:
        """The number of deliveries in work."""
        return len(self._handled)

    def cut_off(self) -> list[asyncio.Task[None]]:
        """Cancel all work, and ignore later answers; return the tasks that are about to end."""
        self._is_cut_off = True
        tasks = [work.own_task for work in self._handled.values() if work.own_task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def end_claims(self) -> None:
        """Make claims that wait for room in the ledger give their deliveries back: the worker ends."""
        self._claimer.end()

    def cancel(self, ref: JobRef, epoch: int, reason: str) -> None:
        """Stop the attempt of a job that somebody cancelled; an attempt of another claim is left alone."""
        attempt = self.running.get(ref)
        if attempt is not None and attempt.job.claim_epoch == epoch and not attempt.control.undoing:
            attempt.stop(reason or "cancelled", cancelled=True)

    def stop(self, reason: str, *, grace_s: float) -> None:
        """Stop every attempt; each job is given back, after `grace_s` even if the task does not end."""
        self._cancel_grace_s = min(self._cancel_grace_s, grace_s)
        for attempt in list(self.running.values()):
            attempt.stop(reason)

    def give_back(self, queue: str, reason: str) -> None:
        """Stop every attempt of a queue's jobs, which are given back."""
        for attempt in list(self.running.values()):
            if attempt.ref.queue == queue:
                attempt.stop(reason)

    def lose(self, identity: str) -> None:
        """Stop attempts that were claimed under an identity whose lease is lost.

        A thread cannot be stopped: its task runs on, and the ledger decides on its outcome.
        """
        for attempt in list(self.running.values()):
            if attempt.identity == identity and not attempt.in_thread:
                attempt.stop("the worker lost its lease")

    def stalled(self, attempt: Attempt, blocked_s: float) -> None:
        """Call the hooks for an attempt that blocked the event loop."""
        reason = f"it blocked its worker's event loop for {blocked_s:.1f} s"
        self._hooks.tell("stall", attempt.job, worker=attempt.identity, reason=reason)


def _as_told(attempt: Attempt) -> Outcome:
    """Return the end of an attempt that was told to stop."""
    control, epoch = attempt.control, attempt.job.claim_epoch
    if control.cancelled:
        return ConfirmCancel(epoch=epoch, reason=control.stop_reason)
    return Interrupt(epoch=epoch, reason=control.stop_reason)


def _after_trouble(error: Exception, delivery: Delivery, outage: Outage) -> Settlement:
    """Return the settlement of a delivery whose attempt could not be finished; log the reason."""
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
