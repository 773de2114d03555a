"""Calling sync tasks in threads, and counting those that run on after their attempt has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread


class Threads:
    """The threads of one worker; made on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads_max: int) -> None:
        self._loop = loop
        self._limiter = anyio.CapacityLimiter(threads_max)
        self._abandoned: set[object] = set()

    @property
    def abandoned(self) -> int:
        """How many threads run on although their attempt has ended; each keeps its slot until it returns."""
        return len(self._abandoned)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread and return or raise what it did; cancelled, it leaves the thread behind."""
        call = object()
        abandoned = ended = False

        def run() -> tuple[Any, BaseException | None]:
            nonlocal ended
            # An exception is handed over as a value: a GeneratorExit that is thrown into a coroutine would close it.
            try:
                return function(), None
            except BaseException as error:  # noqa: BLE001 - raised again on the other side
                return None, error
            finally:
                ended = True
                if abandoned:
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
                        self._loop.call_soon_threadsafe(self._abandoned.discard, call)

        try:
            value, error = await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._limiter)
        except asyncio.CancelledError:
            self._abandoned.add(call)
            abandoned = True
            if ended:  # the thread may have read `abandoned` just before it was set
                self._abandoned.discard(call)
            raise
        if error is not None:
            raise error
        return value
