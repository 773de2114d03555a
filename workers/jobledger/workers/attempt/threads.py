"""Calls of sync tasks in threads, which are left behind if they run on after their attempt has ended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread

from jobledger.workers.attempt.abandoned import AbandonedSlots, stack_of_thread


class _Call:
    """One call of a function; each side sets its own fields before it reads the other's."""

    def __init__(self) -> None:
        self.thread_id: int | None = None  #: the thread that makes the call; None: not begun
        self.ended = False
        self.abandoned = False


class Threads:
    """The threads of one worker; made on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads_max: int, abandoned: AbandonedSlots) -> None:
        self._loop = loop
        self._limiter = anyio.CapacityLimiter(threads_max)
        self._abandoned = abandoned

    async def call(self, function: Callable[[], Any], *, name: str) -> Any:
        """Call a function in a thread, with its result or error as outcome; when cancelled, leave the thread behind.

        `name` is the owner of the function, for the log.
        """
        call = _Call()

        def run() -> tuple[Any, BaseException | None]:
            call.thread_id = threading.get_ident()
            # An exception is passed as a value, since a GeneratorExit that is thrown into a coroutine would close it.
            try:
                # Abandoned before its beginning: do not call it, since nobody counts its slot.
                return None if call.abandoned else function(), None
            except BaseException as error:  # noqa: BLE001 - raised again on the other side
                return None, error
            finally:
                call.ended = True
                if call.abandoned:
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody counts any more
                        self._loop.call_soon_threadsafe(self._abandoned.discard, call)

        try:
            value, error = await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._limiter)
        except asyncio.CancelledError:
            call.abandoned = True
            if call.thread_id is not None and not call.ended:  # else the call would be counted for ever
                self._abandoned.add(call, name, stack_of_thread(call.thread_id))
            raise
        if error is not None:
            raise error
        return value
