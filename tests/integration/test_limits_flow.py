"""Jobs with limits end to end, on a real server: held, granted, queued, run, and their slots given back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.support.limited import define, enqueue, grants, times_granted
from tests.support.working import Connect, ended, types, working

from jobledger.audit.verify import verify
from jobledger.ledger import Context, JobState, Ledger, task
from jobledger.ledger.model.events import Queued

pytestmark = pytest.mark.anyio

RUNNING: Counter[str] = Counter()
MOST: Counter[str] = Counter()


@task(queue="work")
async def work(ctx: Context, seconds: float = 0.0, key: str = "all") -> str:
    RUNNING[key] += 1
    MOST[key] = max(MOST[key], RUNNING[key])
    try:
        await asyncio.sleep(seconds)
    finally:
        RUNNING[key] -= 1
    return ctx.job_id


@pytest.fixture(autouse=True)
def forget() -> None:
    RUNNING.clear()
    MOST.clear()


async def test_a_job_with_a_limit_is_held_granted_queued_and_run(ledger: Ledger, connected: Connect) -> None:
    await define(ledger, "api", slots=1)
    job = await enqueue(ledger, work, "api")
    async with connected() as other, working(other, work):
        assert (await ended(job)).state is JobState.COMPLETED
    assert await types(job) == ["held", "queued", "started", "completed"]
    (granted,) = await grants(ledger)
    queued = (await job.history())[1].event
    assert isinstance(queued, Queued)
    assert (queued.cause, queued.grant, [each.job for each in granted.jobs]) == ("admitted", 4, [job.id])
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_no_more_jobs_run_than_each_of_their_limits_allows(ledger: Ledger, connected: Connect) -> None:
    await define(ledger, "all", slots=5)
    await define(ledger, "tenant", slots=2)
    jobs: list[Any] = []
    for number in range(40):
        key = f"t{number % 4}"
        jobs.append(await enqueue(ledger, work, "all", f"tenant:{key}", given={"seconds": 0.01, "key": key}))
    async with connected() as other, working(other, work):
        for job in jobs:
            assert (await ended(job)).state is JobState.COMPLETED
    assert max(MOST.values()) == 2
    assert set((await times_granted(ledger)).values()) == {1}
    report = await verify(ledger.log)
    assert report.sound, report.text()
