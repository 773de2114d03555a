"""Virtual time: one world, many processes. Each process is an event loop of its own that keeps asyncio's order.

What is random is which process takes the next step, and whether it ever takes another: after any step a process
may freeze or crash. Time passes only when nobody has anything to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from random import Random
from typing import Any, cast

_NEVER = 1 << 60
_STEPS_MAX = 200_000


class StuckError(Exception):
    """The world did not come to rest within its bounds of steps or time."""


class Handle:
    """Something to be called, now or later; what asyncio calls Handle and TimerHandle."""

    __slots__ = ("args", "callback", "context", "process", "when_")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        process: Process | None = None,
        context: contextvars.Context | None = None,
        when: float = 0.0,
    ) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.args = args
        self.process = process
        self.context = context
        self.when_ = when

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.when_


class World:
    """The true time, everything that will happen, and every process."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.steps = 0
        self.tasks = 0
        self.current: Process | None = None
        self.processes: list[Process] = []
        self.runnable: list[Process] = []
        self.stopped = False
        self.future: list[tuple[float, int, Handle]] = []
        self.number = 0

    def at(self, when: float, callback: Callable[..., Any], *args: Any) -> Handle:
        """Call something that belongs to no process."""
        handle = Handle(callback, args)
        self.push(when, handle)
        return handle

    def after(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle:
        return self.at(self.now + delay, callback, *args)

    def push(self, when: float, handle: Handle) -> None:
        self.number += 1
        heappush(self.future, (when, self.number, handle))

    def run(self, until: float) -> None:
        """Let time pass until somebody sets `stopped`.

        Raises: StuckError.
        """
        runnable, random, future = self.runnable, self.random.random, self.future
        try:
            while not self.stopped:
                if runnable:
                    count = len(runnable)
                    process = runnable[0] if count == 1 else runnable[int(random() * count)]
                    process.step()
                    continue
                if not future:
                    raise StuckError("nothing is going to happen any more")
                when, _, handle = heappop(future)
                callback = handle.callback
                if callback is None:
                    continue
                if when > self.now:
                    if when > until:
                        raise StuckError(f"not at rest after {until:.0f} s")
                    self.now = when
                owner = handle.process
                if owner is None:
                    callback(*handle.args)
                elif owner.frozen:
                    owner.make_ready(handle)
                elif owner.alive:  # nobody else has anything to do: at once
                    owner.take(handle, callback)
        finally:
            events._set_running_loop(None)
            self.current = None

    def end(self) -> None:
        """Let go of everything; the tasks that are left end with their last reference."""
        for process in self.processes:
            process.kill()
        self.future.clear()
        self.runnable.clear()
        for process in self.processes:
            process.dissolve()


class Process:
    """One process: as much of an event loop as asyncio asks for, a wall clock that may jump, a monotonic one that drifts."""

    def __init__(self, world: World, name: str, *, rate: float = 1.0, wall_offset_s: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.wall_offset_s = wall_offset_s
        self.alive = True
        self.frozen = False
        self.frozen_since = 0.0
        self.frozen_spans: list[tuple[float, float]] = []
        self.died_at: float | None = None
        self.fuse = _NEVER  #: steps until `on_fuse`
        self.on_fuse: Callable[[Process], None] | None = None
        self.on_death: list[Callable[[], None]] = []
        self.errors: list[str] = []
        self._ready: deque[Handle] = deque()
        self._listed = False  # among the world's runnable ones
        self._origin = world.now
        self._tasks: list[asyncio.Task[Any]] = []
        world.processes.append(self)

    # Steps.

    def make_ready(self, handle: Handle) -> None:
        self._ready.append(handle)
        if not self._listed and not self.frozen:
            self._list()

    def _list(self) -> None:
        self._listed = True
        self.world.runnable.append(self)

    def _unlist(self) -> None:
        if self._listed:
            self._listed = False
            self.world.runnable.remove(self)

    def step(self) -> None:
        """Do what has been ready for longest."""
        ready = self._ready
        handle = ready.popleft()
        if not ready:
            self._listed = False
            self.world.runnable.remove(self)
        if handle.callback is not None:
            self.take(handle, handle.callback)

    def take(self, handle: Handle, callback: Callable[..., Any]) -> None:
        """Do one thing; then perhaps something happens to this process."""
        world = self.world
        world.steps += 1
        if world.steps > _STEPS_MAX:
            raise StuckError(f"{_STEPS_MAX:,} steps, {world.now:.1f} s")
        if world.current is not self:
            events._set_running_loop(cast("asyncio.AbstractEventLoop", self))
            world.current = self
        try:
            if handle.context is None:
                callback(*handle.args)
            else:
                handle.context.run(callback, *handle.args)
        except Exception as error:  # noqa: BLE001 - asyncio would log it and go on; here it is a finding
            self.errors.append(f"{self.name}: a callback raised {error!r}")
        self.fuse -= 1
        if self.fuse <= 0 and self.alive:
            self.fuse = _NEVER
            assert self.on_fuse is not None
            self.on_fuse(self)

    def freeze(self) -> None:
        """Take no turns until `thaw`, as after SIGSTOP; the world goes on, and what arrives waits."""
        if self.alive and not self.frozen:
            self.frozen, self.frozen_since = True, self.world.now
            self._unlist()

    def thaw(self) -> None:
        """Go on. Timers come by their times; what arrived on the wire comes before them or in between."""
        if not (self.alive and self.frozen):
            return
        self.frozen = False
        self.frozen_spans.append((self.frozen_since, self.world.now))
        if self._ready:
            if self.world.random.random() < 0.5:
                arrived = sorted(self._ready, key=lambda handle: bool(handle.when_))
                self._ready = deque(arrived)
            self._list()

    def kill(self) -> None:
        """End without another step, as after SIGKILL."""
        if not self.alive:
            return
        self._unlist()
        if self.frozen:
            self.frozen_spans.append((self.frozen_since, self.world.now))
        self.alive = False
        self.died_at = self.world.now
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined] # it is dead, nobody forgot it
        for told in self.on_death:
            told()

    def dissolve(self) -> None:
        """Close what was never finished, so that little is left for the garbage collector."""
        # What asks for a loop while it is closed must find this one: asyncio would make one that nobody closes.
        events._set_running_loop(cast("asyncio.AbstractEventLoop", self))
        for task in self._tasks:
            if not task.done():
                with contextlib.suppress(BaseException):  # some do not want to be closed, and nobody cares
                    cast("Coroutine[Any, Any, Any]", task.get_coro()).close()
        events._set_running_loop(None)
        self._tasks.clear()
        self._ready.clear()
        self.on_death.clear()
        self.on_fuse = None

    # What asyncio needs of a loop.

    def time(self) -> float:
        return 1000.0 + (self.world.now - self._origin) * self.rate

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle: Any = Handle(callback, args, self, context)
        if self.alive:
            self._ready.append(handle)
            if not self._listed and not self.frozen:
                self._listed = True
                self.world.runnable.append(self)
        return handle  # type: ignore[no-any-return]

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(
            1000.0 + (self.world.now - self._origin) * self.rate + delay, callback, *args, context=context
        )

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle: Any = Handle(callback, args, self, context, when)
        world = self.world
        true = self._origin + (when - 1000.0) / self.rate
        world.number += 1
        heappush(world.future, (max(world.now, true), world.number, handle))
        return handle  # type: ignore[no-any-return]

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast("asyncio.AbstractEventLoop", self))

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        self.world.tasks += 1
        task = SimTask(coro, self, self.world.tasks, context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive and "never retrieved" not in str(context.get("message")):
            self.errors.append(f"{self.name}: {context.get('message')} {context.get('exception')!r}")


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        loop: Process,
        serial: int,
        context: contextvars.Context | None,
    ) -> None:
        self.serial = serial
        super().__init__(coro, loop=cast("asyncio.AbstractEventLoop", loop), name="t", context=context)

    def __hash__(self) -> int:
        return self.serial
