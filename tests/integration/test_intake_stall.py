"""A queue that runs empty all the time: jobs with a limit come to it in small groups, and no second goes by without one.

A worker that believes of its requests what the server does not know of stands still here, with work in its queue.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from tests.support.limited import define
from tests.support.watch import Watch
from tests.support.working import Connect, working

from jobledger.audit.verify import verify
from jobledger.audit.verify.grants import RULES
from jobledger.ledger import Ledger, task

pytestmark = pytest.mark.anyio

STILL_S = 1.0
BEAT_S = 0.02
SLOTS = 100


@task(queue="work")
async def work(number: int) -> int:
    await asyncio.sleep(0)
    return number


@asynccontextmanager
async def filled(ledger: Ledger, jobs: int) -> AsyncGenerator[None, None]:
    await define(ledger, "global", slots=SLOTS)
    await ledger.enqueue_many(work.options(limits=("global",)), ({"number": n} for n in range(jobs)))
    yield


async def longest_still_s(ledger: Ledger, connected: Connect, jobs: int) -> float:
    """Run the jobs with a worker; return the longest time between two ends.

    Only time counts in which this process could have worked: a busy machine may take its processor away.
    """
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(BEAT_S)

    beating = asyncio.create_task(beat())
    async with (
        filled(ledger, jobs),
        Watch.following(ledger) as watch,
        connected() as other,
        working(other, work),
    ):
        await watch.until_ended(jobs, limit_s=180.0)
    beating.cancel()
    report = await verify(ledger.log)
    assert report.proven == RULES, report.text()
    still = (
        bisect.bisect(beats, later) - bisect.bisect(beats, earlier)
        for earlier, later in itertools.pairwise(watch.progress_at)
    )
    return BEAT_S * max(still)


async def test_no_second_goes_by_without_the_end_of_a_limited_job(ledger: Ledger, connected: Connect) -> None:
    assert await longest_still_s(ledger, connected, 3_000) < STILL_S


@pytest.mark.fault
@pytest.mark.timeout(240)
@pytest.mark.parametrize("turn", range(10))
async def test_limits_of_many_jobs_never_stand_still(connected: Connect, turn: int) -> None:
    """Ten times, since the stall that this is about came in one run of seven."""
    async with connected(ledger_bytes_max=256 << 20) as ledger:
        assert await longest_still_s(ledger, connected, 25_000) < STILL_S, f"in turn {turn}"
