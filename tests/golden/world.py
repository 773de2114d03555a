"""The small ledger whose answers and pages are recorded: something of everything, and always the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from tests.golden.app import TASKS, deliver, greet, send, totals
from tests.support.limits import LIMIT_S
from tests.support.working import bury, working

from jobledger.admin.hooks.webhooks import put_webhook
from jobledger.admin.keys import Grant, create_key
from jobledger.admin.limits import set_limit
from jobledger.admin.verbs.webhooks import PauseWebhook
from jobledger.ledger import JobHandle, JobState, Ledger
from jobledger.ledger.model.commands import RequestPause, Stamp
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.route import RouteDefinition
from jobledger.ledger.model.hooks.watch import SetWatch, WatchDefinition
from jobledger.ledger.model.lock import LOCK, Acquire, decide
from jobledger.ledger.model.subjects import JobRef, LockRef
from jobledger.ledger.webhooks.changes import change_watch
from jobledger.ledger.webhooks.receiver import Arrival

GRAPH: Final[Mapping[str, Any]] = {
    "name": "onboarding",
    "nodes": [
        {"name": "first", "task": "send", "queue": "mail", "input": {"to": "ann"}},
        {"name": "then", "task": "send", "queue": "mail", "after": ["first"], "input": {"to": "bob"}},
    ],
}
ROUTE: Final[Mapping[str, Any]] = {
    "scheme": "internal",
    "rules": [{"name": "all", "task": "send", "queue": "mail", "input": {"to": "/to"}}],
}
_SAID: Final[dict[str, Any]] = {"tenant": "acme", "correlation": "c1", "metadata": {"region": "eu"}}


async def fill(ledger: Ledger) -> dict[str, str]:
    """Fill a ledger; return the names in it that are not the same each time."""
    await set_limit(ledger, "api", {"slots": 2}, reason="as told", by="ann")
    await set_limit(ledger, "other", {"slots": 2}, by="ann")
    await set_limit(ledger, "closed", {"slots": 0}, by="ann")
    await set_limit(ledger, "closed:acme", {"slots": 0}, by="ann")
    await _worked(ledger)
    await _waiting(ledger)
    await _declared(ledger)
    for name in ("billing", "other"):
        async for _ in ledger.events(durable=name, types=["completed"], follow=False):
            pass
    key = await create_key(ledger, "ci", Grant(role="viewer"), by="ann")
    ended = await create_key(ledger, "old", Grant(role="viewer"), by="ann")
    return {"key": key.info.key, "old": ended.info.key, "head": str((await ledger.log.head()).last_sequence)}


async def _worked(ledger: Ledger) -> None:
    """Have jobs that a worker ran: one that completed, dead letters, runs that wait, failed and made tables."""

    async def until(job: JobHandle[Any], state: JobState) -> None:
        while await job.state() is not state:
            await asyncio.sleep(0.01)

    async with working(ledger, *TASKS), asyncio.timeout(LIMIT_S):
        done = send.options(id="done-1", limits=["api"], **_SAID)
        ends = {
            await ledger.enqueue(done, to="ann"): JobState.COMPLETED,
            await ledger.enqueue(send.options(id="done-2"), to="bob"): JobState.COMPLETED,
            await ledger.enqueue(send.options(id="dead-1", **_SAID), to="nowhere"): JobState.DEAD_LETTERED,
            await ledger.enqueue(deliver.options(id="order-1"), "ann"): JobState.WAITING,
            await ledger.enqueue(deliver.options(id="order-2"), "none"): JobState.DEAD_LETTERED,
            await ledger.enqueue(totals.options(id="totals-1")): JobState.COMPLETED,
        }
        for job, state in ends.items():
            await until(job, state)


async def _waiting(ledger: Ledger) -> None:
    """Have jobs that nobody runs, enough for each act to find one of its own."""
    for number in range(1, 13):
        await ledger.enqueue(send.options(id=f"waits-{number}", **_SAID), to="ann")
    for number in range(1, 5):
        await ledger.enqueue(send.options(id=f"later-{number}", delay_s=86_400), to="ann")
    for number in range(2, 9):
        await bury(ledger, await ledger.enqueue(send.options(id=f"dead-{number}"), to="nowhere"))
    await ledger.enqueue(send.options(id="held-1", limits=["closed"]), to="ann")
    await ledger.enqueue(send.options(id="held-2", limits=["nobodys"]), to="ann")
    await ledger.enqueue(send.options(id="slow-1", queue="slow"), to="ann")
    await ledger.enqueue(send.options(id="odd-1", queue="odd"), to="ann")
    await ledger.enqueue(greet.options(id="greet-1"), to="ann")
    await ledger.execute(JobRef(queue="mail", job_id="waits-12"), RequestPause(reason="as told"))
    await ledger.pause_queue("slow", reason="as told", by="ann")


async def _declared(ledger: Ledger) -> None:
    """Have one of each thing that has a name, and one that an act may end."""
    for name in ("nightly", "hourly", "gone"):
        options = send.options(queue="mail")
        await ledger.schedules.add(name, options, input={"to": "ann"}, every_s=86_400, by="ann")
    await ledger.schedules.pause("hourly", reason="as told", by="ann")
    for name in ("onboarding", "gone"):
        await ledger.graphs.put({**GRAPH, "name": name}, by="ann")
    shop = WebhookDefinition(
        target=WebhookTarget(url="https://shop.example/in"), events=("completed",), secrets=("env:SHOP",)
    )
    bills = WebhookDefinition(
        target=WebhookTarget(task="send", queue="mail"), events=("failed",), queue="orders"
    )
    for name, definition in {"shop": shop, "gone": shop, "bills": bills}.items():
        await put_webhook(ledger, name, definition, by="ann")
    await ledger.do(PauseWebhook(name="bills", reason="as told"), by="ann")
    for name in ("deep", "wide"):
        await change_watch(
            ledger,
            name,
            SetWatch(definition=WatchDefinition(figure="depth", queue="mail", above=100)),
            by="ann",
        )
    for name in ("inner", "gone"):
        await ledger.routes.set(name, msgspec.convert(ROUTE, RouteDefinition), by="ann")
    for given in ("d1", "d2"):
        arrival = Arrival(body=b'{"to": "ann"}', headers={}, given=given, scheme="internal")
        await ledger.routes.receive(await ledger.routes.get("inner"), arrival)
    lock = LockRef(scope="account", lock_id="42")
    stamp = Stamp(at=ledger.clock.now(), by="shop-1-abc")
    taken = decide(lock, None, Acquire(holder="shop-1-abc", lease_s=15.0), stamp)
    view = LOCK.view(await ledger.log.last(LOCK.chain(ledger.names, lock.scope, lock.lock_id)))
    await ledger.log.append(LOCK.link(ledger.names, [taken], view))
