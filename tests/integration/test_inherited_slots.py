"""Runs that keep a slot of a limit to their end, and whose children name the same key: nobody waits for himself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.working import LIMIT_S, Connect, ended, types, working

from jobledger.audit.verify import verify
from jobledger.ledger import JobHandle, JobState, Ledger, Limit, Run, task, workflow
from jobledger.ledger.model.events import Held, Order, Queued

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


async def below(ledger: Ledger, run: str, task: str) -> tuple[JobHandle[Any], Order]:
    """Return a child of a run, by its id, that runs a task, and what it was enqueued with."""
    async for batch in ledger.log.read():
        for stored in batch:
            event = stored.event
            member = event.member if isinstance(event, Queued | Held) else None
            if member is not None and (member.job, event.task) == (run, task):
                handle = await ledger.job(event.job)
                return handle, (await handle.snapshot()).order
    raise AssertionError(f"run {run} has no child of task {task}")


async def test_children_are_on_the_slot_that_a_run_above_them_keeps(
    ledger: Ledger, connected: Connect
) -> None:
    async with connected() as other, working(other, order, middle, charge, tell, concurrency=8):
        jobs = [await ledger.enqueue(order.options(id=f"o{n}"), customer=f"c{n % 2}") for n in range(4)]
        for number, job in enumerate(jobs):
            assert await job.result(timeout_s=LIMIT_S) == [f"c{number % 2}"] * 5
    child, order_of = await below(ledger, "o0", "charge")
    assert await types(child) == ["queued", "started", "completed"]
    assert order_of.inherits == ("customer:c0",)
    _, order_of = await below(ledger, "o0", "tell")
    assert (order_of.limits, order_of.inherits) == (("api",), ("customer:c0",))
    between, _ = await below(ledger, "o0", "middle")
    _, order_of = await below(ledger, between.id, "charge")
    assert (order_of.limits, order_of.inherits) == ((), ("customer:c0",))
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_a_slot_that_is_given_back_while_a_run_waits_is_nobody_else_s(
    ledger: Ledger, connected: Connect
) -> None:
    async with connected() as other, working(other, parks, tell):
        job = await ledger.enqueue(parks.options(id="p"))
        assert (await ended(job)).state is JobState.COMPLETED
    _, child = await below(ledger, "p", "tell")
    assert (child.limits, child.inherits) == (("api", "customer:none"), ())
    report = await verify(ledger.log)
    assert report.sound, report.text()
