"""Runs that keep a slot of a limit to their end, and whose children name the same key."""

from __future__ import annotations

import asyncio

from jobledger.ledger import Limit, Run, task, workflow

_CUSTOMER = Limit("customer", key="customer", slots=1, keep="job")


@task(queue="work", limits=(_CUSTOMER,), max_attempts=50)
async def charge(customer: str) -> str:
    """Sleep on the loop."""
    await asyncio.sleep(0.01)
    return customer


@workflow(queue="work", max_attempts=50)
async def middle(run: Run, customer: str) -> list[str]:
    """Name no limit, but call what names one of the run above."""
    return await run.map(charge, [customer] * 3)


@workflow(queue="work", limits=(_CUSTOMER,), max_attempts=50)
async def order(run: Run, customer: str) -> int:
    """Call children that are on its own slot."""
    first = await run.call(charge, customer=customer)
    return len([first, *await run.call(middle, customer=customer)])
