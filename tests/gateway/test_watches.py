"""Watches as a gateway judges them: each figure, the time it must last, and several gateways that agree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import Asker, Doorman
from tests.support.gateways import gateway_of
from tests.support.tables import each_row

from jobledger.admin.hooks.figures import figure_of
from jobledger.admin.hooks.webhooks import put_webhook, try_webhook
from jobledger.audit.verify import verify
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.hooks.watches import WatchJudge
from jobledger.ledger import Ledger, connect
from jobledger.ledger.model.commands import Remove
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.watch import WATCH, SetWatch, Watch, WatchDefinition
from jobledger.ledger.model.named_chain import histories, look
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.webhooks.changes import change_watch
from jobledger.testing.clock import MovableClock

pytestmark = pytest.mark.anyio


async def watch(ledger: Ledger, name: str = "deep", **terms: Any) -> Watch:
    given: dict[str, Any] = {"figure": "depth", "queue": "mail", "above": 1, **terms}
    return await change_watch(ledger, name, SetWatch(definition=WatchDefinition(**given)), by="ann")


async def fired(ledger: Ledger, name: str = "deep") -> list[bool]:
    return [each.firing for each in (await histories(ledger.log, WATCH, name))[name]]


@pytest.fixture
async def asker(gateway: Gateway, tmp_path: Path) -> Asker:
    return Asker(gateway, ENDPOINTS, Doorman(), tmp_path)


async def test_each_figure_is_told_of_what_the_watch_asks_for(asker: Asker) -> None:
    for _ in range(2):
        await asker.job(queue="mail")
    for _ in range(3):
        await asker.completed(queue="mail")
    await asker.dead(queue="mail")
    await asker.job(queue="bills")
    async with asker.gateway.projection.opened(
        min_sequence=(await asker.ledger.log.head()).last_sequence
    ) as view:

        @each_row(
            ("terms", "expected"),
            [
                ({"figure": "depth"}, 3), ({"figure": "depth", "queue": "mail"}, 2),
                ({"figure": "depth", "task": "send"}, 3), ({"figure": "depth", "task": "none"}, 0),
                ({"figure": "dead_letters"}, 1), ({"figure": "dead_letters", "queue": "bills"}, 0),
                ({"figure": "error_rate", "queue": "mail"}, 0.25), ({"figure": "success_rate", "task": "send"}, 0.75),
                ({"figure": "error_rate", "queue": "bills"}, None), ({"figure": "success_rate", "queue": "bills"}, None),
                ({"figure": "wait_p99_s", "queue": "none"}, None), ({"figure": "lag"}, 0),
                ({"figure": "oldest_wait_s", "queue": "none"}, 0),
            ],
        )  # fmt: skip
        def told(terms: dict[str, Any], expected: float | None) -> None:
            assert figure_of(view, WatchDefinition(**terms, above=1)) == expected

        told()
        assert (figure_of(view, WatchDefinition(figure="oldest_wait_s", above=1)) or 0) > 0
        assert 0 < (figure_of(view, WatchDefinition(figure="wait_p99_s", above=1)) or 0) < 60


async def test_a_watch_fires_once_after_its_time_and_is_resolved_once(
    nats_server: EmbeddedServer, ledger: Ledger, tmp_path: Path
) -> None:
    clock = MovableClock()
    async with (
        connect(nats_server.url, environment=ledger.names.environment, clock=clock) as moved,
        gateway_of(moved, tmp_path / "one") as one,
        gateway_of(moved, tmp_path / "other") as other,
    ):
        judges = [WatchJudge(moved, each.projection) for each in (one, other)]
        asker = Asker(one, ENDPOINTS, Doorman(), tmp_path)

        async def tick() -> list[bool]:
            await asyncio.gather(*(each.judge() for each in judges))
            return await fired(moved)

        await watch(moved, for_s=60)
        jobs = [await asker.job(queue="mail") for _ in range(2)]
        assert await tick() == [False]
        clock.advance(59)
        assert await tick() == [False]
        clock.advance(2)
        assert await tick() == [False, True]
        assert await tick() == [False, True]
        for job in jobs:
            await job.cancel()
        assert await tick() == [False, True, False]
        assert await tick() == [False, True, False]
        resolved = (await look(moved.log, WATCH, "deep")).state
        assert resolved is not None
        assert (resolved.firing, resolved.value) == (False, 0.0)
        await change_watch(moved, "deep", Remove(), by="ann")
        await tick()
    assert (await verify(ledger.log)).sound


async def test_a_figure_that_is_within_its_bounds_in_between_begins_anew(
    nats_server: EmbeddedServer, ledger: Ledger, tmp_path: Path
) -> None:
    clock = MovableClock()
    async with (
        connect(nats_server.url, environment=ledger.names.environment, clock=clock) as moved,
        gateway_of(moved, tmp_path) as gateway,
    ):
        judge, asker = WatchJudge(moved, gateway.projection), Asker(gateway, ENDPOINTS, Doorman(), tmp_path)
        await watch(moved, for_s=60, above=0)
        job = await asker.job(queue="mail")
        await judge.judge()
        clock.advance(50)
        await job.cancel()
        await judge.judge()
        await asker.job(queue="mail")
        for _ in range(2):
            clock.advance(50)
            await judge.judge()
        assert await fired(moved) == [False]
        clock.advance(20)
        await judge.judge()
        assert await fired(moved) == [False, True]


async def test_deliveries_of_webhooks_make_nothing_fire(asker: Asker) -> None:
    definition = WebhookDefinition(
        target=WebhookTarget(url="https://a.example/"), events=("watch.firing",), secrets=("env:A",)
    )
    await put_webhook(asker.ledger, "ops", definition, by="ann")
    await try_webhook(asker.ledger, "ops", by="ann")
    await watch(asker.ledger, queue="", above=0)
    await WatchJudge(asker.ledger, asker.gateway.projection).judge()
    assert await fired(asker.ledger) == [False]
    await asker.job(queue="mail")
    await WatchJudge(asker.ledger, asker.gateway.projection).judge()
    assert await fired(asker.ledger) == [False, True]
