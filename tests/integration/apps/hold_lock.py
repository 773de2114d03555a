"""Hold one lock in a process of its own: `hold_lock.py sync|async URL ENVIRONMENT LOCK_ID WAIT_S`.

Says what happens, line by line: `held NUMBER` once inside, then `released`, `lost` or `timeout HOLDER`. Inside, the
sync one obeys its input: `check`, `write PATH TEXT` (to what the lock guards), `release`; the async one ends with
the first line.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

from jobledger.ledger import HeldLock, connect, sync
from jobledger.ledger.model.errors import LockLostError, LockTimeoutError


def guarded_write(path: Path, fencing_number: int, text: str) -> bool:
    """Write to what the lock guards; it remembers the highest number it has seen, and refuses a smaller one."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS thing (id INTEGER PRIMARY KEY, number INTEGER, text TEXT)"
        )
        connection.execute("INSERT OR IGNORE INTO thing VALUES (1, 0, '')")
        changed = connection.execute(
            "UPDATE thing SET number = ?, text = text || ? WHERE id = 1 AND number <= ?",
            (fencing_number, text, fencing_number),
        )
        return changed.rowcount == 1
    finally:
        connection.close()


def say(*words: object) -> None:
    """Print one line at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def obey(held: HeldLock) -> None:
    """Do what the input says until it says `release`."""
    while True:
        word, _, rest = sys.stdin.readline().strip().partition(" ")
        if word == "check":
            try:
                held.check()
                say("still held")
            except LockLostError as error:
                say("not held:", error)
        elif word == "write":
            path, _, text = rest.partition(" ")
            say("written" if guarded_write(Path(path), held.fencing_number, text) else "refused")
        else:
            return


async def hold_async(url: str, environment: str, lock_id: str, wait_s: float) -> None:
    """Hold the lock in a task, until there is a line to read, or the lock is lost."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    async with connect(url, environment=environment) as ledger:
        async with ledger.lock("account", lock_id, wait_s=wait_s) as held:
            say("held", held.fencing_number)
            loop.add_reader(sys.stdin, told.set)
            try:
                await told.wait()
            finally:
                loop.remove_reader(sys.stdin)
        say("released")


def hold_sync(url: str, environment: str, lock_id: str, wait_s: float) -> None:
    """Hold the lock in a thread, which nothing can cancel."""
    with sync.connect(url, environment=environment) as ledger:
        with ledger.lock("account", lock_id, wait_s=wait_s) as held:
            say("held", held.fencing_number)
            obey(held)
        say("released")


def main(kind: str, url: str, environment: str, lock_id: str, wait_s: str) -> None:
    """Take the lock and tell how it ended."""
    try:
        if kind == "sync":
            hold_sync(url, environment, lock_id, float(wait_s))
        else:
            asyncio.run(hold_async(url, environment, lock_id, float(wait_s)))
    except LockTimeoutError as error:
        say("timeout", error.holder)
    except LockLostError:
        say("lost")


if __name__ == "__main__":
    main(*sys.argv[1:])
