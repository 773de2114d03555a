"""Runs that keep a slot of a limit to their end, and whose children name the same key: nobody waits for himself."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.working import LIMIT_S, Connect, ended, types, working

from jobledger.audit.verify import verify
from jobledger.ledger import JobState, Ledger, Limit, Run, task, workflow

pytestmark = pytest.mark.anyio

ONE = Limit("customer", key="customer", slots=1, keep="job")
TWO = Limit("api", slots=2)


@task(queue="kids", limits=(ONE,))
async def charge(customer: str) -> str:
    await asyncio.sleep(0)
    return customer


@task(queue="kids", limits=(ONE, TWO))
async def tell(customer: str) -> str:
    return customer


@workflow(queue="runs")
async def middle(run: Run, customer: str) -> list[str]:
    """Name no limit, but call what names one of the run above."""
    return await run.map(charge, [customer] * 3)


@workflow(queue="runs", limits=(ONE,))
async def order(run: Run, customer: str) -> list[str]:
    first = await run.call(charge, customer=customer)
    nested = await run.call(middle, customer=customer)
    last = await run.call(tell, customer=customer)
    return [first, *nested, last]


@workflow(queue="runs", limits=(TWO,))
async def parks(run: Run) -> str:
    """Hold a slot of a limit that is given back while it waits."""
    return await run.call(tell, customer="none")


async def test_children_are_on_the_slot_that_a_run_above_them_keeps(
    ledger: Ledger, connected: Connect
) -> None:
    async with connected() as other, working(other, order, middle, charge, tell, concurrency=8):
        jobs = [await ledger.enqueue(order.options(id=f"o{n}"), customer=f"c{n % 2}") for n in range(4)]
        for number, job in enumerate(jobs):
            assert await job.result(timeout_s=LIMIT_S) == [f"c{number % 2}"] * 5
    child, last = await ledger.job("o0-1-0"), await ledger.job("o0-3-0")
    assert await types(child) == ["queued", "started", "completed"]
    assert (await child.snapshot()).order.inherits == ("customer:c0",)
    state = (await last.snapshot()).order
    assert (state.limits, state.inherits) == (("api",), ("customer:c0",))
    grandchild = await (await ledger.job("o0-2-0-1-2")).snapshot()
    assert (grandchild.task, grandchild.order.limits) == ("charge", ())
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_a_slot_that_is_given_back_while_a_run_waits_is_nobody_else_s(
    ledger: Ledger, connected: Connect
) -> None:
    async with connected() as other, working(other, parks, tell):
        job = await ledger.enqueue(parks.options(id="p"))
        assert (await ended(job)).state is JobState.COMPLETED
    child = (await (await ledger.job("p-1-0")).snapshot()).order
    assert (child.limits, child.inherits) == (("api", "customer:none"), ())
    report = await verify(ledger.log)
    assert report.sound, report.text()
