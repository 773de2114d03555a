"""Running user code: async on the loop, sync in a thread, each within its limits; its end as one command."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from jobledger.ledger.context import Context
from jobledger.ledger.model.commands import Complete, ConfirmCancel, Fail, Outcome
from jobledger.ledger.model.commands import Snooze as SnoozeJob
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import (
    AttemptStoppedError,
    InvalidError,
    InvalidInputError,
    PayloadMissingError,
    PayloadTooLargeError,
)
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.json_text import check_text, encode_value
from jobledger.ledger.outcome import SNOOZE_S_MIN, Cancel, Retry, Snooze
from jobledger.ledger.tasks import Task
from jobledger.workers.attempt.channel import AttemptChannel
from jobledger.workers.attempt.retry_store import retry_store
from jobledger.workers.attempt.running import Running
from jobledger.workers.pool.child_process import ChildProcess, ChildStartError, Raised, Returned
from jobledger.workers.pool.messages import Call
from jobledger.workers.pool.pool import PoolClosedError, ProcessPool
from jobledger.workers.retry_policy import RetryPolicy, after, error_info, recordable
from jobledger.workers.surroundings import Surroundings

logger = logging.getLogger("jobledger.workers.attempt.execution")
_task_logger = logging.getLogger("jobledger.task")

T = TypeVar("T")

#: How long a job that needs a process is held while none can be started; then it is offered to other workers.
_NO_PROCESS_S: Final = 5.0
#: Results of these types are written by msgspec alone; any other may hold a Raw, which is written as it is.
_PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str})
_WISHES: Final = (Cancel, Retry, Snooze)


class _LimitReachedError(Exception):
    """The attempt's own limit is over; its text is what is recorded."""


