"""Settings for a process that does nothing but run jobs; only the program that owns the process may make them."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from typing import Any, Final

logger = logging.getLogger("jobledger.workers.process")

_YOUNG_OBJECTS: Final = 20_000
_GENERATIONS: Final = 20


def tune_collector() -> None:
    """Make the garbage collector skip what was imported, and run less often.

    A job makes a few hundred short-lived objects, which reference counting frees by itself; at the default of 700
    allocations the collector took an eighth of a worker's time to find nothing. Cycles are still collected.
    Call it once, after the imports. A library must not.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _GENERATIONS, _GENERATIONS)


def log_what_nobody_catches(loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Log exceptions that end in a thread, a finalizer or a callback of the loop: else they go to stderr or nowhere.

    Logged are the exception and what kind of thing it ended, no values. A library must not.
    """
    threading.excepthook = _in_thread
    sys.unraisablehook = _unraisable
    if loop is not None:
        loop.set_exception_handler(_in_loop)


def _in_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_type is SystemExit:
        return
    name = "a thread" if told.thread is None else f"thread {told.thread.name}"
    logger.error("%s ended in an exception", name, exc_info=told.exc_value or told.exc_type())


def _unraisable(told: sys.UnraisableHookArgs) -> None:
    what = type(told.object).__qualname__ if told.object is not None else "what the interpreter did"
    logger.error("an exception in %s could go nowhere", what, exc_info=told.exc_value or told.exc_type())


def _in_loop(_: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
    # The other entries of `told`, such as callbacks and futures, may show arguments and values: they are not logged.
    what = str(told.get("message", "an exception")).partition(" callback ")[0]
    logger.error("event loop: %s", what, exc_info=told.get("exception"))
