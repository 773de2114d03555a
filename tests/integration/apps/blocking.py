"""Blocking clients in processes of their own: `blocking.py SCENARIO URL ENVIRONMENT` says what happened, a line each.

A scenario is a function below. Whatever it forks ends as a program does, by the interpreter's end, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jobledger.ledger import connection as asynchronous
from jobledger.ledger import sync, task
from jobledger.ledger.model.errors import ForeignLoopError, LedgerClosedError, LockLostError


@task(queue="sync")
def double(number: int) -> int:
    return 2 * number


def say(*words: object) -> None:
    """Print one line at once: children print in between."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def connect() -> sync.Ledger:
    return sync.connect(sys.argv[2], environment=sys.argv[3], ledger_bytes_max=1 << 24)


def forked(child: Callable[[], None]) -> None:
    """Run `child` in a forked process that ends as every program does; wait for it."""
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    say("child ended", os.waitstatus_to_exitcode(status))


def connections() -> set[int]:
    """The TCP connections that this process has open, by inode."""
    found: set[int] = set()
    for path in list(Path("/dev/fd").iterdir()):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as opened:
            if opened.family in (socket.AF_INET, socket.AF_INET6):
                found.add(os.fstat(opened.fileno()).st_ino)
    return found


def fork() -> None:
    """A connection made by a plain call and never closed; children and a grandchild, with and without a call."""
    ledger = connect()
    job = ledger.enqueue(double.options(id="of-parent"), 1)
    reading = ledger.events(live=True)
    reading.__enter__()
    ours = connections()

    def grandchild() -> None:
        say("grandchild", ledger.enqueue(double.options(id="of-grandchild"), 3).created)

    def child() -> None:
        say("shared", len(ours), len(ours & connections()))
        say("child", job.state().value, ledger.enqueue(double.options(id="of-child"), 2).created)
        try:
            next(reading)
        except ForeignLoopError as error:
            say("reading", error)
        forked(grandchild)

    forked(child)
    forked(lambda: None)
    forked(ledger.close)
    say("parent", job.state().value, next(reading).event.job, ledger.enqueue(double, 4).created)


def fork_in_lock() -> None:
    """A child that goes on inside of a lock's block, and leaves it."""
    ledger = connect()
    pid = -1
    try:
        with ledger.lock("account", "42") as held:
            number = held.fencing_number
            pid = os.fork()
            if pid == 0:
                say("held in child", held.is_held)
                try:
                    held.check()
                except LockLostError as error:
                    say("check", error)
                say("enqueued", ledger.enqueue(double, 1).created)
            else:
                os.waitpid(pid, 0)
                held.check()
    except LockLostError as error:
        say("left by child" if pid == 0 else "left by parent", error)
        sys.exit(0)
    with ledger.lock("account", "42") as held:
        say("parent", held.fencing_number > number)


def fork_amid_calls() -> None:
    """Forks while eight threads call, so that every lock is held by one of them now and then."""
    ledger = connect()
    stopping = threading.Event()

    def call(number: int) -> int:
        count = 0
        while not stopping.is_set():
            ledger.enqueue(double, number)
            count += 1
        return count

    with ThreadPoolExecutor(8) as pool:
        calling = [pool.submit(call, number) for number in range(8)]
        for number in range(12):
            pid = os.fork()
            if pid == 0:
                made = ledger.enqueue(double.options(id=f"child-{number}"), number)
                ledger.close()
                os._exit(0 if made.created else 1)
            _, status = os.waitpid(pid, 0)
            say("child", os.waitstatus_to_exitcode(status))
        stopping.set()
        say("parent", all(each.result() > 0 for each in calling))


_LEDGER: list[sync.Ledger] = []


def _in_pool(number: int) -> str:
    return _LEDGER[0].enqueue(double.options(id=f"pool-{number}"), number).id


def multiprocess() -> None:
    """A pool of forked processes that use what the module connected."""
    _LEDGER.append(connect())
    with multiprocessing.get_context("fork").Pool(3) as pool:
        say(*sorted(pool.map(_in_pool, range(6))))
    say("parent", _LEDGER[0].enqueue(double, 1).created)


def without_hooks() -> None:
    """A fork in C that runs no hooks of Python: only the pid tells.

    Where the thread of the connection wants the interpreter's lock just then, the child's copy of that lock is never
    free, and nothing in the child can run: a clock of the system ends such a child, and another one is forked.
    """
    ledger = connect()
    ours = connections()
    for _ in range(5):
        pid = ctypes.PyDLL(None).fork()
        if pid == 0:
            signal.alarm(5)
            say("child", ledger.enqueue(double, 1).created, len(ours), len(ours & connections()))
            ledger.close()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGALRM:
            break
    say("parent", ledger.enqueue(double, 2).created)


async def _fork_in_loop() -> None:
    opening = asynchronous.connect(sys.argv[2], environment=sys.argv[3], ledger_bytes_max=1 << 24)
    async with opening as ledger:
        job = await ledger.enqueue(double, 1)
        pid = os.fork()
        if pid == 0:
            for use in (
                lambda: asyncio.run(ledger.job(job.id)),
                lambda: ledger.enqueue(double, 1).send(None),
            ):
                try:
                    use()
                except ForeignLoopError as error:
                    say("child", str(error).replace(str(os.getppid()), "PARENT"))
            os._exit(0)
        os.waitpid(pid, 0)  # noqa: ASYNC222 - the loop has nothing else to do
        say("parent", (await job.state()).value, (await ledger.enqueue(double, 2)).created)


def fork_asynchronous() -> None:
    """An asynchronous ledger in a child that was forked amid a running loop: in a loop of its own, and without one."""
    asyncio.run(_fork_in_loop())


def unclosed() -> None:
    """Say so and end, with a connection open and a call under way in a thread that nobody waits for."""
    ledger = connect()
    reading = ledger.events(live=True)
    threading.Thread(target=_read, args=(reading,), daemon=True).start()
    say("connected")
    sys.stdin.readline()


def _read(reading: sync.EventStream) -> None:
    with contextlib.suppress(LedgerClosedError):
        next(reading)


def forgotten() -> None:
    """Connections that nobody holds are closed when they are collected."""
    for _ in range(3):
        connect().enqueue(double, 1)
    deadline = time.monotonic() + 20
    while any(each.name == "jobledger" for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    say("none left")


SCENARIOS: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        fork,
        fork_in_lock,
        fork_amid_calls,
        fork_asynchronous,
        multiprocess,
        without_hooks,
        unclosed,
        forgotten,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
