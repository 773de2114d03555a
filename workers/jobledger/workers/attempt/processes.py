"""Attempts whose tasks run in a process of the pool: a process is held for one before its job is claimed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

from jobledger.workers.attempt.control import Attempt
from jobledger.workers.pool.child_process import ChildProcess, ChildStartError, Result
from jobledger.workers.pool.messages import Call
from jobledger.workers.pool.pool import PoolClosedError, ProcessPool

#: How long a job that needs a process is held while none can be started; then it is offered to other workers.
_NO_PROCESS_S: Final = 5.0


class Processes:
    """One worker's process pool, as its attempts use it."""

    def __init__(self, pool: ProcessPool) -> None:
        self._pool = pool
        self._taken: dict[
            asyncio.Task[Any], ChildProcess
        ] = {}  #: for the attempt that this asyncio task will make

    @contextlib.asynccontextmanager
    async def place(self, *, wait: bool) -> AsyncGenerator[bool, None]:
        """Keep a process for an attempt of the current asyncio task, so that its limits begin when its work does.

        Gives False when none is free, or none can be started, or the worker stops.
        """
        child = await self._take(wait=wait)
        if child is None:
            yield False
            return
        own_task = asyncio.current_task()
        assert own_task is not None, "a coroutine runs in a task"
        self._taken[own_task] = child
        try:
            yield True
        finally:
            if self._taken.pop(own_task, None) is not None:  # there was no attempt
                self._pool.give_back(child)

    async def _take(self, *, wait: bool) -> ChildProcess | None:
        if not wait and self._pool.free <= 0:
            return None
        try:
            return await self._pool.take()
        except PoolClosedError:
            return None
        except ChildStartError:  # which the pool has logged; no attempt is spent on it
            await asyncio.sleep(_NO_PROCESS_S)
            return None

    @property
    def have_modules(self) -> bool:
        """Whether they load the modules of the worker's tasks."""
        return self._pool.has_modules

    async def call(self, call: Call) -> Result:
        """Make a call in the next process that is free, as `ProcessPool.run`."""
        return await self._pool.run(call)

    async def run(self, attempt: Attempt, call: Call) -> Result:
        """Make the call in the process that was taken for the attempt, as `ProcessPool.run`."""
        child = self._taken.pop(attempt.own_task, None)
        return await self._pool.run(call, attempt.control.channel, child=child)
