"""The execution of user code: async on the loop, sync in a thread, within its limits; its end becomes one command."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

import msgspec

from jobledger.ledger.children import Parent
from jobledger.ledger.model.commands import Complete, ConfirmCancel, Fail, Interrupt, Outcome
from jobledger.ledger.model.commands import Snooze as SnoozeJob
from jobledger.ledger.model.errors import (
    AttemptStoppedError,
    ConfigurationError,
    ErasedError,
    InvalidError,
    InvalidInputError,
    KeyUnavailableError,
    PayloadMissingError,
    PayloadTooLargeError,
)
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.json_text import check_text, encode_value
from jobledger.ledger.model.seals import kept_key, seal_value, unseal_value
from jobledger.ledger.model.trace import trace_id
from jobledger.ledger.outcome import SNOOZE_S_MIN, WISHES, Retry, Snooze, Wish
from jobledger.ledger.outcome import Fail as FailForGood
from jobledger.ledger.tasks import Task
from jobledger.workers.attempt.channel import AttemptChannel
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.retry_store import retry_store
from jobledger.workers.attempt.settlement import UNKNOWN_TASK_DELIVERIES_MAX
from jobledger.workers.attempt.threads import Threads
from jobledger.workers.pool.child_process import ChildProcess, ChildStartError, Result, TaskFailure, TaskValue
from jobledger.workers.pool.messages import Call
from jobledger.workers.pool.pool import PoolClosedError, ProcessPool
from jobledger.workers.retry_policy import RetryPolicy, after, error_info, recordable, unknown_task
from jobledger.workers.surroundings import Surroundings

# Attempts whose tasks run in a process of the pool: a process is held for one before its job is claimed.

#: How long a job that needs a process is held if none can be started; then it is offered to other workers.
_NO_PROCESS_S: Final = 5.0


class Processes:
    """One worker's process pool, as its attempts use it."""

    def __init__(self, pool: ProcessPool) -> None:
        self._pool = pool
        self._taken: dict[
            asyncio.Task[Any], ChildProcess
        ] = {}  #: reserved processes, by the asyncio task of their attempt

    @contextlib.asynccontextmanager
    async def place(self, *, wait: bool) -> AsyncGenerator[bool, None]:
        """Reserve a process for an attempt of the current asyncio task, so that its limits begin with its work.

        Yields False if none is free, none can be started, or the worker stops.
        """
        child = await self._take(wait=wait)
        if child is None:
            yield False
            return
        own_task = asyncio.current_task()
        assert own_task is not None, "a coroutine runs in a task"
        self._taken[own_task] = child
        try:
            yield True
        finally:
            if self._taken.pop(own_task, None) is not None:  # no attempt used the process
                self._pool.give_back(child)

    async def _take(self, *, wait: bool) -> ChildProcess | None:
        if not wait and self._pool.free <= 0:
            return None
        try:
            return await self._pool.take()
        except PoolClosedError:
            return None
        except ChildStartError:  # the pool has logged the error; no attempt is spent on it
            await asyncio.sleep(_NO_PROCESS_S)
            return None

    @property
    def have_modules(self) -> bool:
        """Whether the processes load the modules of the worker's tasks."""
        return self._pool.has_modules

    async def call(self, call: Call) -> Result:
        """Make a call in the next free process, as `ProcessPool.run`."""
        return await self._pool.run(call)

    async def run(self, attempt: Attempt, call: Call) -> Result:
        """Make the call in the process that was reserved for the attempt, as `ProcessPool.run`."""
        child = self._taken.pop(attempt.own_task, None)
        return await self._pool.run(call, attempt.control.channel, child=child)


logger = logging.getLogger("jobledger.workers.attempt.execution")

T = TypeVar("T")

#: The place of an attempt that needs no process.
_ANYWHERE: Final = contextlib.nullcontext(True)  # noqa: FBT003 - there is one
#: Results of these types are written by msgspec alone; any other may contain a Raw, which is written unchecked.
_PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str})


class LimitReachedError(Exception):
    """The attempt reached a limit of its own."""


class Runs(Protocol):
    """Makes the attempts of tasks that are workflows."""

    async def run(self, attempt: Attempt, task: Task[Any, Any], arguments: dict[str, Any]) -> Outcome:
        """Go on with a run; return the outcome to record, or the outcome recorded when it parked."""
        ...


