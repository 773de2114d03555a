"""Which jobs webhooks make: one for each event that matches, whoever dies when, and none of a delivery or in a circle."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.support.working import LIMIT_S, Connect

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Remove
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Held, Queued
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.watch import Judge, SetWatch, WatchDefinition
from jobledger.ledger.model.hooks.webhook import WEBHOOK, Pause, Resume, SetWebhook, Webhook
from jobledger.ledger.model.named_chain import histories
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE
from jobledger.ledger.nats.connection import ConnectionLostError
from jobledger.ledger.nats.durables import list_consumers
from jobledger.ledger.webhooks import deliveries
from jobledger.ledger.webhooks.changes import change_watch, change_webhook, find_webhook
from jobledger.ledger.webhooks.terms import CONSUMER_PREFIX, TermName, make_place, named_by, term_of
from jobledger.workers.reactors import webhooks as reactor
from jobledger.workers.reactors.webhooks import WebhookReactor

pytestmark = pytest.mark.anyio

URL = WebhookTarget(url="https://example.com/hooks")


@task(queue="shop")
async def pack(number: int) -> int:
    return number


@contextlib.asynccontextmanager
async def reacting(*ledgers: Ledger) -> AsyncGenerator[None]:
    tasks = [asyncio.create_task(WebhookReactor(each, look_every_s=0.02).run()) for each in ledgers]
    try:
        yield
    finally:
        for each in tasks:
            assert not each.done()
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def hook(ledger: Ledger, name: str = "shop", **terms: Any) -> Webhook:
    given: dict[str, Any] = {"target": URL, "events": ("queued",), "secrets": ("env:A",), **terms}
    return await change_webhook(ledger, name, SetWebhook(definition=WebhookDefinition(**given)), by="ann")


async def begun(ledger: Ledger, queue: str = DELIVERIES_QUEUE) -> list[StoredEvent]:
    """Return the first events of all jobs of a queue, in stream order."""
    found: list[StoredEvent] = []
    async with contextlib.aclosing(ledger.log.read(subject=f"{ledger.names.jobs_root}{queue}.>")) as batches:
        async for batch in batches:
            found += [each for each in batch if isinstance(each.event, Queued | Held)]
    return found


async def ids(ledger: Ledger, count: int, queue: str = DELIVERIES_QUEUE) -> list[str]:
    """Wait until that many jobs were begun in a queue; return their ids."""
    async with asyncio.timeout(LIMIT_S):
        while len(found := await begun(ledger, queue)) < count:
            await asyncio.sleep(0.01)
    return [each.event.job for each in found]


async def enqueued(ledger: Ledger, count: int) -> list[int]:
    """Enqueue jobs; return the sequences of their first events."""
    return [(await ledger.enqueue(pack, number=number)).sequence for number in range(count)]


async def test_each_event_becomes_one_job_though_processes_die_between_append_and_acknowledgement(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, lost = random.Random(7), 0

    async def make(*given: Any) -> bool:
        nonlocal lost
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.01)  # the order is nobody's
        done = await deliveries.make(*given)
        if chance.random() < 0.3:
            lost += 1
            raise ConnectionLostError  # as of a process that was killed: the append is in, the acknowledgement is not
        return done

    monkeypatch.setattr(reactor, "make", make)
    async with connected() as one, connected() as other:
        await enqueued(one, 2)  # before the webhook was set
        await hook(one)
        async with reacting(one, other):
            sequences = await enqueued(one, 60)
            await ids(one, 60)
            async with asyncio.timeout(LIMIT_S):
                while any(info.unsettled for info in await consumers(one)):
                    await asyncio.sleep(0.01)
        found = await begun(one)
        assert (await verify(one.log)).sound
    assert sorted(each.event.job for each in found) == sorted(f"shop-{sequence}" for sequence in sequences)
    assert lost > 5
    first = next(each.event for each in found if each.event.job == f"shop-{sequences[0]}")
    assert isinstance(first, Held)
    assert (first.task, first.limits, first.by) == ("deliver", ("webhooks-out:shop",), "webhook:shop")
    assert msgspec.json.decode(bytes(first.input)) == {"webhook": "shop", "sequence": sequences[0]}


async def consumers(ledger: Ledger) -> list[Any]:
    listed = await list_consumers(ledger.inbox, ledger.names.ledger_stream)
    return [info for info in listed if info.name.startswith(CONSUMER_PREFIX)]


async def test_events_match_within_the_terms_of_a_webhook_and_nowhere_else(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactor, "_STAYS", timedelta(0))
    await hook(ledger)
    expected = await enqueued(ledger, 3)  # no gateway runs, and events come all the same
    async with reacting(ledger):
        await ids(ledger, 3)
        await change_webhook(ledger, "shop", Pause(), by="ann")
        await enqueued(ledger, 3)
        await change_webhook(ledger, "shop", Resume(), by="ann")
        expected += await enqueued(ledger, 2)
        await hook(ledger, events=("cancelled",))
        await enqueued(ledger, 2)
        job = await ledger.enqueue(pack, number=7)
        cancelled = await job.cancel()
        expected.append(cancelled.last_sequence)
        found = await ids(ledger, len(expected))
        await change_webhook(ledger, "shop", Remove(), by="ann")
        async with asyncio.timeout(LIMIT_S):
            while await consumers(ledger):
                await asyncio.sleep(0.01)
        await enqueued(ledger, 1)
    assert sorted(found) == sorted(f"shop-{sequence}" for sequence in expected)
    assert len(await begun(ledger)) == len(expected)


async def test_a_term_that_ended_while_nobody_looked_is_finished(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored before the end still counts, as one process reads it while another has ended the term."""
    monkeypatch.setattr(reactor, "_STAYS", timedelta(0))
    set_at = (await hook(ledger)).sequence
    async with reacting(ledger):
        first = await enqueued(ledger, 1)
        await ids(ledger, 1)
    late = await enqueued(ledger, 3)
    await change_webhook(ledger, "shop", Pause(), by="ann")
    await enqueued(ledger, 2)
    async with reacting(ledger):
        found = await ids(ledger, 4)
        async with asyncio.timeout(LIMIT_S):
            while await consumers(ledger):
                await asyncio.sleep(0.01)
    assert sorted(found) == sorted(f"shop-{sequence}" for sequence in (*first, *late))
    states = (await histories(ledger.log, WEBHOOK))["shop"]
    term = term_of(TermName("shop", set_at), states)
    assert term.end is not None
    assert term.end.sequence == (await find_webhook(ledger.log, "shop")).sequence
    assert named_by(term.name.consumer) == term.name
    assert named_by("webhooks_shop") is named_by("work_shop_7") is None


