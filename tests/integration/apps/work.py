"""Tasks for worker processes under test. Each run leaves lines in a file opened with O_APPEND: the count of
executions comes from what really ran, not from what the ledger says about it.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from jobledger.ledger import Context, task


def mark(path: str, word: str, context: Context) -> None:
    """Append `<word> <job> <attempt> <pid>` in one write, which the kernel does not tear apart."""
    line = f"{word} {context.job_id} {context.attempt} {os.getpid()}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@task
async def nap(context: Context, path: str, seconds: float) -> str:
    """Sleep on the loop."""
    mark(path, "start", context)
    await asyncio.sleep(seconds)
    mark(path, "end", context)
    return f"attempt {context.attempt}"


@task
def nap_in_thread(context: Context, path: str, seconds: float) -> str:
    """Sleep in a thread."""
    mark(path, "start", context)
    time.sleep(seconds)
    mark(path, "end", context)
    return f"attempt {context.attempt}"


@task
async def until_there(context: Context, path: str, gate: str) -> str:
    """Run until a file exists."""
    mark(path, "start", context)
    while not Path(gate).exists():  # noqa: ASYNC240 - a look at a local file
        await asyncio.sleep(0.02)
    mark(path, "end", context)
    return f"attempt {context.attempt}"


@task
def until_there_in_thread(context: Context, path: str, gate: str) -> str:
    """Hold a thread until a file exists."""
    mark(path, "start", context)
    while not Path(gate).exists():
        time.sleep(0.02)
    mark(path, "end", context)
    return f"attempt {context.attempt}"


@task
async def quick(context: Context, path: str, number: int) -> int:
    """Leave a trace and return."""
    mark(path, "ran", context)
    return number
