"""What a job costs its worker, counted in function calls: they repeat where times do not, so little by little shows.

Counted are the calls of Python functions, and each time a coroutine goes on, from a worker that begins to take a full
queue to its last ack, divided by the jobs. Not counted is what comes once a packet and not once a job: the event loop,
nats-py, and whatever else depends on how fast the machine is.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest
from tests.support.working import Connect, until, working

from jobledger.ledger import task

pytestmark = pytest.mark.anyio

JOBS: Final = 400
CONCURRENCY: Final = 64
#: What was measured, 111, and less than a tenth. Who adds a call for every job on purpose raises it by as much, after comparing
#: `benchmarks/core.py` before and after; who takes calls away lowers it, so that the next ones do not creep in unseen.
CALLS_PER_JOB_MAX: Final = 120
_PER_PACKET: Final = ("/asyncio/", "/anyio/", "/site-packages/nats/", "/uvloop/", "/selectors.py")
#: Nor is what the tests do themselves.
_TESTS: Final = str(Path(__file__).parents[1])


@task(queue="cost")
async def idle(number: int, padding: str) -> int:
    global _left  # noqa: PLW0603 - a task has no other way out
    _left -= 1
    return number


_left = JOBS


class CallCounter:
    """Counts by function what is called in this thread."""

    def __init__(self) -> None:
        self._calls: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._calls[frame.f_code] += 1

    def per_job(self) -> dict[str, float]:
        """Return calls per job by function, the most frequent first."""
        return {
            f"{Path(code.co_filename).name}:{code.co_qualname}": count / JOBS
            for code, count in self._calls.most_common()
            if not code.co_filename.startswith(_TESTS)
            and not any(part in code.co_filename for part in _PER_PACKET)
        }


async def test_a_job_costs_its_worker_no_more_calls_than_is_known(connected: Connect) -> None:
    # One by one, since how many go in a group depends on how fast the machine is.
    async with connected(commit="pipeline") as ledger:
        await ledger.enqueue_many(idle, ({"number": n, "padding": "x" * 60} for n in range(JOBS)))
        counter = CallCounter()
        async with working(ledger, idle, concurrency=CONCURRENCY, reactors=False) as worker:
            await worker.taking.wait()
            sys.setprofile(counter)
            try:
                await until(lambda: _left <= 0 and worker.counts().held == 0)
            finally:
                sys.setprofile(None)
    found = counter.per_job()
    total = sum(found.values())
    most = "\n".join(f"{calls:8.2f} {name}" for name, calls in found.items() if calls > 0.5)
    assert total <= CALLS_PER_JOB_MAX, f"{total:.1f} calls a job, at most {CALLS_PER_JOB_MAX} were:\n{most}"
    # A count that missed the half of it would never fail.
    assert total > CALLS_PER_JOB_MAX * 0.7, f"only {total:.1f} calls a job: lower the bound to a tenth above"


async def test_what_a_job_leaves_is_freed_at_once(connected: Connect) -> None:
    """Objects that hold each other wait for a collection, which costs every job, and memory until it comes."""
    before = _left
    async with connected(commit="pipeline") as ledger:
        await ledger.enqueue_many(idle, ({"number": n, "padding": "x" * 60} for n in range(JOBS)))
        gc.collect()
        gc.disable()
        try:
            async with working(ledger, idle, concurrency=CONCURRENCY, reactors=False) as worker:
                await until(lambda: _left <= before - JOBS and worker.counts().held == 0)
                found = gc.collect()
        finally:
            gc.enable()
    assert found < JOBS, f"{found} objects of {JOBS} jobs waited for a collection"
