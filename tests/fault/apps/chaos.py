"""Tasks for the fault suite. Each execution leaves a line when it starts and one when it ends, in a file opened with
O_APPEND and by the machine's monotonic clock: what really ran, whatever the ledger says about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import resource
import signal
import time
from collections.abc import Generator
from pathlib import Path

from jobledger.ledger import Backoff, Cancel, Context, Retry, Snooze, task

QUEUE = "work"
_SOON = Backoff(kind="linear", base_s=0.05, cap_s=1.0)
_TRACE = os.open(os.environ["CHAOS_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def mark(word: str, context: Context) -> None:
    """Append `<word> <job> <attempt> <pid> <parent> <monotonic ns>` in one write, which the kernel does not tear."""
    line = f"{word} {context.job_id} {context.attempt} {os.getpid()} {os.getppid()} {time.monotonic_ns()}\n"
    os.write(_TRACE, line.encode())


@contextlib.contextmanager
def traced(context: Context) -> Generator[None, None, None]:
    """Mark start and end, however it ends."""
    mark("start", context)
    try:
        yield
    finally:
        mark("end", context)


@task(queue=QUEUE, backoff=_SOON)
async def nap(context: Context, seconds: float, note: str = "") -> int:
    """Sleep on the loop."""
    with traced(context):
        await asyncio.sleep(seconds)
    return context.attempt


@task(queue=QUEUE, backoff=_SOON)
def nap_in_thread(context: Context, seconds: float, note: str = "") -> int:
    """Sleep in a thread."""
    with traced(context):
        time.sleep(seconds)
    return context.attempt


@task(queue=QUEUE, backoff=_SOON, run_in="process")
def nap_in_process(context: Context, seconds: float, note: str = "") -> int:
    """Sleep in a process of the pool."""
    with traced(context):
        time.sleep(seconds)
    return context.attempt


@task(queue=QUEUE, backoff=_SOON)
async def stumble(context: Context, failures: int, note: str = "") -> int:
    """Fail in the first `failures` attempts, then complete."""
    with traced(context):
        await asyncio.sleep(0)
        if context.attempt <= failures:
            raise RuntimeError("not yet")
    return context.attempt


@task(queue=QUEUE, backoff=_SOON)
async def ask(context: Context, what: str, note: str = "") -> int | Retry | Snooze | Cancel:
    """Return what a task may return, once; then do."""
    with traced(context):
        await asyncio.sleep(0)
        if context.attempt == 1 or what == "cancel":
            if what == "retry":
                return Retry(0.1)
            return Snooze(0.1) if what == "snooze" else Cancel("nothing to do")
    return context.attempt


@task(queue=QUEUE, backoff=_SOON)
async def until_there(context: Context, gate: str, note: str = "") -> int:
    """Run until a file exists."""
    with traced(context):
        while not Path(gate).exists():  # noqa: ASYNC240 - a look at a local file
            await asyncio.sleep(0.02)
    return context.attempt


@task(queue=QUEUE, backoff=_SOON)
async def block(context: Context, seconds: float, how: str = "sleep", note: str = "") -> int:
    """Keep the event loop from doing anything else, at first, by a call that waits or one that holds the interpreter."""
    with traced(context):
        if context.attempt == 1:
            _hold(seconds, how)
    return context.attempt


@task(queue=QUEUE, backoff=_SOON, run_in="process")
def block_in_process(context: Context, seconds: float, how: str = "sleep", note: str = "") -> int:
    """As `block`, in a process of the pool, every time."""
    with traced(context):
        _hold(seconds, how)
    return context.attempt


def _hold(seconds: float, how: str) -> None:
    if how == "sleep":
        time.sleep(seconds)
        return
    # PyDLL keeps the interpreter's lock during the call, as an extension in C without care does.
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@task(queue=QUEUE, backoff=_SOON)
async def never_mind(context: Context, note: str = "") -> None:
    """Swallow every cancellation, for ever."""
    mark("start", context)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


def _die(context: Context, how: str) -> None:
    with traced(context):
        if how == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
            try:
                _ = bytearray(2 << 30)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if how == "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            re.match(r"(a+)+$", "a" * 60 + "b")  # for years, and holds the interpreter's lock
        mark("exit", context)
        if how == "exit":
            os._exit(7)
        ctypes.string_at(0)


@task(queue=QUEUE, backoff=_SOON, run_in="process")
def die_in_process(context: Context, how: str, note: str = "") -> None:
    """End the pool's process, or exhaust or hold it."""
    _die(context, how)


@task(queue=QUEUE, backoff=_SOON)
async def die(context: Context, how: str, note: str = "") -> None:
    """End the worker itself, or exhaust it."""
    await asyncio.sleep(0)
    with traced(context):
        if how == "memory":
            raise MemoryError
        if how == "hang":
            time.sleep(3600)  # noqa: ASYNC251 - that is the poison
        mark("exit", context)
        if how == "exit":
            os._exit(7)
        ctypes.string_at(0)
