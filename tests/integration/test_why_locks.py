"""`jobs show --why` says that a running job waits for a lock, and which process holds it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.working import LIMIT_S, Connect, working

from jobledger.audit.verify import verify
from jobledger.audit.why import explain, find_facts
from jobledger.ledger import Context, Ledger, task

pytestmark = pytest.mark.anyio


@task(queue="accounts")
async def pay(context: Context, account: str) -> str:
    async with context.ledger.lock("account", account, wait_s=60.0):
        return "paid"


async def test_a_job_that_waits_for_a_lock_says_who_holds_it(connected: Connect) -> None:
    async with connected(lease_s=1.5) as other, connected() as ledger, working(other, pay):
        async with ledger.lock("account", "42") as held:
            job = await ledger.enqueue(pay, "42")
            said = await _said(ledger, job)
            assert f", and waits for lock account/42, which process {held.holder} holds" in said
        assert await job.result(timeout_s=LIMIT_S) == "paid"
        assert other.locks.waits() == {}
        assert (await verify(ledger.log)).violations == ()


async def _said(ledger: Ledger, job: Any) -> str:
    """Wait until the worker's lease tells of the wait; return the sentence."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            snapshot = await job.snapshot()
            said = explain(snapshot, await find_facts(ledger, snapshot)).sentence
            if "waits for lock" in said:
                return said
            await asyncio.sleep(0.1)
