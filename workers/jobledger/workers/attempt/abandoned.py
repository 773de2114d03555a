"""Slots whose attempts have ended while their code runs on, because no thread or coroutine can be forced to end.

A thread cannot be stopped at all, and a coroutine may swallow its cancellation. The attempt gets an outcome all the
same, so that the job goes on; the slot stays taken until the code returns, so that a worker never runs more code than
its concurrency allows.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

logger = logging.getLogger("jobledger.workers.attempt.abandoned")

_FRAMES_MAX: Final = 6


class AbandonedSlots:
    """The slots of one worker that are held by code without an attempt. Used on the loop only.

    `on_change` is called whenever the number of held slots changes.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._names: dict[object, str] = {}
        self._on_change = on_change

    def __len__(self) -> int:
        """Return how many slots are held by such code."""
        return len(self._names)

    def add(self, key: object, name: str, stack: str) -> None:
        """Count a slot until `discard`, and log where its code stands; `name` is the task and the job."""
        self._names[key] = name
        logger.warning(
            "%s does not end: its attempt is ended without it, and its slot stays taken until it returns\n%s",
            name,
            stack,
        )
        self._on_change()

    def discard(self, key: object) -> None:
        """Stop counting a slot: its code has returned."""
        name = self._names.pop(key, None)
        if name is not None:
            logger.info("%s has ended after it was abandoned: its slot is free again", name)
            self._on_change()


def stack_of_thread(thread_id: int | None) -> str:
    """Return the innermost frames of a thread as a traceback shows them, "" for one that is gone."""
    frame = sys._current_frames().get(thread_id or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # the one way to another's stack
    return "" if frame is None else _shown(list(traceback.walk_stack(frame))[::-1])


def stack_of_task(task: asyncio.Task[Any], own_modules: frozenset[str] = frozenset()) -> str:
    """Return where an asyncio task waits, as a traceback shows it, without the frames of `own_modules`."""
    frames = [(frame, frame.f_lineno) for frame in _awaiting(task.get_coro())]
    theirs = [each for each in frames if each[0].f_globals.get("__name__") not in own_modules]
    return _shown(theirs or frames)


def _awaiting(waits: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of the coroutines it waits for, the outermost first."""
    while waits is not None:
        frame = next((found for name in _FRAMES if (found := getattr(waits, name, None)) is not None), None)
        if frame is None:
            return
        yield frame
        waits = next((found for name in _AWAITED if (found := getattr(waits, name, None)) is not None), None)


_FRAMES: Final = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED: Final = ("cr_await", "gi_yieldfrom", "ag_await")


def _shown(frames: list[tuple[FrameType, int]]) -> str:
    return "".join(traceback.StackSummary.extract(iter(frames[-_FRAMES_MAX:])).format())
