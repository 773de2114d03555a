"""Long reading of SQLite files away from the event loop: in a thread, counted, and over soon after it is cancelled."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeVar, cast

import anyio
import anyio.to_thread

from jobledger.projections.errors import ProjectionError
from jobledger.projections.filler import ProgressCallback

_SHOW_S: Final = 0.1
_STOP_S: Final = 0.005

T = TypeVar("T")


class StoppedError(ProjectionError):
    """Nobody waits for the answer any more; this error never leaves the thread."""


class Background:
    """One piece of work at a time, on connections that are used by it alone."""

    def __init__(self) -> None:
        self.total = 0  #: the number of rows, 0 until it is known
        self.reads: list[sqlite3.Connection] = []  #: connections to interrupt when nobody waits any more
        self._done = 0
        self._beginning = threading.Lock()
        self._stopped = False

    def counted(self, rows: Iterator[T]) -> Iterator[T]:
        """Count rows as they are read.

        Raises: StoppedError.
        """
        for row in rows:
            if self._stopped:
                raise StoppedError("nobody waits for it any more")
            self._done += 1
            yield row

    async def run(self, work: Callable[[], T], progress: ProgressCallback | None) -> T:
        """Return what `work` returns, or raise what it raises; when cancelled, wait until the thread has stopped."""
        began, ended = threading.Event(), threading.Event()

        def to_its_end() -> tuple[T | None, Exception | None]:
            with self._beginning:
                if self._stopped:
                    return None, None  # nobody looks at this result
                began.set()
            try:
                return work(), None
            except Exception as error:  # noqa: BLE001 - raised again below, where no task group wraps it
                return None, error
            finally:
                ended.set()

        found: tuple[T | None, Exception | None] = (None, None)
        async with anyio.create_task_group() as group:
            group.start_soon(self._show, progress)
            try:
                found = await anyio.to_thread.run_sync(to_its_end, abandon_on_cancel=True)
            except BaseException:  # a cancellation, too: the thread must stop
                await self._stop(began, ended)
                raise
            group.cancel_scope.cancel()
        if found[1] is not None:
            raise found[1]
        return cast("T", found[0])

    async def _stop(self, began: threading.Event, ended: threading.Event) -> None:
        with self._beginning:
            self._stopped = True
        with anyio.CancelScope(shield=True):  # the connections must not be closed under the thread
            while began.is_set() and not ended.is_set():
                for connection in tuple(self.reads):
                    # In a loop: interrupt only ends a statement that runs now. The thread may be closing it.
                    with contextlib.suppress(sqlite3.ProgrammingError):
                        connection.interrupt()
                await anyio.sleep(_STOP_S)

    async def _show(self, progress: ProgressCallback | None) -> None:
        while progress is not None:
            if self.total:
                progress(min(self._done, self.total), self.total)
            await anyio.sleep(_SHOW_S)
