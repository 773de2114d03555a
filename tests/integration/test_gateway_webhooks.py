"""Webhooks and watches by `jobledger gateway` as a real process: nothing is sent twice as another job, whoever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.limits import LIMIT_S
from tests.support.receivers import receiving

from jobledger.admin.hooks.webhooks import put_webhook, redeliver_events
from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.model.events import Held
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.watch import SetWatch, WatchDefinition
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.webhooks.changes import change_watch

pytestmark = pytest.mark.anyio
Start = Callable[..., Any]  # of a `Process`, see conftest.py


@task(queue="shop")
async def pack(number: int) -> None:
    """Be enqueued only."""


@pytest.fixture
async def ledger(nats_server: EmbeddedServer, environment: str) -> AsyncIterator[Ledger]:
    async with connect(
        nats_server.url, environment=environment, ledger_bytes_max=16 << 20, lease_s=2.0
    ) as made:
        yield made


def gateway(command: Start, ledger: Ledger, tmp_path: Path) -> Any:
    there = ("--url", ledger.config.url, "--environment", ledger.names.environment)
    words = ("--port", "0", "--json", "--allow-target", "127.0.0.0/8", "--projection", str(tmp_path / "p.db"))
    made = command("gateway", *words, *there, variables={"SHOP": "a secret of the test"})
    made.line()
    return made


async def hook(ledger: Ledger, url: str) -> None:
    definition = WebhookDefinition(
        target=WebhookTarget(url=url),
        events=("queued", "watch.firing"),
        secrets=("env:SHOP",),
        allow_http=True,
        allow_private=True,
    )
    await put_webhook(ledger, "shop", definition, by="ann")


async def begun(ledger: Ledger) -> list[str]:
    """Return the ids of the deliveries, each as often as it was begun."""
    found: list[str] = []
    subject = f"{ledger.names.jobs_root}webhooks-out.>"
    async with contextlib.aclosing(ledger.log.read(subject=subject)) as batches:
        async for batch in batches:
            found += [
                each.event.job for each in batch if isinstance(each.event, Held) and not each.event.prev
            ]
    return found


async def test_a_gateway_delivers_and_judges_watches_by_itself(
    command: Start, ledger: Ledger, tmp_path: Path
) -> None:
    async with receiving() as receiver:
        await hook(ledger, receiver.url)
        await change_watch(
            ledger,
            "deep",
            SetWatch(definition=WatchDefinition(figure="depth", queue="shop", above=1)),
            by="ann",
        )
        sequences = [(await ledger.enqueue(pack, number=number)).sequence for number in range(3)]
        gateway(command, ledger, tmp_path)
        async with asyncio.timeout(LIMIT_S):
            while len(receiver.requests) < 4:
                await asyncio.sleep(0.02)
        firing = next(each for each in receiver.requests if b'"type":"watch.firing"' in each.body)
        assert set(receiver.ids) == {f"shop-{each}" for each in sequences} | {firing.headers["webhook-id"]}


@pytest.mark.fault
@pytest.mark.timeout(300)
async def test_a_killed_gateway_makes_no_delivery_twice_and_forgets_none(
    command: Start, ledger: Ledger, tmp_path: Path
) -> None:
    chance = random.Random()
    async with receiving() as receiver:
        await hook(ledger, receiver.url)
        sequences: list[int] = []
        for _ in range(6):
            process = gateway(command, ledger, tmp_path)
            sequences += [(await ledger.enqueue(pack, number=number)).sequence for number in range(15)]
            async with asyncio.timeout(LIMIT_S):
                while len(receiver.requests) < len(sequences) - 14 + chance.randrange(8):
                    await asyncio.sleep(0.01)
            process.end(signal.SIGKILL)
        gateway(command, ledger, tmp_path)
        async with asyncio.timeout(LIMIT_S):
            while len(set(receiver.ids)) < len(sequences):
                await asyncio.sleep(0.02)
        assert set(receiver.ids) == {f"shop-{each}" for each in sequences}
        jobs = await begun(ledger)
        assert len(jobs) == len(set(jobs)) == len(sequences)
        first = await ledger.log.get(1)
        assert first is not None
        since = first.stored_at
        async with asyncio.timeout(LIMIT_S):
            while (await redeliver_events(ledger, "shop", since=since)).delivered < len(sequences):
                await asyncio.sleep(0.05)
    assert (await verify(ledger.log)).sound
