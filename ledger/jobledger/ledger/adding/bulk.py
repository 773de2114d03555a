"""The appends of one stream of jobs: as many in flight as may be, counted as their answers come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable
from typing import TypeVar

import msgspec

from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import WrongSequenceError

T = TypeVar("T")


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `enqueue_many` did."""

    created: int
    existing: int  #: ids that were in the queue already
    last_sequence: int  #: highest stream sequence among the created; 0 when none was


class Bulk:
    """The appends of one `enqueue_many` that have no answer yet, the oldest first, at most `in_flight_max`.

    An append that lost its race usually means that the job exists.
    """

    def __init__(
        self,
        in_flight_max: int,
        begin_again: Callable[[Enqueue], Awaitable[tuple[int, bool]]],
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._in_flight_max = in_flight_max
        self._begin_again = begin_again
        self._on_progress = on_progress
        self._waiting: deque[tuple[Enqueue, asyncio.Future[int]]] = deque()
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

    def add(self, command: Enqueue, appended: asyncio.Future[int]) -> None:
        """Keep count of one job's first event, which was submitted."""
        self._waiting.append((command, appended))

    async def _collect(self, count: int) -> None:
        refused: list[Enqueue] = []
        for _ in range(min(count, len(self._waiting))):
            command, appended = self._waiting.popleft()
            try:
                sequence = await appended
            except WrongSequenceError:
                refused.append(command)
                continue
            self._created += 1
            self._last_sequence = max(self._last_sequence, sequence)
        for found in await asyncio.gather(*map(self._begin_again, refused), return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
            sequence, created = found
            self._created += created
            self._existing += not created
            if created:
                self._last_sequence = max(self._last_sequence, sequence)
        if self._on_progress is not None:
            self._on_progress(self._created + self._existing)

    async def drain(self) -> None:
        """Wait for the rest."""
        try:
            await self._collect(len(self._waiting))
        except BaseException:  # cancelled, too: no append stays in flight that nobody waits for
            await self.abandon()
            raise

    async def abandon(self) -> None:
        """Wait until nothing is in flight, whatever comes of it; cancel nothing, since what was sent may be stored."""
        rest = [appended for _, appended in self._waiting]
        self._waiting.clear()
        await asyncio.gather(*rest, return_exceptions=True)

    def result(self) -> BulkResult:
        """Return the counts."""
        return BulkResult(created=self._created, existing=self._existing, last_sequence=self._last_sequence)


async def numbered(inputs: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[tuple[int, T], None]:
    """Count the inputs; a generator among them is closed with this one, so that its own `finally` runs in time."""
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
