"""The verbs of the ledger for a task in a thread: they run on the worker's loop, and end when the attempt must."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import LedgerClosedError

R = TypeVar("R")


class ThreadCalls:
    """Calls from the thread of one attempt; a `Caller` for `sync.Ledger`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ledger: Ledger, require_going_on: Callable[[], None]
    ) -> None:
        """`require_going_on` raises AttemptStoppedError once the attempt was told to stop."""
        self._loop = loop
        self._ledger = ledger
        self._require_going_on = require_going_on
        self._running: set[concurrent.futures.Future[Any]] = set()

    def start(self, verb: Callable[[Ledger], Awaitable[R]]) -> concurrent.futures.Future[R]:
        """Begin a call. Raises: AttemptStoppedError."""
        self._require_going_on()

        async def call() -> R:
            return await verb(self._ledger)

        future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        try:
            self._require_going_on()  # it may have been told just before the call was there to be ended
        except BaseException:
            future.cancel()
            raise
        return future

    def call(self, verb: Callable[[Ledger], Awaitable[R]]) -> R:
        """Run a verb and wait for its end. Raises: AttemptStoppedError, whatever the verb raises."""
        future = self.start(verb)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            self._require_going_on()
            raise LedgerClosedError("the worker ended while a call was under way") from error
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the calls under way. What they had sent may be in the ledger."""
        for future in tuple(self._running):
            future.cancel()

    def close(self) -> None:
        """Do nothing: the connection is the worker's."""
