"""Deliveries: signed, told again by their table, stopped where nobody wants them, and sent again when they were missed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook as Verifier
from tests.support.receivers import Receiver, receiving
from tests.support.working import LIMIT_S, working

from jobledger.audit.verify import verify
from jobledger.gateway.hooks import deliver
from jobledger.gateway.hooks.addresses import Targets, networks
from jobledger.gateway.hooks.deliver import DELAYS_S, DeliveryResult, DeliverySender, deliver_task
from jobledger.gateway.hooks.poster import Poster
from jobledger.ledger import Cancel, Context, Ledger, Retry, connect, task
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.webhook import (
    WEBHOOK,
    Pause,
    Resume,
    Rotate,
    SetWebhook,
    Webhook,
    WebhookCommand,
)
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.named_chain import histories
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE, JobRef
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.webhooks.changes import change_webhook, find_webhook
from jobledger.ledger.webhooks.redelivery import plan_redelivery, redeliver
from jobledger.ledger.webhooks.secrets import Secrets, new_secret
from jobledger.testing.clock import MovableClock
from jobledger.workers.reactors.webhooks import WebhookReactor

pytestmark = pytest.mark.anyio

OLD, NEW = new_secret(), new_secret()
SECRETS = Secrets({"OLD": OLD, "NEW": NEW, "TOKEN": "hidden-token", "BAD": "two\nlines"})
TARGETS = Targets(networks(["127.0.0.0/8"]))


@task(queue="shop")
async def pack(number: int) -> dict[str, int]:
    return {"packed": number}


def delivering() -> DeliverySender:
    return DeliverySender(Poster(TARGETS, timeout_s=LIMIT_S), SECRETS, random.Random(7))


async def hook(ledger: Ledger, receiver: Receiver, **terms: Any) -> Webhook:
    given: dict[str, Any] = {
        "target": WebhookTarget(url=receiver.url),
        "events": ("queued",),
        "secrets": ("env:OLD",),
        "allow_http": True,
        "allow_private": True,
        **terms,
    }
    return await change_webhook(ledger, "shop", SetWebhook(definition=WebhookDefinition(**given)), by="ann")


@contextlib.asynccontextmanager
async def gatewaying(ledger: Ledger) -> AsyncGenerator[None]:
    """Run what a gateway hosts for webhooks."""
    reacting = asyncio.create_task(WebhookReactor(ledger, look_every_s=0.02).run())
    try:
        async with working(
            ledger, deliver_task(delivering()), queues=(DELIVERIES_QUEUE,), concurrency=16, grace_s=0.1
        ):
            yield
    finally:
        reacting.cancel()
        await asyncio.gather(reacting, return_exceptions=True)


async def tried(ledger: Ledger, sequence: int, attempt: int = 1) -> DeliveryResult | Cancel | Retry:
    """Deliver one event as an attempt of a job does."""
    context = Context.for_test(ledger=ledger, attempt=attempt, job_id="shop-test-1")
    return await delivering().deliver(context, "shop", sequence)


async def ended(ledger: Ledger, job_id: str) -> JobState:
    handle = ledger.handle_of(JobRef(queue=DELIVERIES_QUEUE, job_id=job_id))
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(Exception):
                job = await handle.snapshot()
                if job.is_final:
                    return job.state
            await asyncio.sleep(0.01)


async def test_what_is_sent_verifies_with_the_package_of_the_scheme(ledger: Ledger) -> None:
    async with receiving() as receiver, gatewaying(ledger):
        await hook(
            ledger, receiver, include=("input",), headers={"X-Team": "billing", "X-Token": "env:TOKEN"}
        )
        job = await ledger.enqueue(pack, number=7)
        assert await ended(ledger, f"shop-{job.sequence}") is JobState.COMPLETED
        [sent] = receiver.requests
        said = Verifier(OLD).verify(sent.body, sent.headers)
        assert said["type"] == "job.queued"
        assert said["data"] == {
            "queue": "shop", "job": job.id, "task": "pack", "attempt": 1, "sequence": job.sequence, "input": {"number": 7},
        }  # fmt: skip
        assert datetime.fromisoformat(said["timestamp"]).tzinfo is not None
        assert sent.headers["webhook-id"] == f"shop-{job.sequence}"
        assert (sent.headers["x-team"], sent.headers["x-token"]) == ("billing", "hidden-token")
        changed = sent.body.replace(b"7", b"8")
        for body, headers in ((changed, sent.headers), (sent.body, {**sent.headers, "webhook-id": "other"})):
            with pytest.raises(Exception, match="No matching signature"):
                Verifier(OLD).verify(body, headers)
        report = await verify(ledger.log)
        assert report.sound


async def test_two_secrets_sign_while_one_takes_the_others_place(ledger: Ledger) -> None:
    async with receiving() as receiver:
        sequence = (await ledger.enqueue(pack, number=1)).sequence
        await hook(ledger, receiver)
        await change_webhook(ledger, "shop", Rotate(secret="env:NEW"), by="ann")
        assert isinstance(await tried(ledger, sequence), DeliveryResult)
        await change_webhook(ledger, "shop", Rotate(secret="env:OLD", keep_old_s=0), by="ann")
        assert isinstance(await tried(ledger, sequence), DeliveryResult)
        both, one = receiver.requests
        for secret in (OLD, NEW):
            Verifier(secret).verify(both.body, both.headers)
        Verifier(OLD).verify(one.body, one.headers)
        with pytest.raises(Exception, match="No matching signature"):
            Verifier(NEW).verify(one.body, one.headers)


async def test_a_cloud_event_has_what_the_standard_asks_for_and_is_signed_too(ledger: Ledger) -> None:
    async with receiving() as receiver:
        job = await ledger.enqueue(pack, number=1)
        await hook(ledger, receiver, format="cloudevents")
        assert isinstance(await tried(ledger, job.sequence), DeliveryResult)
        [sent] = receiver.requests
        Verifier(OLD).verify(sent.body, sent.headers)
        event = msgspec.json.decode(sent.body)
        assert sent.headers["content-type"] == "application/cloudevents+json"
        assert (event["specversion"], event["id"], event["type"]) == (
            "1.0",
            f"shop-{job.sequence}",
            "dev.jobledger.job.queued",
        )
        assert (event["source"], event["subject"]) == (
            f"/jobledger/{ledger.names.environment}",
            f"shop/{job.id}",
        )
        assert event["data"]["sequence"] == job.sequence


async def test_tries_follow_the_table_and_what_the_receiver_asks_for(ledger: Ledger) -> None:
    async with receiving() as receiver:
        sequence = (await ledger.enqueue(pack, number=1)).sequence
        await hook(ledger, receiver, headers={"X-Token": "env:TOKEN"})
        receiver.says("503 Busy", body=b"you sent hidden-token")
        for attempt, delay_s in enumerate(DELAYS_S[:2], start=1):
            asked = await tried(ledger, sequence, attempt)
            assert isinstance(asked, Retry)
            assert asked.delay_s is not None
            assert delay_s <= asked.delay_s <= delay_s * 1.1
            assert asked.reason == "503 Busy: you sent ***"
        for text, expected in (("120", 120.0), ("999999999", 86_400.0), ("-5", None), ("soon", None)):
            receiver.says("429 Too Many", f"retry-after: {text}")
            asked = await tried(ledger, sequence)
            assert isinstance(asked, Retry)
            assert asked.delay_s == expected or (expected is None and 5 <= (asked.delay_s or 0) <= 5.5)
        later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S GMT")
        receiver.says("429 Too Many", f"retry-after: {later}")
        asked = await tried(ledger, sequence)
        assert isinstance(asked, Retry)
        assert 3_000 < (asked.delay_s or 0) <= 3_600
        receiver.says("400 Bad", "webhook-delivery: abort-message")
        assert isinstance(await tried(ledger, sequence), Cancel)


async def test_what_a_receiver_repeats_of_its_url_is_not_kept(ledger: Ledger) -> None:
    async with receiving() as receiver:
        sequence = (await ledger.enqueue(pack, number=1)).sequence
        behind = "/services/T00000000/gold4gold4gold4gold?key=silver4silver4silver"
        await hook(ledger, receiver, target=WebhookTarget(url=f"{receiver.url.rstrip('/')}{behind}"))
        for said in (behind, "no team gold4gold4gold4gold", "key silver4silver4silver is old"):
            receiver.says(f"404 no hook {said}", body=said.encode())
            asked = await tried(ledger, sequence)
            assert isinstance(asked, Retry)
            assert "404" in asked.reason
            assert re.search("gold4gold|silver4silver", asked.reason) is None


async def test_what_cannot_be_signed_or_is_not_wanted_any_more_is_not_sent(ledger: Ledger) -> None:
    async with receiving() as receiver:
        sequence = (await ledger.enqueue(pack, number=1)).sequence
        assert isinstance(await tried(ledger, sequence), Cancel)  # no such webhook
        for terms in ({"secrets": ("env:NONE",)}, {"headers": {"X-Token": "env:BAD"}}):
            await hook(ledger, receiver, **terms)
            asked = await tried(ledger, sequence)
            assert isinstance(asked, Retry)
            assert "two" not in asked.reason
        await hook(ledger, receiver)
        await change_webhook(ledger, "shop", Pause(), by="ann")
        assert isinstance(await tried(ledger, sequence), Cancel)
        await change_webhook(ledger, "shop", Resume(), by="ann")
        assert isinstance(await tried(ledger, sequence + 900), Cancel)
        assert receiver.requests == []
        receiver.says("410 Gone")
        assert isinstance(await tried(ledger, sequence), Cancel)
        webhook = await find_webhook(ledger.log, "shop")
        assert (webhook.status, webhook.reason) == ("disabled", "the receiver answered 410 Gone")


async def test_a_slow_receiver_holds_nobody_else(ledger: Ledger) -> None:
    async with receiving() as receiver, gatewaying(ledger):
        receiver.slow_paths = {"/slow"}
        slow = WebhookDefinition(
            target=WebhookTarget(url=receiver.url.replace("/hooks", "/slow")),
            events=("queued",),
            secrets=("env:OLD",),
            allow_http=True,
            allow_private=True,
        )
        await change_webhook(ledger, "slow", SetWebhook(definition=slow), by="ann")
        await hook(ledger, receiver)
        jobs = [await ledger.enqueue(pack, number=number) for number in range(16)]
        for job in jobs:
            assert await ended(ledger, f"shop-{job.sequence}") is JobState.COMPLETED
        ids = receiver.ids
        assert sum(each.startswith("shop-") for each in ids) == 16
        assert (
            1 <= sum(each.startswith("slow-") for each in ids) <= 8
        )  # four at a time, for as long as a post may take
        await change_webhook(ledger, "slow", Pause(), by="ann")


def in_simulated_time(monkeypatch: pytest.MonkeyPatch, moved: Ledger, clock: MovableClock) -> None:
    """Have attempts follow each other at once, and webhooks told of them at the times of the table."""
    real = DeliverySender.deliver

    async def later(_ledger: Ledger, name: str, command: WebhookCommand) -> Webhook:
        return await change_webhook(moved, name, command)

    async def attempt(self: DeliverySender, context: Context, name: str, sequence: int) -> Any:
        if context.attempt > 1:
            clock.advance(DELAYS_S[context.attempt - 2])
        return await real(self, context, name, sequence)

    monkeypatch.setattr(deliver, "change_webhook", later)
    monkeypatch.setattr(deliver, "DELAYS_S", (0.0,) * 7)
    monkeypatch.setattr(DeliverySender, "deliver", attempt)


async def until_disabled(ledger: Ledger, receiver: Receiver) -> list[int]:
    """Let one delivery arrive and the next ones fail until the webhook is disabled; return what was missed by then."""
    job = await ledger.enqueue(pack, number=0)
    assert await ended(ledger, f"shop-{job.sequence}") is JobState.COMPLETED
    receiver.says("500 Broken")
    missed: list[int] = []
    states: list[JobState] = []
    while (webhook := await find_webhook(ledger.log, "shop")).is_active and len(missed) < 20:
        missed.append((await ledger.enqueue(pack, number=len(missed))).sequence)
        states.append(await ended(ledger, f"shop-{missed[-1]}"))
    assert (webhook.status, states[0], states[-1]) == ("disabled", JobState.DEAD_LETTERED, JobState.CANCELLED)
    assert webhook.reason.startswith("nothing but failures since ")
    said = [each.status for each in (await histories(ledger.log, WEBHOOK))["shop"]]
    assert said == ["active", "active", "disabled"]  # set, failing, disabled
    return missed


async def test_five_days_of_failures_disable_and_redelivery_sends_exactly_what_was_missed(
    ledger: Ledger, nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    since, clock = datetime.now(UTC) - timedelta(seconds=5), MovableClock()
    began = clock.now()
    async with connect(nats_server.url, environment=ledger.names.environment, clock=clock) as moved:
        in_simulated_time(monkeypatch, moved, clock)
        async with receiving() as receiver, gatewaying(ledger):
            await hook(ledger, receiver)
            missed = await until_disabled(ledger, receiver)
            missed += [(await ledger.enqueue(pack, number=number)).sequence for number in range(3)]
            receiver.says("200 OK")
            receiver.requests.clear()
            webhook = await find_webhook(ledger.log, "shop")
            plan = await plan_redelivery(ledger, webhook, since=since)
            assert (plan.matched, plan.delivered, plan.under_way) == (len(missed) + 1, 1, 0)
            assert [each.sequence for each in plan.owed] == missed
            with pytest.raises(RefusedError, match="resume it"):
                await redeliver(ledger, webhook, plan)
            webhook = await change_webhook(ledger, "shop", Resume(), by="ann")
            assert await redeliver(ledger, webhook, plan) == len(missed)
            assert await redeliver(ledger, webhook, plan) == 0  # the same plan by somebody else
            for owed in plan.owed:
                again = f"-r{owed.again}" if owed.again else ""
                assert await ended(ledger, f"shop-{owed.sequence}{again}") is JobState.COMPLETED
            assert sorted(receiver.ids) == sorted(f"shop-{sequence}" for sequence in missed)
            plan = await plan_redelivery(ledger, webhook, since=since)
            assert (plan.owed, plan.delivered) == ((), len(missed) + 1)
            plan = await plan_redelivery(ledger, webhook, since=since, only="all")
            assert [each.again for each in plan.owed] == [1] + [2] * (len(missed) - 3) + [1] * 3
    assert clock.now() - began > timedelta(days=5)
    assert (await verify(ledger.log)).sound
