"""The course of one step, from the call in a workflow's code to the recorded end: read `StepCall.run` from the top.

`Run.step` begins it. Recorded steps come from the passage, which keeps the requests of the code in order. Functions are
called and events are stored behind `RunJournal`, in a worker by `workers/runs/journal.py`. Nothing here survives the
worker: if it dies, the next attempt calls the workflow's function again, and each step continues from its record.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any

from jobledger.ledger.model.errors import AttemptStoppedError, InvalidError
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.runs.orders import StepKind
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.runs.errors import DivergedError, StepFailedError, StepInDoubtError
from jobledger.ledger.runs.passage import Passage, StepRequest, text_of
from jobledger.ledger.runs.steps import NOT_DONE, StepFunction
from jobledger.ledger.runs.waits import HaltSignal, ParkSignal


class StepCall:
    """One call of a step's function, through all its tries, now or from the record."""

    def __init__(
        self,
        passage: Passage,
        step: StepFunction[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        undoes: bool = False,
    ) -> None:
        self._passage = passage
        self._step = step
        self._args = args
        self._kwargs = kwargs
        self._kind: StepKind = "undo" if undoes else "once" if step.rules.once else "step"

    async def run(self, key: str) -> Any:
        """Return the function's result, read back by its annotation: the same in every attempt.

        Raises: StepFailedError, StepInDoubtError, DivergedError, ParkSignal, HaltSignal.
        """
        step, passage = self._step, self._passage
        # Is it recorded? Code that asks for something else than the recorded step, or that has to stop here, gets no
        # further.
        asked = await passage.ask(key, self._kind, step.target, self._digest())
        known, tries = asked.known, 0
        if known is not None and known.has_ended:
            return await self._recorded(known)
        if known is None:
            if step.rules.once:  # the beginning is recorded first: without an end the step is in doubt
                await passage.start(asked)
        elif known.state == "retrying":
            tries = known.tries
            if known.retry_at is not None:
                await passage.waits.until_over(key)
        else:  # an earlier attempt began it, and did not record its end
            found = await self._in_doubt(asked, known)
            if found is not NOT_DONE:
                return await self._end(asked, found, 1, 0.0)
        await self._get_ready()
        while True:
            tries += 1
            began = time.perf_counter()
            try:
                value = await self._call()
            except BaseException as error:  # any exception of the function is a failure of the try
                if _ends_attempt(error):
                    raise  # nothing is recorded, so the next attempt calls it again
                await self._fail(asked, error, tries)
            else:
                return await self._end(asked, value, tries, (time.perf_counter() - began) * 1_000)
            # The wait is in memory if it is short or another branch works; otherwise the run parks, which ends the
            # attempt.
            await passage.waits.until_over(key)

    # --- Parts that differ for a step that is called for several items, or that makes a table.

    def _digest(self) -> str:
        return self._step.digest(self._args, self._kwargs)

    def _read(self, text: bytes) -> Any:
        return self._step.read(text)

    async def _do(self) -> Any:
        return await self._passage.journal.call(self._step, self._args, self._kwargs)

    async def _get_ready(self) -> None:
        """Prepare the call; an error here does not fail the step."""

    # --- The parts of the course.

    async def _recorded(self, known: Step) -> Any:
        """Return the recorded result, or raise the recorded failure."""
        if known.state == "failed":
            error = self._passage.error_of(known)
            assert error is not None, "a step that failed says why"
            raise StepFailedError(known.key, error, known.tries)
        text = await self._passage.result_of(known)
        try:
            return self._read(text)
        except InvalidError as error:
            raise DivergedError(known.key, known.sequence, "with another result", str(error)) from error

    async def _in_doubt(self, asked: StepRequest, known: Step) -> Any:
        """Return the result of an earlier attempt, which the `on_doubt` function finds out, or NOT_DONE.

        Raises: StepInDoubtError.
        """
        on_doubt = self._step.rules.on_doubt
        if on_doubt == "retry" or self._kind != "once":
            return NOT_DONE
        if on_doubt == "fail":
            raise StepInDoubtError(self._passage.journal.job.id, asked.key, known.sequence)
        looks = StepFunction[..., Any](on_doubt, self._step.name)
        return await self._passage.journal.call(looks, self._args, self._kwargs)

    async def _call(self) -> Any:
        """Call the function in its time limit, once the run has a free place. Raises: its errors, _TimedOutError."""
        limit_s = self._step.rules.timeout_s
        async with self._passage.places:
            if limit_s is None:
                return await self._do()
            limit = asyncio.timeout(limit_s)
            try:
                async with limit:
                    return await self._do()
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise _TimedOutError(f"it was stopped after its timeout of {limit_s:g} s") from error

    async def _fail(self, asked: StepRequest, error: BaseException, tries: int) -> None:
        """Record a failed try, and the time of the next one. Raises: StepFailedError after the last try."""
        retry_at = self._retry_at(error, tries)
        info = _told(error) or self._passage.journal.describe(error)
        await self._passage.fail(asked, info, tries=tries, retry_at=retry_at)
        if retry_at is None:
            raise StepFailedError(asked.key, info, tries) from error

    def _retry_at(self, error: BaseException, tries: int) -> datetime | None:
        """Return the time of the next try, None after the last one."""
        rules, journal = self._step.rules, self._passage.journal
        if tries >= rules.max_attempts:
            return None
        if isinstance(error, FailedElsewhereError):
            may_retry = error.may_retry
        else:
            may_retry = isinstance(error, _TimedOutError) or rules.rules.may_retry(error)
        if not may_retry:
            return None
        return journal.now() + timedelta(seconds=rules.rules.backoff.delay_s(tries, journal.chance))

    async def _end(self, asked: StepRequest, value: Any, tries: int, took_ms: float) -> Any:
        """Record the result, and return it as later attempts will read it.

        Raises: StepFailedError for a result that cannot be recorded or read back, since another try would not help.
        """
        try:
            text = text_of(value, what=f"result of step {asked.key}")
            found = self._read(text)
            await self._passage.complete(asked, text, tries=tries, duration_ms=took_ms)
        except InvalidError as error:
            info = ErrorInfo(kind="invalid_result", type=type(error).__name__, message=str(error))
            await self._passage.fail(asked, info, tries=tries)
            raise StepFailedError(asked.key, info, tries) from error
        return found


class _TimedOutError(Exception):
    """A try reached the limit of its step."""


class FailedElsewhereError(Exception):
    """A function of a step raised an error in another process, which could send only its description."""

    def __init__(self, info: ErrorInfo, *, may_retry: bool) -> None:
        self.info = info
        self.may_retry = may_retry  #: whether to try again, by the step's `retry_on` and `give_up_on`
        super().__init__(f"{info.type}: {info.message}")


def _told(error: BaseException) -> ErrorInfo | None:
    """Return the description that an error has of itself, for the record."""
    if isinstance(error, FailedElsewhereError):
        return error.info
    if isinstance(error, _TimedOutError):
        return ErrorInfo(kind="timeout", type="TimeoutError", message=str(error))
    return None


def _ends_attempt(error: BaseException) -> bool:
    """Return whether an exception ends the attempt or the branch, and is no failure of the step."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, AttemptStoppedError | HaltSignal | ParkSignal)