async def test_deliveries_are_never_delivered(ledger: Ledger) -> None:
    await hook(ledger, events=("held", "queued"))
    async with reacting(ledger):
        sequences = await enqueued(ledger, 5)
        await ids(ledger, 5)
        more = await enqueued(ledger, 1)
        found = await ids(ledger, 6)
    assert sorted(found) == sorted(f"shop-{sequence}" for sequence in (*sequences, *more))


async def test_a_task_gets_what_a_receiver_would_be_told(ledger: Ledger) -> None:
    target = WebhookTarget(task="bill", queue="billing")
    await hook(ledger, target=target, secrets=(), task="pack", include=("input", "result"))
    async with reacting(ledger):
        job = await ledger.enqueue(pack.options(correlation="order-9"), number=7)
        found = await ids(ledger, 1, "billing")
        [first] = await begun(ledger, "billing")
    assert found == [f"webhook-shop-{job.sequence}"]
    assert isinstance(first.event, Queued)
    event = first.event
    assert (event.task, event.correlation, event.causation) == ("bill", "order-9", job.id)
    said = msgspec.json.decode(bytes(event.input))
    assert said["type"] == "job.queued"
    data = {
        "queue": "shop",
        "job": job.id,
        "task": "pack",
        "attempt": 1,
        "correlation": "order-9",
        "sequence": job.sequence,
    }
    assert said["data"] == {**data, "input": {"number": 7}}


