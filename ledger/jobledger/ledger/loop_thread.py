"""An asynchronous client in a thread of its own, for code that blocks: any thread may call, in every process.

A forked child inherits memory and sockets, but not the thread. It never touches its parent's connection: it lets go of
the sockets, and connects by itself when it first calls. The end of an interpreter is delayed only within a limit. The
verbs are in `sync`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import selectors
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from jobledger.ledger.model.errors import InvalidInputError, LedgerClosedError

logger = logging.getLogger("jobledger.sync")

T = TypeVar("T")
R = TypeVar("R")
Opening = Callable[[], contextlib.AbstractAsyncContextManager[T]]

_GRACE_S: Final = 1.0  #: how long closing waits for the calls of other threads, before it ends them
_CLOSE_S: Final = 5.0  #: how long `close` takes at the most
_AT_EXIT_S: Final = 2.0  #: how long the interpreter's end waits, for all clients together
_CLOSED: Final = "this ledger was closed: connect again"


class _LoopParts(Generic[T]):
    """The parts in one process: a thread, its loop, and the object opened there."""

    def __init__(self, opening: Opening[T]) -> None:
        self._opening = opening
        self._opened: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._stopping = asyncio.Event()
        self._lock = threading.RLock()  # the handler of a signal may call during another call
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._accepts = True
        self._thread: threading.Thread | None = None
        self._selector: selectors.DefaultSelector | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> T:
        """Start the thread, once, and return the opened object. Raises: the errors of the opening."""
        with self._lock:
            if self._thread is None:
                # Not the loop of an installed policy: only for this loop the effect of a fork is known.
                self._selector = selectors.DefaultSelector()
                self._loop = asyncio.SelectorEventLoop(self._selector)
                self._thread = threading.Thread(target=self._run, name="jobledger", daemon=True)
                self._thread.start()
        return self._opened.result()

    def require_other_thread(self) -> None:
        """Refuse a call in the own thread, which would wait for itself. Raises: InvalidInputError."""
        if self._loop is not None:
            require_outside(self._loop)

    def start(self, verb: Callable[[T], Awaitable[R]]) -> concurrent.futures.Future[R]:
        """Begin a call. Raises: LedgerClosedError."""
        opened = self.open()

        async def call() -> R:
            return await verb(opened)

        with self._lock:
            if not self._accepts or self._loop is None:
                raise LedgerClosedError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(call(), self._loop)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def stop(self) -> None:
        """Accept no more calls, and begin to close; never waits."""
        with self._lock:
            if self._accepts and self._loop is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._accepts = False

    def join(self, limit_s: float) -> None:
        """Wait for the end of the thread after `stop`; if it does not end in time, cancel the calls that still wait."""
        if self._thread is not None:
            self._thread.join(max(0.0, limit_s))
            if self._thread.is_alive():
                logger.warning("the connection could not be closed in time: the server does not answer")
                self._abandon()

    def _abandon(self) -> None:
        for future in tuple(self._calls):
            future.cancel()

    def disinherit(self) -> None:
        """In a forked child: release the sockets without an effect on the parent.

        Each of their numbers then stands for /dev/null: nothing done with it here, not even by a destructor, reaches
        the parent's connection or its selector. And when the parent closes the connection, the server sees it.
        """
        if self._selector is None:
            return
        try:
            numbers = [self._selector.fileno(), *(key.fd for key in self._selector.get_map().values())]
        except (ValueError, AttributeError):  # it was closed before the fork
            return
        with contextlib.suppress(OSError), Path(os.devnull).open("r+b", buffering=0) as nothing:
            for number in numbers:
                os.dup2(nothing.fileno(), number, inheritable=False)

    def _run(self) -> None:
        assert self._loop is not None, "the loop is made before its thread"
        loop = self._loop
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # the waiting caller must get it
            if self._opened.done():
                logger.exception("the thread of a ledger ended")
            else:
                self._opened.set_exception(error)
        finally:
            self._abandon()

    async def _serve(self) -> None:
        try:
            async with self._opening() as opened:
                self._opened.set_result(opened)
                await self._stopping.wait()
                await self._finish()
        finally:
            with self._lock:
                self._accepts = False

    async def _finish(self) -> None:
        """Give the calls under way their time, then end them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                calls = map(asyncio.wrap_future, tuple(self._calls))
                await asyncio.gather(*calls, return_exceptions=True)  # cancelled, it cancels them


