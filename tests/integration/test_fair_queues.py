"""Fair queues end to end, on a real server: whoever has few jobs does not wait behind the one who has many."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.support.limited import grants
from tests.support.working import LIMIT_S, Connect, ended, types, working

from jobledger.admin.limits import set_limit
from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, Queue, task
from jobledger.ledger.model.codec import StoredEvent

pytestmark = pytest.mark.anyio

CONCURRENCY = 5
MANY, FEW = 10_000, 10


@task(queue=Queue("fair", fair="tenant"))
async def serve(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def starts(ledger: Ledger, from_sequence: int = 1) -> list[StoredEvent]:
    return [
        stored
        async for batch in ledger.log.read(
            from_sequence=from_sequence, subject=ledger.names.all_of_type("started")
        )
        for stored in batch
    ]


async def until_started(ledger: Ledger, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(await starts(ledger)) < count:
            await asyncio.sleep(0.02)


async def test_ten_jobs_of_a_tenant_start_among_the_next_though_another_has_ten_thousand(
    ledger: Ledger, connected: Connect
) -> None:
    await ledger.enqueue_many(serve.options(tenant="large"), ({"number": number} for number in range(MANY)))
    async with connected() as other, working(other, serve, concurrency=CONCURRENCY):
        await until_started(ledger, 50)
        few = [await ledger.enqueue(serve.options(tenant="small"), number) for number in range(FEW)]
        for job in few:
            await ended(job)
    waiting = max(job.sequence for job in few)  # from here on all of them wait
    after = [each.event.job for each in await starts(ledger, waiting)]
    names = {job.id for job in few}
    last = max((place for place, job in enumerate(after) if job in names), default=0)
    # Before them: what was granted already, twice the slots of the workers. Between them: one of the other's for each.
    assert last < 2 * CONCURRENCY + 2 * FEW + 2 * CONCURRENCY, f"{last} jobs before the last of {FEW}"
    assert len(await starts(ledger)) < MANY / 2, "there was no backlog to wait behind"
    granted = await grants(ledger)
    assert granted[-1].slots == {"queue:fair": 2 * CONCURRENCY}
    assert await types(few[0]) == ["held", "queued", "started", "completed"]
    report = await verify(ledger.log)
    assert report.sound, report.text()


async def test_a_tenant_of_three_times_the_weight_starts_three_jobs_to_one(
    ledger: Ledger, connected: Connect
) -> None:
    await set_limit(ledger, "tenant", {"slots": None}, by="ann")  # as the commands of docs/limits.md
    await set_limit(ledger, "tenant:acme", {"weight": 3.0}, by="ann")
    tenants = dict[str, str]()
    for tenant in ("acme", "other"):
        for number in range(100):
            tenants[(await ledger.enqueue(serve.options(tenant=tenant), number)).id] = tenant
    async with connected() as other, working(other, serve, concurrency=CONCURRENCY):
        await until_started(ledger, 120)
    shares = Counter(tenants[each.event.job] for each in (await starts(ledger))[:80])
    assert 54 <= shares["acme"] <= 66, shares


async def test_the_slots_of_a_fair_queue_are_twice_those_of_its_living_workers(
    ledger: Ledger, connected: Connect
) -> None:
    async with connected() as one, connected() as two, working(one, serve, concurrency=2):
        await ended(await ledger.enqueue(serve.options(tenant="a"), 1))
        assert (await grants(ledger))[-1].slots == {"queue:fair": 4}
        async with working(two, serve, concurrency=3) as second, asyncio.timeout(LIMIT_S):
            await second.taking.wait()
            while (await grants(ledger))[-1].slots != {"queue:fair": 10}:
                await ended(await ledger.enqueue(serve.options(tenant="a"), 1))
