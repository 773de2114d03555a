"""The life of a gateway: when it is asked to stop, requests that only wait end at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator

import anyio


class Life:
    """The life of one gateway process."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()  #: set once, for good
        self._waits: set[anyio.CancelScope] = set()

    def stop(self) -> None:
        """End the waits; requests that do something go on."""
        self.stopping.set()
        for scope in list(self._waits):
            scope.cancel()

    @contextlib.contextmanager
    def waiting(self, limit_s: float) -> Generator[anyio.CancelScope, None, None]:
        """Limit the block to this time, and cut it when the gateway stops; the scope shows whether it was cut."""
        with anyio.move_on_after(limit_s) as scope:
            self._waits.add(scope)
            if self.stopping.is_set():
                scope.cancel()
            try:
                yield scope
            finally:
                self._waits.discard(scope)