class LoopThread(Generic[T]):
    """Runs calls in the loop of what `opening` opens, once per process: safe in all threads and in forked children."""

    def __init__(self, opening: Opening[T]) -> None:
        self._opening = opening
        self._running: dict[int, _LoopParts[T]] = {}  # by process: the own parts, and those just inherited
        self._is_closed = False
        # Not run at the end of the interpreter: `_close_all` does that.
        weakref.finalize(self, _forsake, self._running).atexit = False
        _OPEN.add(self)

    def open(self) -> _LoopParts[T]:
        """Open it in this process, unless it is open. Raises: LedgerClosedError, the errors of the opening."""
        if self._is_closed:
            raise LedgerClosedError(_CLOSED)
        pid = os.getpid()
        running = self._running.get(pid)
        if running is None:
            # Several threads at once get the same parts. Their lock is new: an inherited one might never be released.
            running = self._running.setdefault(pid, _LoopParts(self._opening))
            self.disinherit()
        running.require_other_thread()
        try:
            running.open()
        except (
            BaseException
        ):  # also Ctrl-C: stop a thread that did not open; the next call starts another one
            running.stop()
            if self._running.get(pid) is running:
                del self._running[pid]
            raise
        return running

    def start(self, verb: Callable[[T], Awaitable[R]]) -> concurrent.futures.Future[R]:
        """Begin a call; pass the result to `wait_for`. Raises: as `open`."""
        return self.open().start(verb)

    def call(self, verb: Callable[[T], Awaitable[R]]) -> R:
        """Run a verb in the loop and wait for its end; an interrupt of the caller (Ctrl-C) ends the verb.

        Raises: LedgerClosedError, also when `close` ends the call; the errors of the opening and of the verb.
        """
        return wait_for(self.start(verb))

    def give_back(self, verb: Callable[[T], Awaitable[R]]) -> R:
        """Run a verb that gives something back; here like any other verb."""
        return self.call(verb)

    def disinherit(self) -> None:
        """In a forked child: release the parent's objects."""
        for pid, running in list(self._running.items()):
            if pid != os.getpid():
                running.disinherit()
                _INHERITED.append(running)
                self._running.pop(pid, None)

    def close(self) -> None:
        """Close it in this process within a few seconds; harmless the second time.

        Raises: InvalidInputError in the thread that would have to end.
        """
        running = self._running.get(os.getpid())
        if running is not None:
            running.require_other_thread()
        self.stop()
        self.join(_CLOSE_S)

    def stop(self) -> None:
        """Begin to close."""
        self._is_closed = True
        running = self._running.get(os.getpid())
        if running is not None:
            running.stop()

    def join(self, limit_s: float) -> None:
        """Wait for the end, within the limit."""
        running = self._running.get(os.getpid())
        if running is not None:
            running.join(limit_s)


def require_outside(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse a wait by code that runs in the awaited loop. Raises: InvalidInputError."""
    try:
        is_inside = asyncio.get_running_loop() is loop
    except RuntimeError:  # none runs in this thread
        return
    if is_inside:
        raise InvalidInputError(
            "this code runs in the ledger's own thread (ids and on_progress of enqueue_many do), "
            "where a call would wait for itself: make the call before or afterwards"
        )


def wait_for(future: concurrent.futures.Future[R]) -> R:
    """Return the outcome of a call; see `LoopThread.call`."""
    try:
        return future.result()
    except concurrent.futures.CancelledError as error:
        raise LedgerClosedError(
            "this ledger was closed while a call was under way: whether that took effect is not known"
        ) from error
    except BaseException:  # also Ctrl-C: the loop must not go on with a call that nobody waits for
        future.cancel()
        raise


def _forsake(running: dict[int, _LoopParts[Any]]) -> None:
    """Close an object that nobody can call any more, without waiting."""
    own = running.get(os.getpid())
    if own is not None:
        own.stop()


def _close_all() -> None:
    """Close all open objects at the interpreter's end."""
    deadline = time.monotonic() + _AT_EXIT_S
    left = list(_OPEN)
    for each in left:
        each.stop()
    for each in left:
        each.join(deadline - time.monotonic())


def _after_fork() -> None:
    for each in list(_OPEN):
        each.disinherit()


_OPEN: weakref.WeakSet[LoopThread[Any]] = weakref.WeakSet()
#: Parts of parent processes, inherited by a fork. Never freed: their destructors would touch a thread that is not here.
_INHERITED: list[object] = []
atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