class Execution:
    """Turns claimed attempts into outcomes; never raises for what a task does."""

    def __init__(self, ledger: Surroundings, threads: anyio.CapacityLimiter, judge: RetryPolicy) -> None:
        self._ledger = ledger
        self._threads = threads
        self._judge = judge
        self._pool: ProcessPool | None = None
        self._taken: dict[asyncio.Task[Any], ChildProcess] = {}  #: for the attempt that its task will make
        self._abandoned: set[Running] = set()

    @property
    def abandoned_threads(self) -> int:
        """How many threads run on although their attempt was ended; each keeps its slot until it is over."""
        return len(self._abandoned)

    def open(self, pool: ProcessPool | None) -> None:
        """Run tasks with `run_in="process"` in this pool from now on."""
        self._pool = pool

    @contextlib.asynccontextmanager
    async def place(self, *, wait: bool) -> AsyncGenerator[bool, None]:
        """Keep a process for an attempt of the present task, so that its limits begin when its work does.

        False: none is free, or none can be started, or the worker stops.
        """
        child = await self._take_process(wait=wait)
        if child is None:
            yield False
            return
        own_task = asyncio.current_task()
        assert own_task is not None
        self._taken[own_task] = child
        try:
            yield True
        finally:
            if self._taken.pop(own_task, None) is not None:  # there was no attempt
                self._process_pool.give_back(child)

    async def _take_process(self, *, wait: bool) -> ChildProcess | None:
        if not wait and self._process_pool.free <= 0:
            return None
        try:
            return await self._process_pool.take()
        except PoolClosedError:
            return None
        except ChildStartError:  # which the pool has logged; no attempt is spent on it
            await asyncio.sleep(_NO_PROCESS_S)
            return None

    async def run(self, task: Task[Any, Any], running: Running) -> Outcome:
        """Run the task on the job's input and return what to record.

        Raises: CancelledError or AttemptStoppedError when the attempt is told to stop, UnreachableError when a
        large input or result could not be moved.
        """
        job = running.job
        try:
            if job.order.input_ref is None:
                text = bytes(job.order.input)
            else:
                text = await self._ledger.inputs.get(job.order.input, job.order.input_ref)
            arguments = task.signature.decode(text)
            if task.rules.run_in == "process":
                return await self._run_in_process(task, running, text)
            if task.signature.context_parameter is not None:
                arguments[task.signature.context_parameter] = await self._context(running)
        except (InvalidInputError, PayloadMissingError, PayloadTooLargeError) as error:
            return Fail(epoch=job.claim_epoch, error=error_info("invalid_input", error), give_up="invalid")
        try:
            if task.is_async and job.order.timeout_s is None and task.rules.heartbeat_s is None:
                value = await task.function(**arguments)  # as below, without what is not needed
            else:
                value = await self._within(task, running, lambda: self._call(task, running, arguments))
        except _LimitReachedError as error:
            info = ErrorInfo(kind="timeout", type="TimeoutError", message=str(error))
            return self._judge.failed(job, task.rules, info, self._ledger.clock.now())
        except BaseException as error:
            if running.stop_reason and isinstance(error, asyncio.CancelledError | AttemptStoppedError):
                raise
            own_task = asyncio.current_task(self._ledger.connection.loop)
            if isinstance(error, asyncio.CancelledError) and own_task is not None and own_task.cancelling():
                raise  # we are told to stop; one that the task awaited or raised itself is its own failure
            # Whatever user code raises is this attempt's failure: a task must not end the worker.
            return self._judge.raised(job, task.rules, error, self._ledger.clock.now())
        return await self._outcome(task, job, value)

    async def _within(self, task: Task[Any, Any], running: Running, call: Callable[[], Awaitable[T]]) -> T:
        """Call within the attempt's limits, if it has any; a TimeoutError of the task's own stays what it is."""
        limit_s = running.job.order.timeout_s
        if limit_s is None and task.rules.heartbeat_s is None:
            return await call()
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                with self._signs_of_life(task, running):
                    return await call()
        except TimeoutError as error:
            if limit.expired():
                sentence = f"the attempt was stopped after its timeout of {limit_s:g} s"
                running.tell_thread(sentence)
                raise _LimitReachedError(sentence) from error
            raise

    @contextlib.contextmanager
    def _signs_of_life(self, task: Task[Any, Any], running: Running) -> Generator[None, None, None]:
        """End the attempt once it has given no sign of life for `heartbeat_s`."""
        limit_s, channel = task.rules.heartbeat_s, running.channel
        if limit_s is None or channel is None:
            yield
            return
        clock, loop = self._ledger.clock, self._ledger.connection.loop
        silent = False
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer, silent
            left = channel.heard_at + limit_s - clock.monotonic()
            if left > 0:
                timer = loop.call_later(left, look)
            else:
                silent = True
                running.task.cancel()

        channel.heard_at = clock.monotonic()
        timer = loop.call_later(limit_s, look)
        try:
            yield
        except asyncio.CancelledError as error:
            if not silent or running.stop_reason:
                raise
            running.task.uncancel()
            sentence = f"the attempt was stopped after {limit_s:g} s without a heartbeat"
            running.tell_thread(sentence)
            running.stalled = sentence
            raise _LimitReachedError(sentence) from error
        finally:
            timer.cancel()

    async def _call(self, task: Task[Any, Any], running: Running, arguments: dict[str, Any]) -> Any:
        if task.is_async:
            return await task.function(**arguments)
        return await self._call_in_thread(task, running, arguments)

    async def _call_in_thread(self, task: Task[Any, Any], running: Running, arguments: dict[str, Any]) -> Any:
        loop = self._ledger.connection.loop
        abandoned = ended = False

        def call() -> tuple[Any, BaseException | None]:
            nonlocal ended
            # As a value: thrown into a coroutine from outside, a GeneratorExit would close it.
            try:
                return task.function(**arguments), None
            except BaseException as error:  # noqa: BLE001 - raised again on the other side
                return None, error
            finally:
                ended = True
                if abandoned:
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
                        loop.call_soon_threadsafe(self._abandoned.discard, running)

        try:
            value, error = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        except asyncio.CancelledError:
            self._abandoned.add(running)
            abandoned = True
            if ended:  # it may have looked at `abandoned` just before
                self._abandoned.discard(running)
            raise
        if error is not None:
            raise error
        return value

    async def _run_in_process(self, task: Task[Any, Any], running: Running, text: bytes) -> Outcome:
        """Run the task in a process of the pool; whatever ends the wait ends the process."""
        job = running.job
        call = await self._process_call(task, running, text)
        try:
            child = self._taken.pop(running.task, None)
            result = await self._within(
                task, running, lambda: self._process_pool.run(call, running.channel, child=child)
            )
        except _LimitReachedError as error:
            info = ErrorInfo(kind="timeout", type="TimeoutError", message=str(error))
            return self._judge.failed(job, task.rules, info, self._ledger.clock.now())
        except (ChildStartError, PoolClosedError) as error:  # the one that was taken died before its call
            info = error_info("exception", error)
            return self._judge.failed(job, task.rules, info, self._ledger.clock.now())
        if isinstance(result, Returned):
            return await self._outcome(task, job, result.value)
        if isinstance(result, Raised) and not result.may_retry:
            return Fail(epoch=job.claim_epoch, error=result.error, give_up="rejected")
        return self._judge.failed(job, task.rules, result.error, self._ledger.clock.now())

    @property
    def _process_pool(self) -> ProcessPool:
        assert self._pool is not None, "a worker with such tasks opens a pool"
        return self._pool

    async def _process_call(self, task: Task[Any, Any], running: Running, text: bytes) -> Call:
        job = running.job
        if task.signature.context_parameter is not None:
            running.channel = AttemptChannel(self._ledger, running.chain, running.identity)
        checkpoint = job.checkpoint
        if job.checkpoint_ref is not None:
            checkpoint = msgspec.Raw(await self._ledger.inputs.get(checkpoint, job.checkpoint_ref))
        return Call(
            task=job.task,
            input=msgspec.Raw(text),
            job_id=job.id,
            queue=job.queue,
            attempt=job.attempts[-1].number,
            worker=running.identity,
            deadline=_deadline(job),
            checkpoint=checkpoint,
            trace="" if self._ledger.tracing is None else self._ledger.tracing.current(),
        )

    async def _context(self, running: Running) -> Context:
        job = running.job
        attempt = job.attempts[-1]
        extra = {"job": job.id, "queue": job.queue, "task": job.task, "attempt": attempt.number}
        running.channel = AttemptChannel(self._ledger, running.chain, running.identity)
        return Context(
            job_id=job.id,
            queue=job.queue,
            task=job.task,
            attempt=attempt.number,
            worker=attempt.worker,
            deadline=_deadline(job),
            logger=logging.LoggerAdapter(_task_logger, extra),
            channel=running.channel,
            checkpoint_value=await self._checkpoint_value(job),
        )

    async def _checkpoint_value(self, job: Job) -> Any:
        if job.checkpoint is NO_VALUE and job.checkpoint_ref is None:
            return None
        return msgspec.json.decode(await self._ledger.inputs.get(job.checkpoint, job.checkpoint_ref))

    async def _outcome(self, task: Task[Any, Any], job: Job, value: Any) -> Outcome:
        epoch = job.claim_epoch
        is_plain = type(value) in _PLAIN_TYPES
        if not is_plain and isinstance(value, _WISHES):
            return self._wish(task, job, value)
        what = f"result of task {task.name}"
        try:
            text = encode_value(value, what=what)
            if not is_plain:
                # Checked as text, too: a msgspec.Raw is written as it is, and what is no JSON would make the
                # event, and with it the whole chain, unreadable.
                check_text(text, what=what)
            if self._ledger.results.fits_inline(text, what=what):
                return Complete(epoch=epoch, result=msgspec.Raw(text))
            result, reference = await retry_store(
                f"the {what}", lambda: self._ledger.results.put(text, what=what)
            )
        except InvalidError as error:
            info = error_info("invalid_result", error)
            return self._judge.failed(job, task.rules, info, self._ledger.clock.now())
        return Complete(epoch=epoch, result=result, result_ref=reference)

    def _wish(self, task: Task[Any, Any], job: Job, value: Cancel | Retry | Snooze) -> Outcome:
        now = self._ledger.clock.now()
        if isinstance(value, Retry):
            return self._judge.asked_again(job, task.rules, value, now)
        if isinstance(value, Snooze):
            return SnoozeJob(epoch=job.claim_epoch, until=after(now, max(value.delay_s, SNOOZE_S_MIN)))
        reason = value.reason or "the task asked to be cancelled"
        return ConfirmCancel(epoch=job.claim_epoch, reason=recordable(reason))


def _deadline(job: Job) -> datetime | None:
    """When the running attempt times out, by this worker's clock."""
    return (
        None
        if job.order.timeout_s is None
        else job.attempts[-1].started_at + timedelta(seconds=job.order.timeout_s)
    )