async def test_tasks_that_lead_to_each_other_come_to_an_end(ledger: Ledger) -> None:
    await hook(ledger, "there", target=WebhookTarget(task="b", queue="b"), secrets=(), queue="a")
    await hook(ledger, "back", target=WebhookTarget(task="a", queue="a"), secrets=(), queue="b")
    async with reacting(ledger):
        await ledger.enqueue(pack.options(queue="a"), number=1)
        await ids(ledger, 4, "b")
        await ids(ledger, 5, "a")
        async with asyncio.timeout(LIMIT_S):
            while any(info.unsettled for info in await consumers(ledger)):
                await asyncio.sleep(0.01)
    assert (len(await begun(ledger, "a")), len(await begun(ledger, "b"))) == (5, 4)


@pytest.mark.parametrize("prefix", ["order", "webhook-order"])
async def test_jobs_that_an_application_calls_as_a_webhook_does_keep_none_from_it(
    ledger: Ledger, prefix: str
) -> None:
    target = WebhookTarget(task="bill", queue="shop" if prefix == "order" else "billing")
    await hook(ledger, "order", target=target, secrets=(), queue="shop", task="pack")
    sequences = [1]
    for number in range(10):
        job = await ledger.enqueue(pack.options(id=f"{prefix}-{sequences[-1]}"), number=number)
        sequences.append(job.sequence)
    async with reacting(ledger), asyncio.timeout(LIMIT_S):
        while (
            len(made := [each for each in await begun(ledger, target.queue) if each.event.task == "bill"])
            < 10
        ):
            await asyncio.sleep(0.01)
    assert sorted(each.event.job for each in made) == sorted(
        f"webhook-order-{each}" for each in sequences[1:]
    )


async def test_watches_that_fire_and_resolve_are_events_like_others(ledger: Ledger) -> None:
    await hook(ledger, events=("watch.firing", "watch.resolved"), queue="shop")
    definition = WatchDefinition(figure="depth", queue="shop", above=10)
    async with reacting(ledger):
        sequences: list[int] = []
        for name, given in (("deep", definition), ("other", WatchDefinition(figure="depth", above=10))):
            watch = await change_watch(ledger, name, SetWatch(definition=given), by="ann")
            for fires, value in ((True, 11.0), (False, 2.0)):
                judge = Judge(value=value, position=watch.sequence, sequence=watch.sequence, fires=fires)
                watch = await change_watch(ledger, name, judge)
                sequences += [watch.sequence] if name == "deep" else []
        found = await ids(ledger, 2)
    assert sorted(found) == sorted(f"shop-{sequence}" for sequence in sequences)


async def test_nobody_enqueues_into_the_ledgers_own_queues(ledger: Ledger) -> None:
    with pytest.raises(InvalidInputError, match="the ledger's own jobs"):
        pack.options(queue=DELIVERIES_QUEUE)
    with pytest.raises(InvalidInputError, match="the ledger's own jobs"):
        task(queue="jobledger-acts")(pack.function)
    with pytest.raises(InvalidInputError, match="the ledger's own jobs"):
        await ledger.enqueue_named("deliver", {}, queue=DELIVERIES_QUEUE, unknown_ok=True)
    assert await begun(ledger) == []


async def test_a_term_that_begins_while_a_gateway_looks_is_read_by_its_own_definition(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gateway makes the consumer of a term that this one has not read of yet."""
    await hook(ledger, events=("cancelled", "queued"))
    terms: list[Webhook] = []

    async def late(*given: Any) -> Any:
        if not terms:
            terms.append(await hook(ledger, events=("queued",)))
            await make_place(ledger.inbox, ledger.names, terms[0])
        return await list_consumers(*given)

    monkeypatch.setattr(reactor, "list_consumers", late)
    async with reacting(ledger):
        async with asyncio.timeout(LIMIT_S):
            while not (terms and await _waits(ledger, TermName("shop", terms[0].since))):
                await asyncio.sleep(0.01)
        job = await ledger.enqueue(pack, number=1)
        await job.cancel()
        last = await ledger.enqueue(pack, number=2)
        found = await ids(ledger, 2)
    assert found == [f"shop-{job.sequence}", f"shop-{last.sequence}"]


async def _waits(ledger: Ledger, term: TermName) -> bool:
    """Return whether somebody reads the events of a term."""
    return any(named_by(info.name) == term and info.waiting for info in await consumers(ledger))
