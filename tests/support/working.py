"""Running workers inside a test: a worker for the length of a block, and waits with a limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from tests.support import limits

from jobledger.ledger import Job, JobHandle, JobState, Ledger, Task, TaskRegistry
from jobledger.ledger.model.commands import Claim, CompleteStep, Fail
from jobledger.ledger.model.events import ErrorInfo
from jobledger.workers import Worker, WorkerConfig

Connect = Callable[..., AbstractAsyncContextManager[Ledger]]
LIMIT_S = limits.LIMIT_S
until = limits.until


@contextlib.asynccontextmanager
async def working(
    ledger: Ledger, *tasks: Task[..., Any], registry: TaskRegistry | None = None, **config: Any
) -> AsyncGenerator[Worker, None]:
    """Run a worker for the length of the block; what still runs at its end gets a moment."""
    settings: dict[str, Any] = {"grace_s": 2.0, **config}
    worker = Worker(ledger, registry or TaskRegistry(tasks), WorkerConfig(**settings))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        if not worker._stopping.is_set():  # a second stop would not leave running jobs their grace
            worker.stop()
        async with asyncio.timeout(LIMIT_S):
            await running


async def bury(ledger: Ledger, handle: JobHandle[Any]) -> None:
    """Let a job's only attempt fail, without a worker."""
    error = ErrorInfo(kind="exception", type="ValueError", message="no")
    claimed = await ledger.execute(handle.ref, Claim(worker="w", lease_s=15))
    await ledger.execute(handle.ref, Fail(epoch=claimed.claim_epoch, error=error))


async def record_steps(ledger: Ledger, handle: JobHandle[Any], *steps: str) -> None:
    """Let a job become a run that has recorded some steps and goes on, without a worker."""
    held = (await ledger.execute(handle.ref, Claim(worker="w", lease_s=15))).claim_epoch
    for key in steps:
        await ledger.execute(handle.ref, CompleteStep(epoch=held, step=key, kind="step", target=key))


async def types(job: JobHandle[Any]) -> list[str]:
    """Return the types of a job's events, oldest first."""
    return [msgspec.json.decode(stored.data)["type"] for stored in await job.history()]


async def attempts(job: JobHandle[Any]) -> list[str]:
    """Return the states of a job's attempts, oldest first."""
    return [attempt.state for attempt in (await job.snapshot()).attempts]


async def ended(job: JobHandle[Any]) -> Job:
    """Wait for a job's end."""
    return await job.wait(timeout_s=LIMIT_S)


async def becomes(job: JobHandle[Any], state: JobState) -> Job:
    """Wait until a job is in a state, and return it as it is then."""
    async with asyncio.timeout(LIMIT_S):
        while (found := await job.snapshot()).state is not state:
            await asyncio.sleep(0.01)
    return found
