"""What the tests of subscriptions share: jobs to make events of, and reading with a limit."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support import limits

from jobledger.ledger import Ledger, task

LIMIT_S = limits.LIMIT_S


@task(queue="billing", max_attempts=1)
async def charge(number: int) -> None: ...


@task(queue="mail", max_attempts=1)
async def send(number: int) -> None: ...


async def enqueue(ledger: Ledger, *numbers: int) -> None:
    """Add one job `n<number>`, one event, for each."""
    await ledger.enqueue_many(charge, [{"number": n} for n in numbers], ids=lambda each: f"n{each['number']}")


async def take(events: Any, count: int) -> list[Any]:
    async with asyncio.timeout(LIMIT_S):
        return [await anext(events) for _ in range(count)]


async def rest(ledger: Ledger, name: str, **options: Any) -> list[int]:
    """Handle all that a subscription has to give now; return the stream sequences."""
    events = ledger.events(durable=name, follow=False, **options)
    async with asyncio.timeout(LIMIT_S):
        return [stored.stream_sequence async for stored in events]


def sequences(deliveries: list[Any]) -> list[int]:
    return [each.stored.stream_sequence for each in deliveries]


async def until_acknowledged(ledger: Ledger, name: str, sequence: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while [i.acknowledged_sequence for i in await ledger.subscriptions() if i.name == name] != [sequence]:
            await asyncio.sleep(0.01)
