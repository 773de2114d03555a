"""Tasks for the process pool under test: well-behaved ones, and each way there is to harm a process."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from jobledger.ledger import Cancel, Context, Fail, Retry, Snooze, task

KEPT: list[Any] = []
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@task(run_in="process")
def pid() -> int:
    """Name the process."""
    return os.getpid()


@task(run_in="process")
def add(left: int, right: int) -> int:
    """Add."""
    return left + right


@task(run_in="process")
async def add_async(left: int, right: int) -> int:
    """Add, on a loop of its own."""
    await asyncio.sleep(0)
    return left + right


@task(run_in="process")
def facts(context: Context) -> list[Any]:
    """Return what the context says."""
    deadline = context.deadline.isoformat() if context.deadline else None
    return [
        context.job_id,
        context.queue,
        context.task,
        context.attempt,
        context.worker,
        deadline,
        context.checkpoint_value,
    ]


@task(run_in="process")
def die(how: str) -> Any:
    """End this process."""
    match how:
        case "exit":
            os._exit(7)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "close":
            os.closerange(3, 64)
            time.sleep(600)
        case _:
            raise ValueError(how)


class UnprintableError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class ForeignError(BaseException):
    """Is no Exception."""


def _recurse(depth: int) -> int:
    return _recurse(depth + 1) + 1


@task(run_in="process", retry_on=(ValueError, SystemExit), give_up_on=(UnicodeError,))
def fail(how: str) -> Any:
    """Fail, in a way that leaves the process as it is."""
    match how:
        case "raise":
            raise ValueError("no such user")
        case "give up":
            "\udc80".encode()
        case "unprintable":
            raise UnprintableError
        case "foreign":
            raise ForeignError("from far away")
        case "surrogate":
            raise ValueError("file \udc80.txt")
        case "long":
            raise ValueError("x" * 100_000)
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "recurse":
            _recurse(0)
        case _:
            raise AssertionError(how)


@task(run_in="process")
def give(what: str, size: int = 0) -> Any:
    """Return something."""
    match what:
        case "text":
            return "x" * size
        case "nan":
            return float("nan")
        case "object":
            return object()
        case "retry":
            return Retry(delay_s=2.5, reason="not yet", priority="low")
        case "snooze":
            return Snooze(60)
        case "cancel":
            return Cancel("nothing to do")
        case "fail":
            return Fail("no use")
        case "bad retry":
            return Retry(reason=5)  # type: ignore[arg-type]
        case _:
            raise AssertionError(what)


@task(run_in="process")
def use_memory(size_bytes: int) -> int:
    """Take that much memory at once."""
    return len(bytearray(size_bytes))


@task(run_in="process")
def hang(context: Context, how: str) -> None:
    """Go on for ever; the first heartbeat says that it began, progress names a process that was started."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "with a program":
        started = subprocess.Popen(SLEEPER)
        context.progress(started.pid, note="started")
    context.heartbeat()
    if how == "in C":
        re.match(r"(a+)+$", "a" * 60 + "b")  # holds the interpreter's lock for years
    while True:
        time.sleep(1)


@task(run_in="process")
def speak(context: Context) -> str:
    """Use every verb of the context."""
    context.heartbeat()
    for done in range(1001):
        context.progress(done, 1000, "pages")
    stored = context.checkpoint({"page": 1000})
    assert stored is not None
    context.logger.warning("half of %s", "it")
    logging.getLogger("billing").error("elsewhere \udc80")
    logging.getLogger("billing").debug("not wanted")
    print("a line on stdout")  # noqa: T201 - as users do
    print("a line on stderr", file=sys.stderr)  # noqa: T201 - as users do
    return "said"


@task(run_in="process")
async def speak_async(context: Context) -> str:
    """Keep a checkpoint while the loop goes on."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    ticking = asyncio.create_task(tick())
    await context.checkpoint([1])
    ticking.cancel()
    return "the loop went on" if ticks > 3 else f"only {ticks} ticks"


@task(run_in="process")
def keep(context: Context) -> str:
    """Return the name and words of what a checkpoint raises."""
    try:
        _ = context.checkpoint(1)
    except BaseException as error:  # noqa: BLE001 - one of them is no Exception
        return f"{type(error).__name__}: {error}"
    return "stored"


@task(run_in="process")
def keep_too_much(context: Context, size: int) -> None:
    """Keep a checkpoint of that size."""
    _ = context.checkpoint("x" * size)


@task(run_in="process")
def send(context: Context, how: str) -> str:
    """Write to the line to the worker what does not belong there."""
    line: Any = context.channel
    raw = line._link._socket
    match how:
        case "garbage":
            raw.sendall(b"\x00\x00\x00\x07garbage")
        case "too much":
            raw.sendall(b"\xff" * 1000)
        case "deep":
            body = b'{"type":"checkpoint","value":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
            raw.sendall(len(body).to_bytes(4, "big") + body)
        case "another result":
            body = b'{"type":"returned","number":999,"value":1}'
            raw.sendall(len(body).to_bytes(4, "big") + body)
        case _:
            raise AssertionError(how)
    time.sleep(600)
    return "unreached"


@task(run_in="process")
def heed(how: str) -> Any:
    """Get a signal that is meant for the whole service; programs and forks end by it, this process does not."""
    if how == "itself":
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        return "still here"
    if how == "program":
        program = subprocess.Popen(SLEEPER)
        program.terminate()
        return program.wait(timeout=30)
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    fork.start()
    fork.terminate()
    fork.join(timeout=30)
    return fork.exitcode


@task(run_in="process")
def fork_and_return() -> str:
    """Return twice, once in a process that nobody asked for."""
    return "child" if os.fork() == 0 else "parent"


@task(run_in="process")
def keep_context(context: Context) -> None:
    """Leave the context to a thread that outlives the attempt."""

    def talk() -> None:
        for _ in range(50):
            context.progress(99, note="too late")
            time.sleep(0.002)
        try:
            _ = context.checkpoint("too late")
        except BaseException as error:  # noqa: BLE001 - it is no Exception
            KEPT.append(type(error).__name__)

    threading.Thread(target=talk).start()


@task(run_in="process")
def kept() -> Any:
    """Return what that thread got, once it has it."""
    for _ in range(500):
        if KEPT:
            return KEPT[0]
        time.sleep(0.01)
    return "nothing"


@task(run_in="process")
def at_exit(path: str) -> None:
    """Leave a file behind when the process ends in good order."""
    atexit.register(Path(path).write_text, "in good order", encoding="utf-8")


@task(run_in="process")
def nap(context: Context, seconds: float) -> str:
    """Sleep, after a heartbeat."""
    context.heartbeat()
    time.sleep(seconds)
    return "awake"
