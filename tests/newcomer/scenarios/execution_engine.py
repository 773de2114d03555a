"""An execution engine with outcome events, as an application of jobledger."""

import asyncio
import os
from pathlib import Path

from jobledger.ledger import Backoff, Context, task

#: 0.1 s, 0.2 s, 0.4 s: as 5 s, 10 s, ... to 300 s, for a test.
RETRIES = Backoff(base_s=0.1, cap_s=300.0, jitter=0.0)


@task(queue="run-job", max_attempts=3, backoff=RETRIES)
async def simulate(context: Context, steps: list[str]) -> dict[str, int]:
    for number, each in enumerate(steps, 1):
        context.progress(number, total=len(steps))
        if each == "fail" or (each == "fail once" and context.attempt == 1):
            raise RuntimeError(f"step {number} failed")
        if each == "hang" and context.attempt == 1:
            Path("held").write_text(str(os.getpid()))  # noqa: ASYNC240 - a few bytes
            await asyncio.sleep(3_600)
    return {"steps": len(steps), "attempt": context.attempt}
