"""Running user code: async on the loop, sync in a thread, each within its time limit; its end as one command."""

from __future__ import annotations

import asyncio
import logging
import traceback
from datetime import timedelta
from typing import Any, Final, cast

import anyio
import anyio.to_thread

from jobledger.ledger.chain import Chain
from jobledger.ledger.client import Ledger
from jobledger.ledger.commands import Complete, ConfirmCancel, Fail, Outcome
from jobledger.ledger.context import Context
from jobledger.ledger.errors import InvalidError, InvalidInputError, PayloadMissingError
from jobledger.ledger.events import ErrorInfo, ErrorKind
from jobledger.ledger.job import Job
from jobledger.ledger.json_text import check_text, encode_value
from jobledger.ledger.outcome import Cancel, Retry
from jobledger.ledger.tasks import Task
from jobledger.workers.patience import patiently

_logger = logging.getLogger("jobledger.task")

_MESSAGE_MAX: Final = 2_000
_TRACEBACK_MAX: Final = 16_000


class _AttemptTimeoutError(Exception):
    """The attempt's own limit is over; its text is what is recorded."""


class Execution:
    """Turns one claimed attempt into its outcome; never raises for what the task does."""

    def __init__(self, ledger: Ledger, threads: anyio.CapacityLimiter) -> None:
        self._ledger = ledger
        self._threads = threads

    async def run(self, task: Task[Any, Any], chain: Chain) -> Outcome:
        """Run the task on the job's input and return what to record.

        Raises: CancelledError when the attempt is told to stop, UnreachableError when a large input or result
        could not be moved.
        """
        job = chain.job
        assert job is not None, "a claimed chain has a job"
        epoch = job.claim_epoch
        try:
            arguments = task.signature.decode(await self._ledger.inputs.get(job.input, job.input_ref))
        except (InvalidInputError, PayloadMissingError) as error:
            return Fail(epoch=epoch, error=_error("invalid_input", error, ""), give_up="invalid")
        if task.signature.context_parameter is not None:
            arguments[task.signature.context_parameter] = self._context(job)
        try:
            if job.timeout_s is None:
                value = await self._call(task, arguments)
            else:
                value = await self._call_within(job.timeout_s, task, arguments)
        except _AttemptTimeoutError as error:
            return Fail(epoch=epoch, error=ErrorInfo(kind="timeout", type="TimeoutError", message=str(error)))
        except BaseException as error:
            own_task = asyncio.current_task(self._ledger.connection.loop)
            if isinstance(error, asyncio.CancelledError) and own_task is not None and own_task.cancelling():
                raise  # we are told to stop; one that the task awaited or raised itself is its own failure
            # Whatever user code raises is this attempt's failure: a task must not end the worker.
            return Fail(epoch=epoch, error=describe(error))
        return await self._outcome(task, epoch, value)

    async def _call_within(self, limit_s: float, task: Task[Any, Any], arguments: dict[str, Any]) -> Any:
        """Call with a limit; a TimeoutError of the task's own stays what it is."""
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await self._call(task, arguments)
        except TimeoutError as error:
            if limit.expired():
                sentence = f"the attempt was stopped after its timeout of {limit_s:g} s"
                raise _AttemptTimeoutError(sentence) from error
            raise

    async def _call(self, task: Task[Any, Any], arguments: dict[str, Any]) -> Any:
        if task.is_async:
            return await task.function(**arguments)

        def call() -> tuple[Any, BaseException | None]:
            # As a value: thrown into a coroutine from outside, a GeneratorExit would close it.
            try:
                return task.function(**arguments), None
            except BaseException as error:  # noqa: BLE001 - raised again on the other side
                return None, error

        value, error = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        if error is not None:
            raise error
        return value

    def _context(self, job: Job) -> Context:
        attempt = job.attempts[-1]
        deadline = None if job.timeout_s is None else attempt.started_at + timedelta(seconds=job.timeout_s)
        extra = {"job": job.id, "queue": job.queue, "task": job.task, "attempt": attempt.number}
        return Context(
            job_id=job.id,
            queue=job.queue,
            task=job.task,
            attempt=attempt.number,
            worker=attempt.worker,
            deadline=deadline,
            logger=logging.LoggerAdapter(_logger, extra),
            channel=cast("Any", None),
        )

    async def _outcome(self, task: Task[Any, Any], epoch: int, value: Any) -> Outcome:
        if isinstance(value, Cancel):
            return ConfirmCancel(epoch=epoch, reason=value.reason or "the task asked to be cancelled")
        if isinstance(value, Retry):
            return Fail(epoch=epoch, error=ErrorInfo(kind="exception", type="Retry", message=value.reason))
        what = f"result of task {task.name}"
        try:
            # Checked as text, too: a msgspec.Raw is written as it is, and what is no JSON would make the event,
            # and with it the whole chain, unreadable.
            text = check_text(encode_value(value, what=what), what=what)
            result, reference = await patiently(
                f"the {what}", lambda: self._ledger.results.put(text, what=what)
            )
        except InvalidError as error:
            return Fail(epoch=epoch, error=_error("invalid_result", error, ""))
        return Complete(epoch=epoch, result=result, result_ref=reference)


def describe(error: BaseException) -> ErrorInfo:
    """Return what is recorded of an exception: its type, its words, the frames of user code; all cut to size."""
    text = "".join(traceback.format_exception(type(error), error, _user_frames(error)))
    return _error("exception", error, text[-_TRACEBACK_MAX:])


def _user_frames(error: BaseException) -> Any:
    """Leave out the frames of the worker itself."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in _OWN_MODULES:
        frames = frames.tb_next
    return frames or error.__traceback__


_OWN_MODULES: Final = frozenset({__name__, "anyio.to_thread", "anyio._backends._asyncio"})


def _error(kind: ErrorKind, error: BaseException, text: str) -> ErrorInfo:
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001 - a broken __str__ must not hide the failure it belongs to
        message = f"(its text cannot be shown: {type(broken).__name__})"
    return ErrorInfo(kind=kind, type=type(error).__name__, message=message[:_MESSAGE_MAX], traceback=text)
