"""A running task that somebody asks to pause: it ends at its next checkpoint, and goes on from there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.working import LIMIT_S, becomes, ended, types, until, working

from jobledger.ledger import AttemptStoppedError, Context, JobHandle, JobState, Ledger, TaskRegistry, task
from jobledger.ledger.model.commands import RequestPause, ResumeJob

pytestmark = pytest.mark.anyio

ROWS = 400
SEEN: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


@task(max_attempts=1)
async def copies(context: Context) -> list[int]:
    start = context.checkpoint_value or 0
    try:
        for row in range(start, ROWS if context.attempt == 1 else start + 1):
            await context.checkpoint(row + 1)
    except asyncio.CancelledError:
        SEEN["heard"] += 1
        raise
    return [context.attempt, start]


@task(max_attempts=1)
def copies_in_thread(context: Context) -> list[int]:
    start = context.checkpoint_value or 0
    try:
        for row in range(start, ROWS if context.attempt == 1 else start + 1):
            context.checkpoint(row + 1)  # type: ignore[unused-awaitable]
    except AttemptStoppedError:
        SEEN["heard"] += 1
        raise
    return [context.attempt, start]


IN_PROCESS = f"""
from jobledger.ledger import Context, task

@task(max_attempts=1, run_in="process")
async def copies_in_process(context: Context) -> list[int]:
    start = context.checkpoint_value or 0
    for row in range(start, {ROWS} if context.attempt == 1 else start + 1):
        await context.checkpoint(row + 1)
    return [context.attempt, start]
"""


async def has_kept(job: JobHandle[Any]) -> None:
    """Wait until an attempt has stored a checkpoint."""
    async with asyncio.timeout(LIMIT_S):
        while "checkpointed" not in await types(job):
            await asyncio.sleep(0.005)


async def goes_on_after_a_pause(ledger: Ledger, job: JobHandle[Any]) -> None:
    await has_kept(job)
    await ledger.execute(job.ref, RequestPause(reason="not now"), by="ops")
    paused = await becomes(job, JobState.PAUSED)
    assert paused.attempts_left == 1, "a pause costs no attempt"
    kept = int(bytes(paused.checkpoint))
    assert kept < ROWS
    await ledger.execute(job.ref, ResumeJob(), by="ops")
    assert await job.result(timeout_s=2 * LIMIT_S) == [2, kept]


@pytest.mark.parametrize("each", [copies, copies_in_thread], ids=["async", "sync"])
async def test_a_task_pauses_at_its_next_checkpoint_and_goes_on_from_it(ledger: Ledger, each: Any) -> None:
    async with working(ledger, copies, copies_in_thread):
        await goes_on_after_a_pause(ledger, await ledger.enqueue(each))
    assert SEEN["heard"] == 1, "its code hears of it, and can clean up"


async def test_a_task_in_a_process_pauses_at_its_next_checkpoint(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / f"paused_{tmp_path.name.replace('-', '_')}.py"
    path.write_text(IN_PROCESS)
    tasks = TaskRegistry.load([str(path)])
    async with working(ledger, registry=tasks, pool_size=1):
        await goes_on_after_a_pause(ledger, await ledger.enqueue(tasks.get("copies_in_process")))


@task
def swallows(context: Context) -> None:
    for row in range(100):
        try:
            context.checkpoint(row)  # type: ignore[unused-awaitable]
        except AttemptStoppedError:
            SEEN["swallowed"] += 1
            time.sleep(0.005)


async def test_a_thread_that_does_not_obey_is_left_behind(ledger: Ledger) -> None:
    async with working(ledger, swallows, cancel_grace_s=0.1):
        job = await ledger.enqueue(swallows)
        await has_kept(job)
        await ledger.execute(job.ref, RequestPause(), by="ops")
        await becomes(job, JobState.PAUSED)
        await until(lambda: SEEN["swallowed"] > 2)
    assert (await types(job))[-1] == "paused"


@task
async def makes_none() -> str:
    SEEN["began"] += 1
    while not SEEN["asked"]:
        await asyncio.sleep(0.001)
    return "done"


async def test_a_task_without_checkpoints_goes_on_to_its_end(ledger: Ledger) -> None:
    async with working(ledger, makes_none):
        job = await ledger.enqueue(makes_none)
        await until(lambda: SEEN["began"] == 1)
        await ledger.execute(job.ref, RequestPause(), by="ops")
        SEEN["asked"] += 1
        assert (await ended(job)).state is JobState.COMPLETED
