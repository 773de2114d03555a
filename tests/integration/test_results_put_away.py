"""A worker that stops while a large result is put away: the work is done, so it is recorded and not run again."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from tests.support.limits import LIMIT_S

from jobledger.ledger import JobState, TaskRegistry, task
from jobledger.testing import MemoryLedger
from jobledger.workers.bench import Bench

pytestmark = pytest.mark.anyio


async def test_a_stop_while_a_large_result_is_stored_lets_it_be_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    charged: list[int] = []

    @task(queue="bank")
    async def charge(cents: int) -> str:
        charged.append(cents)
        return "x" * 100_000

    ledger = MemoryLedger()
    storing, may_go_on = anyio.Event(), anyio.Event()
    put = ledger.results.put

    async def slow(text: bytes, *, what: str, key: str) -> Any:
        storing.set()
        await may_go_on.wait()
        return await put(text, what=what, key=key)

    monkeypatch.setattr(ledger.results, "put", slow)
    job = await ledger.enqueue(charge, 250)
    dispatch = (await job.history())[0]
    with anyio.fail_after(LIMIT_S):
        async with Bench(ledger, TaskRegistry([charge])) as bench:
            running = asyncio.create_task(bench.run(dispatch))
            await storing.wait()
            bench._attempts.stop("the worker stops", grace_s=LIMIT_S)
            may_go_on.set()
            await running
    await ledger.run_pending()
    ended = await job.snapshot()
    assert (ended.state, [attempt.state for attempt in ended.attempts]) == (JobState.COMPLETED, ["completed"])
    assert charged == [250]
