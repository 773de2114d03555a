"""The processes in which tasks with `run_in="process"` run: started on demand, reused, replaced when one is lost.

Cancelling a call kills its process: nothing else stops code that does not cooperate. So a timeout around `run` ends the
work, not only the wait. It knows tasks only by name, and a job only by the facts in its `Call`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jobledger.ledger.model.errors import ConfigurationError, LedgerError, PayloadTooLargeError
from jobledger.workers.pool.child_process import (
    ChildProcess,
    ChildStartError,
    Listener,
    ProcessDeath,
    Result,
    TaskFailure,
    TaskValue,
)
from jobledger.workers.pool.messages import Call, Setup
from jobledger.workers.processes.child import KILL_LIMIT_S
from jobledger.workers.processes.restarts import Restarts

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = [
    "Call",
    "ChildStartError",
    "Listener",
    "PoolClosedError",
    "PoolConfig",
    "ProcessDeath",
    "ProcessPool",
    "Result",
    "TaskFailure",
    "TaskValue",
]

logger = logging.getLogger("jobledger.workers.pool")

_SIZE_MAX: Final = 1_000
_PAUSE_FIRST_S: Final = 0.5
_PAUSE_MAX_S: Final = 30.0
_TICKS_PER_SILENCE: Final = 4


class PoolClosedError(LedgerError):
    """The pool is closed, or was while a call waited for a process; nothing of the call was run."""


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One pool's settings."""

    size: int = max(1, os.cpu_count() or 1)  #: processes at most
    calls_max: int | None = None  #: a process is replaced after that many calls; None: never
    start_s: float = 60.0  #: how long a process may take to load the tasks
    payload_bytes_max: int = 8 << 20  #: the largest input, result or checkpoint
    memory_bytes_max: int | None = None  #: address space of each process; None: no limit
    #: A process that hears nothing from its worker for so long ends itself and its task, since the job of a frozen
    #: worker may be taken over. Half a lease is right; it must exceed the longest time the loop is blocked. None:
    #: never.
    silence_s: float | None = None
    log_prints: bool = False  #: the processes send the lines that tasks print

    def __post_init__(self) -> None:
        """Check every value.

        Raises: ConfigurationError.
        """
        _require("size", self.size, 1, _SIZE_MAX)
        _require("start_s", self.start_s, 0.1, 3600)
        _require("payload_bytes_max", self.payload_bytes_max, 1024, 1 << 30)
        if self.calls_max is not None:
            _require("calls_max", self.calls_max, 1, math.inf)
        if self.memory_bytes_max is not None:
            _require("memory_bytes_max", self.memory_bytes_max, 64 << 20, math.inf)
        if self.silence_s is not None:
            _require("silence_s", self.silence_s, 0.2, 3600)


