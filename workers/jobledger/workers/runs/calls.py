"""Calling the functions of steps in a worker: coroutines on its loop, others in its threads or processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from jobledger.ledger.logs import job_filter
from jobledger.ledger.model.errors import TaskDefinitionError
from jobledger.ledger.runs.calls import FailedElsewhereError
from jobledger.ledger.runs.steps import StepFunction
from jobledger.workers.attempt.control import Attempt
from jobledger.workers.attempt.execution import Execution
from jobledger.workers.attempt.threads import Threads
from jobledger.workers.pool.child_process import TaskFailure, TaskValue
from jobledger.workers.pool.messages import ENGINE, Call

#: What is called where a run asks for a step: the step itself in a worker, perhaps a stand-in in a test.
InPlaceOf = Callable[[StepFunction[..., Any]], StepFunction[..., Any]]


class StepCalls:
    """Calls the steps of the runs of one worker."""

    def __init__(
        self, execution: Execution, threads: Threads, in_place_of: InPlaceOf = lambda step: step
    ) -> None:
        self._execution = execution
        self._threads = threads
        self._in_place_of = in_place_of

    async def __call__(
        self, attempt: Attempt, step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function where the step's rules say, and return or raise what it does."""
        step = self._in_place_of(step)
        before = job_filter.step.set(step.name)
        try:
            if step.rules.rules.run_in == "process":
                return await self._in_process(attempt, step, args, kwargs)
            if step.is_async:
                return await step.function(*args, **kwargs)
            name = f"step {step.name} of {attempt.name}"
            return await self._threads.call(lambda: step.function(*args, **kwargs), name=name)
        finally:
            job_filter.step.reset(before)

    async def _in_process(
        self, attempt: Attempt, step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function in a process of the pool, which finds it by its name.

        Raises: FailedElsewhereError for what it raised there, InvalidInputError, ChildStartError, PoolClosedError.
        """
        function = step.function
        call = Call(
            task=attempt.job.task,
            step=f"{function.__module__}:{function.__qualname__}",
            input=msgspec.Raw(step.signature.encode(args, kwargs)),
            job_id=attempt.job.id,
            queue=attempt.job.queue,
            attempt=attempt.job.attempts[-1].number,
            worker=attempt.identity,
            claim_epoch=attempt.job.claim_epoch,
        )
        is_ours = function.__module__ == ENGINE
        result = await self._execution.call_in_process(call, is_ours=is_ours)
        if isinstance(result, TaskValue):
            if isinstance(result.value, msgspec.Raw):
                return result.value
            raise TaskDefinitionError(f"step {step.name} returned {result.value!r}, which only a task may")
        raise FailedElsewhereError(
            result.error, may_retry=not isinstance(result, TaskFailure) or result.may_retry
        )
