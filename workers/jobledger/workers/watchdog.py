"""Noticing from a thread that a task blocks the event loop, and naming the task in the log while it does.

A blocked loop renews no lease and obeys no cancel, so the operator must learn which task it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from jobledger.workers.attempt.control import Attempt

logger = logging.getLogger("jobledger.workers.watchdog")

_BEAT_S: Final = 0.25
_REPEAT_FACTOR: Final = 4
_FRAMES_MAX: Final = 6


class Watchdog:
    """Watches one loop. `find` gives the attempt that an asyncio task runs; it is called from the watching thread.

    `on_stall` is called on the loop, once that is free again, with the attempt and the seconds it blocked.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        limit_s: float,
        find: Callable[[asyncio.Task[Any]], Attempt | None],
        on_stall: Callable[[Attempt, float], None],
    ) -> None:
        self._loop = loop
        self._limit_s = limit_s
        self._find = find
        self._on_stall = on_stall
        self._loop_thread = threading.get_ident()
        self._beat_at = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="jobledger-watchdog", daemon=True)

    async def run(self) -> None:
        """Watch until cancelled."""
        self._thread.start()
        try:
            while True:
                self._beat_at = time.monotonic()
                await asyncio.sleep(_BEAT_S)
        finally:
            self._stopped.set()

    def _watch(self) -> None:
        culprit: Attempt | None = None
        seen_beat = 0.0
        said_s = 0.0
        while not self._stopped.wait(_BEAT_S):
            blocked_s = time.monotonic() - self._beat_at
            if self._beat_at != seen_beat:  # the loop beats again
                if culprit is not None:
                    self._report(culprit, said_s)
                culprit, seen_beat, said_s = None, self._beat_at, 0.0
            if blocked_s < max(self._limit_s, said_s * _REPEAT_FACTOR):
                continue
            said_s = blocked_s
            task = asyncio.current_task(self._loop)
            with contextlib.suppress(RuntimeError):  # tasks changed meanwhile: the loop runs again
                culprit = (None if task is None else self._find(task)) or culprit
            self._say(culprit, blocked_s)

    def _say(self, culprit: Attempt | None, blocked_s: float) -> None:
        name = f"task {culprit.job.task} of job {culprit.ref.job_id}" if culprit is not None else ""
        frame = sys._current_frames().get(  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # the one way to another's stack
            self._loop_thread
        )
        stack = "".join(traceback.format_stack(frame)[-_FRAMES_MAX:]) if frame is not None else ""
        logger.warning(
            "the event loop has been blocked for %.1f s by %s: await in it, make it a plain function, or give it "
            'run_in="process"\n%s',
            blocked_s,
            name or "code that is not a task's",
            stack,
        )

    def _report(self, culprit: Attempt, blocked_s: float) -> None:
        try:
            self._loop.call_soon_threadsafe(self._on_stall, culprit, blocked_s)
        except RuntimeError:
            self._stopped.set()  # the loop is closed
