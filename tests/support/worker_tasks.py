"""Tasks that workers run in tests, and what is noted of their runs in this process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from jobledger.ledger import (
    Context,
    task,
)

RUNS: Counter[str] = Counter()
BEGAN: list[str] = []


@task
async def double(n: int) -> int:
    RUNS[f"double-{n}"] += 1
    return 2 * n


@task
async def sleep(context: Context, seconds: float) -> int:
    RUNS[context.job_id] += 1
    BEGAN.append(context.job_id)
    await asyncio.sleep(seconds)
    return context.attempt


@task
def sleep_in_thread(context: Context, seconds: float) -> int:
    RUNS[context.job_id] += 1
    BEGAN.append(context.job_id)
    time.sleep(seconds)
    return context.attempt
