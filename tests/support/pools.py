"""Pools of processes inside a test: one that hears what its tasks say, and waits with a limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.support import limits

from jobledger.workers.pool.pool import (
    Call,
    ProcessPool,
    Result,
    TaskValue,
)

APPS = Path(__file__).parents[1] / "integration" / "apps"
TASKS = str(APPS / "pool_tasks.py")
LIMIT_S = limits.LIMIT_S
until = limits.until

Pools = Callable[..., ProcessPool]


class Heard:
    """What a task said; checkpoints are answered by `answer`."""

    def __init__(self, answer: BaseException | None = None, answer_after_s: float = 0.0) -> None:
        self.beats = 0
        self.reports: list[tuple[float, float | None, str]] = []
        self.checkpoints: list[bytes] = []
        self.began = asyncio.Event()
        self._answer = answer
        self._answer_after_s = answer_after_s

    def heartbeat(self) -> None:
        self.beats += 1
        self.began.set()

    def progress(self, done: float, total: float | None, note: str) -> None:
        self.reports.append((done, total, note))

    def checkpoint_text(self, text: bytes) -> Awaitable[None]:
        return self._keep(text)

    async def _keep(self, text: bytes) -> None:
        await asyncio.sleep(self._answer_after_s)
        if self._answer is not None:
            raise self._answer
        self.checkpoints.append(text)


def call(task: str, /, **arguments: Any) -> Call:
    text = msgspec.Raw(msgspec.json.encode(arguments))
    return Call(task=task, input=text, job_id="job-1", queue="cpu", attempt=2, worker="w-1-a")


def value(result: Result) -> Any:
    assert isinstance(result, TaskValue), result
    return msgspec.json.decode(result.value) if isinstance(result.value, msgspec.Raw) else result.value


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that waits for a stopped parent to hear of it has."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        return state in "ZX"
    return False
