"""Inputs that the thread of a blocking caller produces, portion by portion, for the loop that enqueues them.

A generator of inputs often reads a database whose connection belongs to its thread, as Django's does, or uses the
ledger itself: it must not run in the ledger's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from typing import Final, Generic, TypeVar

from jobledger.ledger.loop_thread import wait_for
from jobledger.ledger.nats.inbox import resolve

T = TypeVar("T")
R = TypeVar("R")

#: Items in one portion, which costs two changes of threads. A slow producer's portion is passed on after `_PORTION_S`,
#: even if it is small.
_PORTION_MAX: Final = 256
_PORTION_S: Final = 0.01


class Feed(Generic[T]):
    """Carries the items of an iterable from the thread that calls `serve` to the loop that iterates `items`."""

    def __init__(self, source: Iterable[T]) -> None:
        self._source = source
        self._error: Exception | None = None
        self._wanted: queue.SimpleQueue[asyncio.Future[list[T]] | None] = queue.SimpleQueue()

    async def items(self) -> AsyncGenerator[T, None]:
        """Yield each item, as soon as the other thread has it."""
        loop = asyncio.get_running_loop()
        while True:
            portion: asyncio.Future[list[T]] = loop.create_future()
            self._wanted.put(portion)
            items = await portion
            if not items:
                return
            for item in items:
                yield item

    def serve(self, consuming: concurrent.futures.Future[R]) -> R:
        """Produce portions for `items` until `consuming` has ended; return its outcome. Raises: as `wait_for`."""
        consuming.add_done_callback(lambda _: self._wanted.put(None))
        try:
            items = iter(self._source)  # a query may run here, and fail
            while (portion := self._wanted.get()) is not None:
                self._produce(items, portion)
        except BaseException:  # Ctrl-C
            consuming.cancel()
            raise
        finally:
            if isinstance(self._source, Generator):
                self._source.close()
        return wait_for(consuming)

    def _produce(self, items: Iterator[T], portion: asyncio.Future[list[T]]) -> None:
        """Resolve `portion` with the next items, [] at the end, or the source's error after all items before it."""
        outcome: list[T] | Exception = self._next_portion(items)
        if not outcome and self._error is not None:
            outcome = self._error
        with contextlib.suppress(RuntimeError):  # the loop has ended, and so has `consuming`
            portion.get_loop().call_soon_threadsafe(resolve, portion, outcome)

    def _next_portion(self, items: Iterator[T]) -> list[T]:
        began = time.monotonic()
        portion: list[T] = []
        try:
            for item in () if self._error is not None else items:
                portion.append(item)
                if len(portion) >= _PORTION_MAX or time.monotonic() - began >= _PORTION_S:
                    break
        except Exception as error:  # noqa: BLE001 - whoever iterates raises it, and cleans up
            self._error = error
        return portion
