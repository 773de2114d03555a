"""The verbs of the ledger for a task in a thread: they run on the worker's loop, and end when the attempt must."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from jobledger.ledger.client import Ledger
from jobledger.ledger.loop_thread import require_outside, wait_for
from jobledger.ledger.model.errors import AttemptStoppedError

R = TypeVar("R")


class ThreadCalls:
    """Calls from the thread of one attempt; a `Caller` for `sync.Ledger`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ledger: Ledger, stop_reason: Callable[[], str]
    ) -> None:
        """`stop_reason` gives "" until the attempt is told to stop."""
        self._loop = loop
        self._ledger = ledger
        self._stop_reason = stop_reason
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, verb: Callable[[Ledger], Awaitable[R]]) -> concurrent.futures.Future[R]:
        """Begin a call; its future raises AttemptStoppedError as soon as the attempt is told to stop.

        Raises: InvalidInputError on the worker's own loop.
        """
        require_outside(self._loop)
        return asyncio.run_coroutine_threadsafe(self._run(verb), self._loop)

    def call(self, verb: Callable[[Ledger], Awaitable[R]]) -> R:
        """Run a verb and wait for its end. Raises: AttemptStoppedError, and any error of the verb."""
        return wait_for(self.start(verb))

    def give_back(self, verb: Callable[[Ledger], Awaitable[R]]) -> R:
        """Run a verb that lets go of something, also in an attempt that was told to stop."""

        async def run() -> R:
            return await verb(self._ledger)

        require_outside(self._loop)
        return wait_for(asyncio.run_coroutine_threadsafe(run(), self._loop))

    def stop(self) -> None:
        """End the calls under way; called on the loop. What they had sent may be in the ledger."""
        for task in self._running:
            task.cancel()

    def close(self) -> None:
        """Do nothing: the connection is the worker's."""

    async def _run(self, verb: Callable[[Ledger], Awaitable[R]]) -> R:
        self._require_going_on()
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._running.add(task)
        try:
            return await verb(self._ledger)
        except asyncio.CancelledError:
            self._require_going_on()
            raise
        finally:
            self._running.discard(task)

    def _require_going_on(self) -> None:
        if reason := self._stop_reason():
            raise AttemptStoppedError(reason)