class Execution:
    """Turns claimed attempts into outcomes; errors of a task become outcomes, too."""

    def __init__(self, ledger: Surroundings, threads: Threads, policy: RetryPolicy) -> None:
        self.ledger = ledger
        self.threads = threads
        self.policy = policy
        self._processes: Processes | None = None
        self.runs: Runs | None = None  #: makes the attempts of workflows

    def open(self, pool: ProcessPool) -> None:
        """Run tasks with `run_in="process"` in this pool from now on."""
        self._processes = Processes(pool)

    def place(self, task: Task[Any, Any] | None, *, wait: bool) -> AbstractAsyncContextManager[bool]:
        """Reserve a process for the attempt of a task that needs one; yields False if there is none."""
        if task is None or task.rules.run_in != "process":
            return _ANYWHERE
        return self._in_processes.place(wait=wait)

    @property
    def _in_runs(self) -> Runs:
        assert self.runs is not None, "whoever makes attempts gives it before the first one"
        return self.runs

    @property
    def _in_processes(self) -> Processes:
        assert self._processes is not None, "a worker with such tasks opens a pool"
        return self._processes

    async def call_in_process(self, call: Call, *, is_ours: bool = False) -> Result:
        """Make a call beside the attempts, in the next free process; `is_ours`: it needs no module of the application.

        Raises: ConfigurationError if this worker has no processes, ChildStartError, PoolClosedError.
        """
        if self._processes is None or not (is_ours or self._processes.have_modules):
            raise ConfigurationError(
                'a step with run_in="process" needs a worker that loads its module: '
                "use TaskRegistry.load([...]) instead of giving task objects"
            )
        return await self._processes.call(call)

    async def run(self, attempt: Attempt) -> Outcome:  # noqa: PLR0912 - the course of each attempt stands in one place
        """Run the task on the job's input and return the outcome to record.

        Raises: CancelledError or AttemptStoppedError when the attempt is told to stop, UnreachableError if a large
        input or result could not be read or stored.
        """
        job, task = attempt.job, attempt.task
        if task is None:
            fail = unknown_task(job, UNKNOWN_TASK_DELIVERIES_MAX)
            logger.error("job %s becomes a dead letter: %s", job.id, fail.error.message)
            return fail
        if job.order.key and attempt.control.key is None and (refused := await self._unlock(attempt)):
            return refused
        try:
            if job.order.input_ref is None and not job.order.key:
                text = bytes(job.order.input)
            else:
                text = await self._input(attempt)
            arguments = task.signature.decode(text)
            if task.rules.run_in == "process":
                return await self._run_in_process(attempt, task, text)
            if task.signature.context_parameter is not None:
                await self._hand_over(attempt, task, arguments, text)
        except (InvalidInputError, PayloadMissingError, PayloadTooLargeError) as error:
            return Fail(epoch=job.claim_epoch, error=error_info("invalid_input", error), give_up="invalid")
        if task.makes_runs:
            return await self._in_runs.run(attempt, task, arguments)
        try:
            if task.is_async and job.order.timeout_s is None and task.rules.heartbeat_s is None:
                value = await task.function(**arguments)  # the call below, for an attempt without limits
            else:
                value = await self.within(attempt, task, lambda: self._call(attempt, task, arguments))
        except LimitReachedError:
            return self.timed_out(attempt)
        except BaseException as error:  # any error of user code fails only this attempt, not the worker
            if is_stop(attempt, error):
                raise
            return self.policy.raised(job, task.rules, error, self.ledger.clock.now())
        return await self.outcome(attempt, task, value)

    async def _input(self, attempt: Attempt) -> bytes:
        """Return an input that is sealed, stored elsewhere, or both. Raises: as `Values.get`."""
        order, key = attempt.job.order, attempt.control.key
        if order.input_ref is None and key is not None:
            return unseal_value(key, bytes(order.input))
        return await self.ledger.inputs.get(order.input, order.input_ref, key=order.key)

    async def _unlock(self, attempt: Attempt) -> Outcome | None:
        """Get the key of the job's owner for the attempt; return the outcome to record if that fails."""
        job, keys = attempt.job, self.ledger.keys
        attempt.control.key = kept_key(keys, job.order.key)
        try:
            if attempt.control.key is not None:
                return None
            if keys is None:
                return Interrupt(epoch=job.claim_epoch, reason="no job that has an owner is run here")
            attempt.control.key = await keys.key(job.order.key)
        except ErasedError:
            return ConfirmCancel(epoch=job.claim_epoch, reason="erased")
        except (
            KeyUnavailableError
        ) as error:  # its attempt is given back, and the next claim waits for the key
            logger.warning("job %s is passed on: %s", job.id, error)
            return Interrupt(epoch=job.claim_epoch, reason="the key of its owner is not at hand here")
        return None

    async def within(self, attempt: Attempt, task: Task[Any, Any], call: Callable[[], Awaitable[T]]) -> T:
        """Call within the attempt's limits, if it has any.

        Raises: LimitReachedError, unless the cancelled task returned or raised something else.
        """
        limit_s, control = attempt.job.order.timeout_s, attempt.control
        if limit_s is None and task.rules.heartbeat_s is None:
            return await call()
        sentence = f"the attempt was stopped after its timeout of {limit_s or 0:g} s"
        timer = (
            None if limit_s is None else self.ledger.loop.call_later(limit_s, attempt.reach_limit, sentence)
        )
        try:
            with self._signs_of_life(attempt, task):
                return await call()
        except asyncio.CancelledError as error:
            if not control.limit or control.stop_reason:
                raise
            raise LimitReachedError from error
        finally:
            if timer is not None:
                timer.cancel()
            if control.limit:
                attempt.own_task.uncancel()

    @contextlib.contextmanager
    def _signs_of_life(self, attempt: Attempt, task: Task[Any, Any]) -> Generator[None, None, None]:
        """End the attempt once it has given no sign of life for `heartbeat_s`."""
        limit_s, channel = task.rules.heartbeat_s, attempt.control.channel
        if limit_s is None or channel is None:
            yield
            return
        clock, loop = self.ledger.clock, self.ledger.loop
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            left = channel.heard_at + limit_s - clock.monotonic()
            if left > 0:
                timer = loop.call_later(left, look)
            else:
                sentence = f"the attempt was stopped after {limit_s:g} s without a heartbeat"
                attempt.control.stalled = sentence
                attempt.reach_limit(sentence)

        channel.heard_at = clock.monotonic()
        timer = loop.call_later(limit_s, look)
        try:
            yield
        finally:
            timer.cancel()

    def _open_channel(self, attempt: Attempt) -> AttemptChannel:
        channel = AttemptChannel(
            self.ledger, attempt.chain, attempt.identity, on_pause=attempt.pause, key=attempt.control.key
        )
        attempt.control.channel = channel
        return channel

    async def _hand_over(
        self, attempt: Attempt, task: Task[Any, Any], arguments: dict[str, Any], text: bytes
    ) -> None:
        """Open the attempt's channel, and give a task its context."""
        channel = self._open_channel(attempt)
        parameter = task.signature.context_parameter
        if parameter is not None and not task.makes_runs:
            arguments[parameter] = (await self._call_of(attempt, text)).context(channel)

    async def _call_of(self, attempt: Attempt, text: bytes) -> Call:
        """Return the facts about its attempt for the task; `text` is the job's input."""
        job, tracing = attempt.job, self.ledger.tracing
        checkpoint, started_at = job.checkpoint, job.attempts[-1].started_at
        if job.checkpoint_ref is not None or job.order.key:
            key = job.order.key
            checkpoint = msgspec.Raw(await self.ledger.inputs.get(checkpoint, job.checkpoint_ref, key=key))
        return Call(
            task=job.task,
            input=msgspec.Raw(text),
            job_id=job.id,
            queue=job.queue,
            attempt=job.attempts[-1].number,
            worker=attempt.identity,
            claim_epoch=job.claim_epoch,
            deadline=None
            if job.order.timeout_s is None
            else started_at + timedelta(seconds=job.order.timeout_s),
            checkpoint=checkpoint,
            trace="" if tracing is None else tracing.current(),
            trace_id=trace_id(job.trace),
        )

    async def _call(self, attempt: Attempt, task: Task[Any, Any], arguments: dict[str, Any]) -> Any:
        if task.is_async:
            return await task.function(**arguments)
        return await self.threads.call(lambda: task.function(**arguments), name=attempt.name)

    async def _run_in_process(self, attempt: Attempt, task: Task[Any, Any], text: bytes) -> Outcome:
        """Run the task in a process of the pool; if this wait is cancelled, the process ends."""
        job, processes = attempt.job, self._in_processes
        if task.signature.context_parameter is not None:
            self._open_channel(attempt)
        call = msgspec.structs.replace(
            await self._call_of(attempt, text), parent=Parent.of(job, attempt.identity)
        )
        try:
            result = await self.within(attempt, task, lambda: processes.run(attempt, call))
        except LimitReachedError:
            return self.timed_out(attempt)
        except (ChildStartError, PoolClosedError) as error:  # the reserved process died before its call
            info = error_info("exception", error)
            return self.policy.failed(job, task.rules, info, self.ledger.clock.now())
        if isinstance(result, TaskValue):
            return await self.outcome(attempt, task, result.value)
        if isinstance(result, TaskFailure) and not result.may_retry:
            return Fail(epoch=job.claim_epoch, error=result.error, give_up="rejected")
        return self.policy.failed(job, task.rules, result.error, self.ledger.clock.now())

    def timed_out(self, attempt: Attempt, stack: str = "") -> Outcome:
        """Return the outcome of an attempt that reached a limit; `stack`: the stack of a task that does not end."""
        assert attempt.task is not None, "only a task reaches a limit"
        info = ErrorInfo(kind="timeout", type="TimeoutError", message=attempt.control.limit, traceback=stack)
        return self.policy.failed(attempt.job, attempt.task.rules, info, self.ledger.clock.now())

    async def outcome(self, attempt: Attempt, task: Task[Any, Any], value: Any) -> Outcome:
        """Return the outcome of a value that a task returned."""
        job, epoch = attempt.job, attempt.job.claim_epoch
        is_plain = type(value) in _PLAIN_TYPES
        if not is_plain and isinstance(value, WISHES):
            return self._wish(task, job, value)
        what = f"result of task {task.name}"
        try:
            text = encode_value(value, what=what)
            if not is_plain:
                # Checked as text, too: a msgspec.Raw is written unchecked, and text that is not JSON would make the
                # event, and with it the whole chain, unreadable.
                check_text(text, what=what)
            # A child's result goes to the store of inputs: its run may read it after other results are gone.
            results = self.ledger.results if job.order.member is None else self.ledger.inputs
            if results.fits_inline(text, what=what):
                key = attempt.control.key
                stored = text if key is None else seal_value(key, text)
                if key is None or results.fits_inline(stored, what=what):
                    return Complete(epoch=epoch, result=msgspec.Raw(stored))
            attempt.control.returned = True
            result, reference = await retry_store(
                f"the {what}",
                lambda: results.put(text, what=what, key=job.order.key),
                outage=self.ledger.outage,
            )
        except InvalidError as error:  # the work is done: another attempt would only do it again
            return Fail(epoch=epoch, error=error_info("invalid_result", error), give_up="rejected")
        return Complete(epoch=epoch, result=result, result_ref=reference)

    def _wish(self, task: Task[Any, Any], job: Job, value: Wish) -> Outcome:
        now = self.ledger.clock.now()
        if isinstance(value, Retry):
            return self.policy.asked_again(job, task.rules, value, now)
        if isinstance(value, FailForGood):
            error = ErrorInfo(kind="exception", type="Fail", message=recordable(value.reason))
            return Fail(epoch=job.claim_epoch, error=error, give_up="rejected")
        if isinstance(value, Snooze):
            return SnoozeJob(epoch=job.claim_epoch, until=after(now, max(value.delay_s, SNOOZE_S_MIN)))
        reason = "" if job.order.key else value.reason  # a reason is stored unsealed
        reason = reason or "the task asked to be cancelled"
        return ConfirmCancel(epoch=job.claim_epoch, reason=recordable(reason))


def is_stop(attempt: Attempt, error: BaseException) -> bool:
    """Whether the attempt ends because it was told to; a CancelledError raised by the task itself is a failure."""
    if isinstance(error, asyncio.CancelledError):
        return bool(attempt.control.stop_reason or attempt.own_task.cancelling())
    return isinstance(error, AttemptStoppedError) and bool(attempt.control.stop_reason)
