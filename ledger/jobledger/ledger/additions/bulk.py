"""The appends of one stream of jobs: as many in flight as may be, counted as their answers come."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable
from typing import Final, TypeVar

import msgspec

from jobledger.ledger.additions.comparison import Compare
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import (
    AppendOutcomeUnknownError,
    InputMismatchError,
    UnreachableError,
    WrongSequenceError,
)

T = TypeVar("T")
#: The timeout is put off by at least this much: to put it off for each answer takes longer than to count the answer.
_PUT_OFF_S: Final = 0.1
#: How many inputs whose ids have other inputs are named one by one, beside the first.
_MISMATCHES_MAX: Final = 100


class OrderedJob(msgspec.Struct, frozen=True, gc=False):
    """One of many jobs to begin."""

    command: Enqueue
    compare: Compare | None  #: is asked where its id is taken


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `enqueue_many` did."""

    created: int
    existing: int  #: ids that were in the queue already
    last_sequence: int  #: highest stream sequence among the created; 0 when none was


class Bulk:
    """The appends of one `enqueue_many` that have no answer yet, the oldest first, at most `in_flight_max`.

    An append that lost its race usually means that the job exists. A server that is silent for `silent_s_max` is waited
    for no longer, however many appends are in flight and whenever they were sent.
    """

    def __init__(
        self,
        in_flight_max: int,
        silent_s_max: float,
        begin_again: Callable[[OrderedJob], Awaitable[tuple[int, bool]]],
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._in_flight_max = in_flight_max
        self._silent_s_max = silent_s_max
        self._begin_again = begin_again
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[OrderedJob, asyncio.Future[int], float]] = (
            deque()
        )  # with the time of the loop
        self._heard_at = 0.0  # when an answer came last that was waited for
        self._taken = 0  # how many answers were taken
        self._mismatches: list[InputMismatchError] = []
        self._mismatch_count = 0
        self._created = 0
        self._existing = 0
        self._last_sequence = 0

    @property
    def is_full(self) -> bool:
        """Whether no more may be submitted before there is room."""
        return len(self._waiting) >= self._in_flight_max

    async def make_room(self) -> None:
        """Wait until more may be submitted."""
        await self._collect(self._in_flight_max // 2)

    def add(self, ordered: OrderedJob, appended: asyncio.Future[int]) -> None:
        """Keep count of one job's first event, which was submitted."""
        self._waiting.append((ordered, appended, self._loop.time()))

    async def _collect(self, count: int) -> None:
        refused: list[tuple[int, OrderedJob]] = []
        silence = asyncio.timeout(None)
        try:
            async with silence:
                await self._answers(min(count, len(self._waiting)), refused, silence)
        except TimeoutError as error:
            if not silence.expired():
                raise
            message = (
                f"the server gave no answer within {self._silent_s_max:g} s, so it is not known which of the jobs were "
                "stored: send the same jobs again; one that has an id of your own is not made twice"
            )
            raise AppendOutcomeUnknownError(message) from error
        again = [self._begin_again(ordered) for _, ordered in refused]
        answers = await asyncio.gather(*again, return_exceptions=True)
        for (number, _), found in zip(refused, answers, strict=True):
            if isinstance(found, InputMismatchError):
                self._keep(found, number)
                continue
            if isinstance(found, BaseException):
                raise found
            sequence, created = found
            self._created += created
            self._existing += not created
            if created:
                self._last_sequence = max(self._last_sequence, sequence)
        if self._on_progress is not None:
            self._on_progress(self._created + self._existing + self._mismatch_count)

    def _keep(self, error: InputMismatchError, number: int) -> None:
        error.number = number
        self._mismatch_count += 1
        if len(self._mismatches) <= _MISMATCHES_MAX:
            self._mismatches.append(error)

    async def _answers(
        self, count: int, refused: list[tuple[int, OrderedJob]], silence: asyncio.Timeout
    ) -> None:
        """Take the answers of the oldest `count`; put those that lost their race into `refused`, each with its number."""
        ends_at = 0.0
        first, self._taken = self._taken, self._taken + count
        for number in range(first, first + count):
            ordered, appended, sent_at = self._waiting.popleft()
            waits = not appended.done()
            end = max(self._heard_at, sent_at) + self._silent_s_max
            if waits and end > ends_at + _PUT_OFF_S:
                silence.reschedule(end)
                ends_at = end
            try:
                sequence = await appended
            except WrongSequenceError:
                refused.append((number, ordered))
            else:
                self._created += 1
                self._last_sequence = max(self._last_sequence, sequence)
            if waits:  # others came at a time that nobody knows
                self._heard_at = self._loop.time()

    async def drain(self) -> None:
        """Wait for the rest."""
        try:
            await self._collect(len(self._waiting))
        except BaseException as error:  # cancelled, too: no append stays in flight that nobody waits for
            await self.abandon(error)
            raise

    async def abandon(self, error: BaseException) -> None:
        """Wait until nothing is in flight, whatever comes of it, since what was sent may be stored; `error` is why.

        It does not wait for a server that did not answer in time.
        """
        rest = [appended for _, appended, _ in self._waiting]
        self._waiting.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if isinstance(error, UnreachableError) else self._silent_s_max):
                await asyncio.gather(*rest, return_exceptions=True)

    def require_matching(self) -> None:
        """Raise the InputMismatchError of the first mismatched input; the error holds the others and their number."""
        if not self._mismatches:
            return
        error, *others = self._mismatches
        error.others = tuple(others)
        more = f", and so do {self._mismatch_count - 1:,} other inputs" if others else ""
        counts = f"enqueued beside them: {self._created:,}; there already: {self._existing:,}"
        error.args = (f"input {error.number}: {error}{more} ({counts})",)
        raise error

    def result(self) -> BulkResult:
        """Return the counts."""
        return BulkResult(created=self._created, existing=self._existing, last_sequence=self._last_sequence)


async def numbered(inputs: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield each input with its number; close a generator of inputs with this one, so its `finally` runs in time."""
    number = 0
    try:
        if isinstance(inputs, AsyncIterable):
            async for values in inputs:
                yield number, values
                number += 1
        else:
            for values in inputs:
                yield number, values
                number += 1
    finally:
        if isinstance(inputs, AsyncGenerator):
            await inputs.aclose()
        elif isinstance(inputs, Generator):
            inputs.close()
