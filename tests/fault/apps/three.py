"""Tasks for three servers: of each kind that waits for another part of the system, each traced as in chaos.py."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("CHAOS_TRACE", os.devnull)  # they run elsewhere

from chaos import mark, traced  # type: ignore[import-not-found]

from jobledger.ledger import Backoff, Context, Limit, Run, Schedule, task, workflow

SLOTS = 2
EACH_S = 2
_SOON = Backoff(kind="linear", base_s=0.3, cap_s=1.0)


@task(queue="plain", max_attempts=20, backoff=_SOON)
async def plain(context: Context, n: int) -> int:
    """Sleep for up to 0.6 s."""
    with traced(context):
        await asyncio.sleep(n % 5 * 0.15)
    return n


@task(queue="other", max_attempts=20, backoff=_SOON)
async def again(context: Context, n: int) -> int:
    """Fail twice, then complete."""
    with traced(context):
        if context.attempt < 3:
            raise ValueError(n)
    return n


@task(queue="other", max_attempts=2, backoff=_SOON)
async def never(context: Context, n: int) -> None:
    """Fail for good."""
    with traced(context):
        raise ValueError(n)


@task(queue="few", max_attempts=20, backoff=_SOON, limits=(Limit("tenant", key="tenant", slots=SLOTS),))
async def limited(context: Context, tenant: str, n: int) -> int:
    """Hold a slot of a tenant for 0.2 s."""
    with traced(context):
        await asyncio.sleep(0.2)
    return n


@task(queue="plain", max_attempts=20)
async def tick(context: Context) -> None:
    """Be the job of a schedule."""
    mark("start", context)
    mark("end", context)


BEAT = Schedule("beat", every_s=EACH_S, task=tick, catchup="all", overlap="allow")


@workflow(queue="runs", max_attempts=50)
async def order(run: Run, n: int) -> int:
    """Wait for children, then for a time."""
    got = await run.map(plain, range(n, n + 5), limit=3)
    await run.sleep(0.5)
    return sum(got)
