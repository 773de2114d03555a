"""The waits of one attempt: in memory if they are short or another branch works; otherwise the run parks.

When every branch waits, the run is recorded as paused and the attempt ends. `park` refuses if the events show that an
awaited step is over, so that the run misses nothing that came meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import datetime
from typing import Final

from jobledger.ledger.model.runs.steps import Step, is_over
from jobledger.ledger.runs.journal import RunJournal
from jobledger.ledger.runs.scopes import UNDO

#: A wait that ends within this time keeps its worker's slot, if no other job needs the slot.
LINGER_S: Final = 1.0
#: A timer of the event loop may fire this long before its time.
_SLACK_S: Final = 0.002
#: While another branch runs, the chain is read when a hint of an append comes, else at this interval.
_LOOK_EVERY_S: Final = 5.0
#: Stands for a step's key: the run waits until an operator resumes it, for which no step is recorded.
OPERATOR: Final = ""


class ParkSignal(BaseException):
    """The exception raised in every branch once the run's wait is recorded: the attempt ends. Code must not catch it.

    It is no `Exception`, like `asyncio.CancelledError`.
    """


class HaltSignal(BaseException):
    """The exception raised in every branch when the run has to end and must do nothing new. Code must not catch it."""


class _Waiter:
    __slots__ = ("future", "key", "linger_until")

    def __init__(self, key: str, future: asyncio.Future[None]) -> None:
        self.key = key
        self.future = future
        self.linger_until: float | None = None  #: loop time until which the slot is kept; None: undecided


class Waits:
    """The waits of the branches of one run."""

    def __init__(self, journal: RunJournal, undos: Callable[[], int]) -> None:
        """`undos`: returns the number of steps to undo if the run fails."""
        self._journal = journal
        self._undos = undos
        self._active = 1  # number of branches that do not wait
        self._waiting: list[_Waiter] = []
        self._keeper: asyncio.Task[None] | None = None
        self._is_parking = False
        self.is_parked = False

    def begin(self, branches: int) -> None:
        """Count further branches."""
        self._active += branches

    def end(self) -> None:
        """Count one branch less."""
        self._active -= 1
        self._journal.poke()

    async def until_over(self, key: str) -> Step:
        """Wait until a step is over and return it as it is then; `OPERATOR` is never over.

        Raises: ParkSignal, HaltSignal, and as `RunJournal.park`.
        """
        if not self._is_over(key):
            await self._wait(key)
        return self._journal.job.steps[key]

    async def for_operator(self) -> None:
        """Wait for the operator who asked the run to pause. Raises: as `until_over`."""
        await self._wait(OPERATOR)

    async def _wait(self, key: str) -> None:
        if self.is_parked:
            raise ParkSignal
        loop = asyncio.get_running_loop()
        waiter = _Waiter(key, loop.create_future())
        self._waiting.append(waiter)
        self._active -= 1
        if self._keeper is None or self._keeper.done():
            self._keeper = loop.create_task(self._keep())
        else:
            self._journal.poke()
        try:
            await waiter.future
        finally:
            self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        """Count a branch as active again from the moment at which it is woken, not only when it runs."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            self._active += 1

    def _is_over(self, key: str) -> bool:
        job = self._journal.job
        return key != OPERATOR and is_over(job.steps[key], job.signals, self._journal.now())

    async def _keep(self) -> None:
        """Wake branches whose steps are over, and park once nothing else is left to do."""
        try:
            while self._waiting and not self.is_parked:
                for waiter in [each for each in self._waiting if self._is_over(each.key)]:
                    self._leave(waiter)
                    if not waiter.future.done():  # else its branch was cancelled in the same turn of the loop
                        waiter.future.set_result(None)
                if not self._waiting:
                    return
                limit_s = self._in_memory_s()
                if limit_s > 0:
                    await self._journal.news(limit_s, look=limit_s >= _LOOK_EVERY_S)
                else:
                    await self._park()
        except Exception as error:  # noqa: BLE001 - any error is raised in the branches that wait
            self._fail(error)

    def _in_memory_s(self) -> float:
        """Return how long to wait in memory before the run's wait is recorded; 0: no longer."""
        left_s = max(self._left_s(self._moment()), _SLACK_S)
        if self._active > 0:
            return min(left_s, _LOOK_EVERY_S)
        if not self._journal.may_linger or any(each.key == OPERATOR for each in self._waiting):
            return 0.0
        now = asyncio.get_running_loop().time()
        for waiter in self._waiting:
            if waiter.linger_until is None:
                waiter.linger_until = now + self._linger_s(self._journal.job.steps[waiter.key])
        longest_s = max(each.linger_until or 0.0 for each in self._waiting) - now
        return min(left_s, longest_s)

    def _linger_s(self, step: Step) -> float:
        """Return how long to keep the slot for one wait: children may end at any moment, signals seldom come soon."""
        if step.order is not None:
            return LINGER_S
        left_s = self._left_s(_moment_of(step))
        return left_s + _SLACK_S if left_s <= LINGER_S else 0.0

    def _left_s(self, moment: datetime | None) -> float:
        return math.inf if moment is None else (moment - self._journal.now()).total_seconds()

    def _moment(self) -> datetime | None:
        steps = self._journal.job.steps
        moments = [_moment_of(steps[each.key]) for each in self._waiting if each.key != OPERATOR]
        return min((each for each in moments if each is not None), default=None)

    async def _park(self) -> None:
        keys = tuple(each.key for each in self._waiting if each.key != OPERATOR)
        self._is_parking = True
        try:
            self.is_parked = await self._journal.park(keys, self._moment(), self._undos())
        finally:
            self._is_parking = False
        if self.is_parked:
            self._fail(ParkSignal())
        elif self._journal.job.cancel_requested and any(not each.startswith(UNDO) for each in keys):
            self._fail(HaltSignal())

    def _fail(self, error: BaseException) -> None:
        for waiter in list(self._waiting):
            self._leave(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)
                waiter.future.exception()  # so that asyncio does not report it if the branch is cancelled now

    async def close(self) -> None:
        """End the waits in memory; let the recording of a pause finish first, since it ends the attempt."""
        keeper, cancelled = self._keeper, None
        if keeper is None:
            return
        if not self._is_parking:
            keeper.cancel()
        while not keeper.done():
            try:
                await asyncio.wait([keeper])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


def _moment_of(step: Step) -> datetime | None:
    return step.retry_at if step.state == "retrying" else step.until
