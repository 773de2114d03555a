"""From a claimed attempt of a run to its outcome: run its function, undo steps if necessary, return the outcome."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec

from jobledger.ledger.derived_jobs import is_of_run, moved
from jobledger.ledger.model.commands import Complete, ConfirmCancel, Enqueue, Fail, Interrupt, Outcome
from jobledger.ledger.model.decision_parts.facts import MENDABLE
from jobledger.ledger.model.errors import (
    JobExistsError,
    LedgerFullError,
    UnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.model.events import DeadReason, ErrorInfo, ErrorKind
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.seals import unseal_error
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.runs.ends import RunEnd, sentence_of
from jobledger.ledger.runs.errors import (
    ChildFailedError,
    DivergedError,
    RerunSourceError,
    RunTooLongError,
    StepFailedError,
    StepInDoubtError,
)
from jobledger.ledger.runs.passage import Passage, Undo
from jobledger.ledger.runs.run import Run
from jobledger.ledger.runs.scopes import UNDO, Branch
from jobledger.ledger.runs.step_call import StepCall
from jobledger.ledger.runs.successor import Again
from jobledger.ledger.runs.waits import HaltSignal, ParkSignal
from jobledger.ledger.runs.workflow import WorkflowFunction
from jobledger.ledger.tables.errors import TableExpiredError
from jobledger.ledger.tasks import Task
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.execution import LimitReachedError, is_stop
from jobledger.workers.reactors.children.creation import ChildIdTakenError
from jobledger.workers.retry_policy import error_info
from jobledger.workers.runs.copies import copy_steps
from jobledger.workers.runs.journal import AttemptJournal, RunSurroundings

T = TypeVar("T")


class RunExecution:
    """Makes the attempts of runs for one worker."""

    def __init__(self, shared: RunSurroundings) -> None:
        self._shared = shared
        self._journals: dict[JobRef, AttemptJournal] = {}

    def on_hint(self, ref: JobRef) -> None:
        """Take a hint that somebody appended to the chain of a run."""
        journal = self._journals.get(ref)
        if journal is not None:
            journal.on_hint()

    async def run(self, attempt: Attempt, task: Task[Any, Any], arguments: dict[str, Any]) -> Outcome:
        """Go on with a run after its recorded steps; return the outcome to record, or the one recorded when it parked.

        Raises: as `Execution.run`; LedgerFullError, UnreachableError when a step could not be recorded.
        """
        workflow = cast("WorkflowFunction[..., Any, ..., Any]", task)  # only workflows have runs
        channel = attempt.control.channel
        assert channel is not None, "it was opened for the attempt"
        journal = AttemptJournal(self._shared, attempt, channel)
        self._journals[attempt.ref] = journal
        try:
            return await _Play(self._shared, attempt, workflow, journal).run(arguments)
        finally:
            journal.release()
            if self._shared.kept is not None and attempt.control.recorded is not None:
                self._shared.kept.keep(attempt.ref, attempt.newest_chain)
            if self._journals.get(attempt.ref) is journal:
                del self._journals[attempt.ref]


class _Play:
    """One attempt of one run."""

    def __init__(
        self,
        shared: RunSurroundings,
        attempt: Attempt,
        task: WorkflowFunction[..., Any, ..., Any],
        journal: AttemptJournal,
    ) -> None:
        job = attempt.job
        #: Whether an earlier attempt began to undo what was done: nothing else is left to do.
        self._is_undone = UNDO in job.steps
        self._shared = shared
        self._attempt = attempt
        self._task = task
        self._journal = journal
        self._was_cut_off = False  #: it was told to end or reached its limit, at any point
        self._passage = self._new_passage(is_ending=job.cancel_requested or self._is_undone)

    def _new_passage(self, *, is_ending: bool) -> Passage:
        parallel = self._task.workflow.parallel
        return Passage(self._journal, self._task.signature, parallel=parallel, is_ending=is_ending)

    async def run(self, arguments: dict[str, Any]) -> Outcome:
        """Play the function, and undo what it did if the run is to end otherwise than completed.

        If the server prevents a write or a read, the run has not failed: this costs no attempt.
        """
        control, journal = self._attempt.control, self._journal
        try:
            outcome = await self._play(self._passage, arguments)
            if control.recorded is not None:
                return control.recorded
            if journal.trouble is not None:
                return Interrupt(epoch=journal.epoch, reason=str(journal.trouble))
            if self._is_failure(outcome):
                if self._was_cut_off:
                    await self._register_undos()
                if self._passage.undos:
                    outcome = await self._undo(outcome)
            return await self._call_back(outcome)
        except (LedgerFullError, UnreachableError, WrongSequenceError) as error:
            if journal.trouble is None:
                raise
            return Interrupt(epoch=journal.epoch, reason=str(error))

    async def _play(self, passage: Passage, arguments: dict[str, Any]) -> Outcome:
        passage.bind(self._attempt.own_task, Branch())
        parameter = self._task.signature.context_parameter
        assert parameter is not None, "a workflow takes a Run"
        play = functools.partial(self._task.function, **arguments, **{parameter: Run(passage)})
        if passage.is_ending or self._attempt.job.order.rerun_of is None:
            return await self._outcome_of(play)

        async def copy_and_play() -> Any:
            await copy_steps(self._journal)
            passage.look()
            return await play()

        return await self._outcome_of(copy_and_play)

    async def _register_undos(self) -> None:
        """Play the recorded steps again: a function that was cut off may not have said how to undo what it had done."""
        attempt, journal = self._attempt, self._journal
        self._hear_nothing_more()
        await journal.refresh()
        order = attempt.job.order
        text = await journal.get(order.input, order.input_ref)
        self._passage = self._new_passage(is_ending=True)
        await self._play(self._passage, self._task.signature.decode(text))

    def _hear_nothing_more(self) -> None:
        """Ignore requests to end the attempt, since it is ending the run: only the end of the worker stops it."""
        control = self._attempt.control
        control.undoing, control.cancelled, control.stop_reason, control.limit = True, False, "", ""

    async def _outcome_of(self, function: Callable[[], Awaitable[Any]]) -> Outcome:
        """Return the outcome that follows from any end of the function."""
        attempt, execution = self._attempt, self._shared.execution
        try:
            value = await execution.within(attempt, self._task, lambda: self._closed(function))
            if self._passage.diverged is not None:
                raise self._passage.diverged  # noqa: TRY301 - the function caught it
            return await self._returned(value)
        except LimitReachedError:
            self._was_cut_off = True
            return execution.timed_out(attempt)
        except BaseException as error:  # any error that the run's code raises is its failure
            control = attempt.control
            if control.recorded is None and self._passage.diverged is None and is_stop(attempt, error):
                if not control.cancelled:
                    raise
                attempt.own_task.uncancel()
                self._was_cut_off = True
                return ConfirmCancel(epoch=self._journal.epoch, reason=control.stop_reason)
            return self._raised(self._passage.diverged or error)

    async def _closed(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run code of the run; what it leaves waiting in memory ends with it."""
        try:
            return await function()
        finally:
            await self._passage.waits.close()

    async def _returned(self, value: Any) -> Outcome:
        if self._passage.is_ending and any(each.kind == "undo" for each in self._journal.job.steps.values()):
            return self._halted()
        if isinstance(value, Again):
            return await self._begin_next(value)
        outcome = await self._shared.execution.outcome(self._attempt, self._task, value)
        if isinstance(outcome, Complete) and self._passage.unvisited:
            return msgspec.structs.replace(outcome, unvisited=self._passage.unvisited)
        return outcome

    async def _begin_next(self, again: Again) -> Outcome:
        """Record the end of this run and the beginning of the next one, as one."""
        journal = self._journal
        value, reference = await journal.put(again.input, what=f"input of run {again.successor}")
        order = msgspec.structs.replace(
            self._attempt.job.order, input=value, input_ref=reference, notify="", rerun_of=None, unique=""
        )
        complete = Complete(
            epoch=journal.epoch,
            result=msgspec.Raw(b"null"),
            unvisited=self._passage.unvisited,
            successor=again.successor,
        )
        ref = JobRef(queue=journal.job.queue, job_id=again.successor)
        await journal.end(complete, Enqueue(ref=ref, task=journal.job.task, order=order))
        return complete

    def _raised(self, error: BaseException) -> Outcome:
        """Return the outcome for the error that ended the function."""
        if isinstance(error, ParkSignal | HaltSignal):
            return self._halted()
        for kinds, kind, reason in _GIVEN_UP:
            if isinstance(error, kinds):
                return Fail(epoch=self._journal.epoch, error=error_info(kind, error), give_up=reason)
        job, rules = self._journal.job, self._task.rules
        fail = self._shared.execution.policy.raised(job, rules, error, self._journal.now())
        if isinstance(error, StepFailedError):
            info = msgspec.structs.replace(error.error, message=f"step {error.key!r}: {error.message}"[:2000])
            fail = msgspec.structs.replace(fail, error=info)
        # `retry_on` says that another attempt helps: only the author knows the effects of the code outside of steps.
        is_sure = self._is_undone or (not rules.retry_on and self._fails_as_before(job, fail.error))
        if is_sure and fail.give_up is None and job.attempts_left:
            fail = msgspec.structs.replace(fail, give_up="rejected")
        return fail

    def _fails_as_before(self, job: Job, error: ErrorInfo) -> bool:
        """Whether the last failed attempt had the same error, and no step was recorded since: then a replay fails again."""
        failed = [at for at, each in enumerate(job.attempts) if each.state == "failed"]
        last = job.attempts[failed[-1]].error if failed else None
        if last is not None and (key := self._journal.key) is not None:
            last = unseal_error(key, last)
        if last is None or (last.type, last.message) != (error.type, error.message):
            return False
        since = job.attempts[failed[-1] + 1].epoch  # the running attempt follows the failed one
        return all(step.sequence < since for step in job.steps.values())

    def _halted(self) -> Outcome:
        """Return the outcome of a run whose steps were undone, or that has nothing to undo."""
        job, epoch = self._journal.job, self._journal.epoch
        if self._is_undone:
            error = self._passage.error_of(job.steps[UNDO])
            assert error is not None, "it is recorded with what the run failed for"
            return Fail(epoch=epoch, error=error, give_up="rejected")
        return ConfirmCancel(epoch=epoch, reason=job.cancel_reason)

    # Undo.

    def _is_failure(self, outcome: Outcome) -> bool:
        """Whether an outcome ends the run uncompleted; a failure from which mended code can go on does not."""
        if isinstance(outcome, Fail) and outcome.error.kind not in MENDABLE:
            job = self._journal.job
            return outcome.give_up is not None or not job.attempts_left or job.cancel_requested
        return isinstance(outcome, ConfirmCancel)

    async def _undo(self, outcome: Outcome) -> Outcome:
        """Take back what was done, the newest first, then return the outcome; after a crash the next attempt goes on."""
        control = self._attempt.control
        self._hear_nothing_more()
        if isinstance(outcome, Fail) and not self._is_undone:
            await self._record_why(outcome.error)
        failed: list[StepFailedError] = []

        async def undo_all() -> None:
            with self._passage.enter("undo"):
                for undo in reversed(self._passage.undos):
                    try:
                        await self._take_back(undo)
                    except StepFailedError as error:
                        failed.append(error)

        with contextlib.suppress(ParkSignal):  # the run parked until an undo's next try: see `recorded` below
            await self._closed(undo_all)
        if control.recorded is not None:
            return control.recorded
        if failed:
            return Fail(epoch=self._journal.epoch, error=_both(outcome, failed), give_up="rejected")
        return outcome

    async def _call_back(self, outcome: Outcome) -> Outcome:
        """Record the end and enqueue its callback as one; an end before a requeue may have enqueued it already."""
        children, job = self._shared.children, self._journal.job
        if self._attempt.control.recorded is not None or children is None or not job.order.on_end:
            return outcome
        if isinstance(outcome, Complete) or self._is_failure(outcome):
            begin = await children.callback(job, self._end(outcome))
            while begin is not None:
                try:
                    await self._journal.end(outcome, begin)
                    break
                except JobExistsError:
                    known, _ = await self._journal.read(begin.ref)
                    if not known or is_of_run(begin, job.id)(known[0].event):
                        break
                    begin = moved(begin)
        return outcome

    def _end(self, outcome: Outcome) -> RunEnd:
        job = self._journal.job
        told: dict[str, Any] = {"state": "completed"}
        if isinstance(outcome, ConfirmCancel) or job.cancel_requested:
            told = {"state": "cancelled", "error": getattr(outcome, "reason", "") or job.cancel_reason}
        elif isinstance(outcome, Fail):
            told = {"state": "dead_lettered", "error": sentence_of(outcome.error)}
        elif isinstance(outcome, Complete):
            large = outcome.result_ref is not None
            told |= {"result": None if large else outcome.result, "result_ref": outcome.result_ref}
        return RunEnd(id=job.id, queue=job.queue, task=job.task, **told)

    async def _take_back(self, undo: Undo) -> None:
        call = StepCall(self._passage, undo.step, undo.args, undo.kwargs, undoes=True)
        await call.run(undo.key)

    async def _record_why(self, error: ErrorInfo) -> None:
        """Record that the run undoes its steps, and why, so that no later attempt goes forward again."""
        asked = await self._passage.ask(UNDO, "undo", "run")
        await self._passage.fail(asked, error)


#: Errors that another attempt would only meet again.
_GIVEN_UP: tuple[tuple[type[BaseException], ErrorKind, DeadReason], ...] = (
    (DivergedError, "diverged", "diverged"),
    (StepInDoubtError, "in_doubt", "rejected"),
    (ChildFailedError, "child_failed", "rejected"),
    (ChildIdTakenError, "exception", "rejected"),
    (RunTooLongError, "exception", "rejected"),
    (RerunSourceError, "exception", "rejected"),
    (TableExpiredError, "exception", "rejected"),
)


def _both(outcome: Outcome, failed: list[StepFailedError]) -> ErrorInfo:
    """Return an error that names the cause of the run's end and the undos that failed."""
    undone = "; ".join(str(each) for each in failed)
    why = (
        f"{outcome.error.type}: {outcome.error.message}" if isinstance(outcome, Fail) else "it was cancelled"
    )
    return ErrorInfo(
        kind="exception", type="UndoFailedError", message=f"the run ended ({why}), and {undone}"[:2000]
    )