def _require(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigurationError(
            f"{name} of a process pool must be from {least:g} to {most:g}, got {value!r}"
        )


class ProcessPool:
    """Runs calls in processes, each one call at a time; calls above `size` wait their turn, first come first served.

    Belongs to the event loop on which it is first used. Its processes do not outlive this process, however it ends.
    """

    def __init__(
        self,
        modules: Sequence[str],
        config: PoolConfig | None = None,
        *,
        connection: Mapping[str, Any] | None = None,
        for_tasks: bool = True,
    ) -> None:
        """Take the modules that hold the tasks, as given to `TaskRegistry.load`. Starts nothing yet.

        `for_tasks`: False if only steps of our own are called, which need no modules.

        `connection`: settings of `connect`, for tasks that use the ledger; not part of `config`, which may be shown.

        Raises: ConfigurationError without modules: a task that is known to this process alone cannot run in another.
        """
        if for_tasks and not modules:
            raise ConfigurationError(
                'a task with run_in="process" must come from a module that another process can load: '
                "use TaskRegistry.load([...]) instead of giving task objects"
            )
        self._modules = tuple(str(Path(each).resolve()) if each.endswith(".py") else each for each in modules)
        self._config = config or PoolConfig()
        self._connection = None if connection is None else dict(connection)
        self._children: set[ChildProcess] = set()  # each takes a place until it is gone
        self._idle: list[ChildProcess] = []
        self._waiting: deque[asyncio.Future[ChildProcess]] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._refusing = False
        self._closed = False
        self._ticking: asyncio.Task[None] | None = None
        self._restarts = Restarts(first_s=_PAUSE_FIRST_S, max_s=_PAUSE_MAX_S)
        self._may_start_at = 0.0
        self._start_error: ChildStartError | None = None
        self._next_start: asyncio.TimerHandle | None = None

    @property
    def has_modules(self) -> bool:
        """Whether its processes load modules with tasks."""
        return bool(self._modules)

    @property
    def size(self) -> int:
        """How many calls run at once."""
        return self._config.size

    @property
    def pids(self) -> list[int]:
        """The process ids of the processes that are there, in order."""
        return sorted(child.pid for child in self._children)

    @property
    def free(self) -> int:
        """How many calls would get a process without waiting for another call to end; below 0 when some wait."""
        waiting = sum(not turn.done() for turn in self._waiting)
        return self._config.size - (len(self._children) - len(self._idle)) - waiting

    async def take(self) -> ChildProcess:
        """Wait for a process that has loaded the tasks, and reserve it until `run` or `give_back` gets it.

        Raises: ChildStartError when no process can be started, at once while the next try is not yet due; PoolClosedError.
        """
        if self._refusing:
            raise PoolClosedError("the process pool takes no more calls")
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
        turn: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._grow()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back(turn.result())
            raise

    def give_back(self, child: ChildProcess) -> None:
        """Hand a process that was taken, and is not called now, to the call that has waited longest."""
        if not child.is_alive:
            child.kill()
            self._let_go(child, child.end())
            return
        if self._closed:
            self._let_go(child, child.leave(limit_s=KILL_LIMIT_S))
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(child)
                return
        self._idle.append(child)

    async def run(
        self,
        call: Call,
        listener: Listener | None = None,
        *,
        child: ChildProcess | None = None,
        on_begin: Callable[[int], None] | None = None,
    ) -> Result:
        """Run a task in a process, the one that was taken for it or the next that is free; return what came of it.

        `on_begin` is called with the process id once a process is free. If this call is cancelled, or `listener`
        raises, the process is killed and replaced, and it has ended before this call returns.

        Raises: ChildStartError and PoolClosedError, as `take`; PayloadTooLargeError; what `listener` raised.
        """
        for what, value in (("input", call.input), ("checkpoint", call.checkpoint)):
            size_bytes = len(bytes(value))
            if size_bytes > self._config.payload_bytes_max:
                if child is not None:
                    self.give_back(child)
                what = f"{what} of task {call.task}"  # noqa: PLW2901 - said in full
                raise PayloadTooLargeError(what, size_bytes, self._config.payload_bytes_max)
        if child is not None and not child.is_alive:  # it died before the call, of which nothing was run
            self.give_back(child)
            child = None
        child = child or await self.take()
        try:
            if on_begin is not None:
                on_begin(child.pid)
            result = await child.call(call, listener)
        except BaseException:  # cancelled, too: nobody waits for what the child still runs
            child.kill()
            await asyncio.shield(self._end_of(child, child.end(), spare=1))
            raise
        self._put_back(child, result)
        return result

    def _put_back(self, child: ChildProcess, result: Result) -> None:
        """Keep a process for the next call, unless it is to be replaced."""
        calls_max = self._config.calls_max
        if isinstance(result, ProcessDeath):
            self._let_go(child, child.end(), spare=1)
        elif (calls_max is not None and child.calls >= calls_max) or _is_out_of_memory(result):
            self._let_go(child, child.leave(limit_s=KILL_LIMIT_S), spare=1)
        else:
            self.give_back(child)

    # Processes come and go.

    def _grow(self, spare: int = 0) -> None:
        """Start missing processes, one per waiting call and at least `spare`, if there is room and no pause lasts."""
        loop = asyncio.get_running_loop()
        waiting = sum(not turn.done() for turn in self._waiting)
        missing = min(
            max(waiting, spare) - len(self._starting),
            self._config.size - len(self._children) - len(self._starting),
        )
        if self._closed or missing <= 0:
            return
        if loop.time() < self._may_start_at:
            self._refuse_the_waiting()
            if self._waiting and self._next_start is None:
                self._next_start = loop.call_at(self._may_start_at, self._on_pause_over)
            return
        for _ in range(missing):
            starting = loop.create_task(self._start(), name="process of the pool starts")
            self._starting.add(starting)
            starting.add_done_callback(self._on_started)
        if self._config.silence_s is not None and self._ticking is None:
            self._ticking = loop.create_task(self._tick(self._config.silence_s / _TICKS_PER_SILENCE))

    def _on_pause_over(self) -> None:
        self._next_start = None
        self._grow()

    async def _start(self) -> None:
        child = await ChildProcess.start(self._setup(), limit_s=self._config.start_s)
        self._restarts.forget()
        self._children.add(child)
        child.ended.add_done_callback(lambda _: self._on_end(child))
        self.give_back(child)

    def _on_started(self, starting: asyncio.Task[None]) -> None:
        self._starting.discard(starting)
        self._changed.set()
        error = None if starting.cancelled() else starting.exception()
        if error is None:
            self._grow()  # a call may have asked for a process before this one was counted
            return
        if not isinstance(error, ChildStartError):
            logger.error("a process of the pool could not be started", exc_info=error)
            error = ChildStartError(f"no process can be started for tasks: {type(error).__name__}")
        now = asyncio.get_running_loop().time()
        if now >= self._may_start_at:  # several that failed together count as one
            pause_s = self._restarts.pause_s()
            self._may_start_at = now + pause_s
            self._start_error = error
            logger.error("%s; the next try is in %g s at the earliest", error, pause_s)
        self._grow()

    def _refuse_the_waiting(self) -> None:
        """Tell the calls that wait why there is no process, unless one that exists can still serve them."""
        if self._children or self._starting or self._start_error is None:
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(ChildStartError(str(self._start_error)))

    def _setup(self) -> Setup:
        return Setup(
            modules=self._modules,
            import_path=tuple(sys.path),
            parent=os.getpid(),
            payload_bytes_max=self._config.payload_bytes_max,
            connection=self._connection,
            memory_bytes_max=self._config.memory_bytes_max,
            silence_s=self._config.silence_s,
            log_level=logging.getLogger().getEffectiveLevel(),
            log_levels=_own_levels(),
            log_prints=self._config.log_prints,
            task_log_level=logging.getLogger("jobledger.task").getEffectiveLevel(),
        )

    def _on_end(self, child: ChildProcess) -> None:
        """Forget a process that ended while it had nothing to do."""
        if child in self._idle:
            self._idle.remove(child)
            logger.warning("process %d of the pool ended without a task", child.pid)
            self._let_go(child, child.end())

    def _let_go(self, child: ChildProcess, end: Awaitable[None], *, spare: int = 0) -> None:
        """Let a process end in the background.

        With `spare` it is replaced at once. That is for a process lost in a call, since calls bound the number of such
        losses; processes that end by themselves might do so for ever.
        """
        _ = self._end_of(child, end, spare=spare)

    def _end_of(self, child: ChildProcess, end: Awaitable[None], *, spare: int) -> asyncio.Task[None]:
        """Return the task that waits until a process is gone, and then frees its place."""

        async def end_and_free() -> None:
            try:
                await end
            finally:
                self._children.discard(child)
                self._changed.set()
                self._grow(spare)

        ending = asyncio.get_running_loop().create_task(end_and_free(), name=f"process {child.pid} ends")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def _tick(self, every_s: float) -> None:
        while True:
            for child in self._children:
                child.tick()
            await asyncio.sleep(every_s)

    # The end.

    async def __aenter__(self) -> Self:
        """Return the pool; it has started nothing yet."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    def refuse(self) -> None:
        """Take no more calls and refuse those that wait; calls that run go on."""
        self._refusing = True
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(PoolClosedError("the process pool was closed while the call waited"))
        self._waiting.clear()

    async def close(self, *, limit_s: float = 5.0) -> None:
        """Take no more calls, let the processes exit in good order, and kill what is left after the limit.

        A call that is killed returns `ProcessDeath`. When this is cancelled, all are killed at once.
        """
        self._closed = True
        self.refuse()
        for starting in self._starting:
            starting.cancel()
        while self._idle:
            self.give_back(self._idle.pop())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._all_gone()
        finally:
            for child in self._children:
                child.kill("the process running the task was killed because the worker's pool was closed")
            if self._ticking is not None:
                self._ticking.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_LIMIT_S):
                await self._all_gone()

    async def _all_gone(self) -> None:
        while self._children or self._starting:
            self._changed.clear()
            await self._changed.wait()


def _is_out_of_memory(result: Result) -> bool:
    return isinstance(result, TaskFailure) and result.error.type == MemoryError.__name__


def _own_levels() -> dict[str, int]:
    """Return the levels of loggers outside of jobledger that have one of their own, by name."""
    known = logging.root.manager.loggerDict.items()
    loggers = {name: each.level for name, each in known if isinstance(each, logging.Logger) and each.level}
    return {name: level for name, level in loggers.items() if name.partition(".")[0] != "jobledger"}
