"""How often the server is made to say that a request stands: seldom where it then looks through all subjects."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.ledger import Ledger, task
from jobledger.ledger.nats.connection import Connection

pytestmark = pytest.mark.anyio


@task(queue="bench")
async def noop() -> None:
    """Do nothing."""


async def asking(ledger: Ledger, beats: dict[str, set[int]], several: int) -> dict[str, int]:
    """Return how many filters each consumer has that was asked, once `several` of them have several."""
    call = f"CONSUMER.LIST.{ledger.names.ledger_stream}"
    async with asyncio.timeout(LIMIT_S):
        while True:
            consumers = (await api(ledger.inbox, call, {}))["consumers"]
            found = {each["name"]: len(each["config"].get("filter_subjects", ())) for each in consumers}
            asked = {name: count for name, count in found.items() if name in beats}
            if sum(count > 1 for count in asked.values()) >= several:
                return asked
            await asyncio.sleep(0.01)


async def test_several_filters_mean_few_heartbeats(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADR 004 says what each costs."""
    head = f"$JS.API.CONSUMER.MSG.NEXT.{ledger.names.ledger_stream}."
    beats: dict[str, set[int]] = defaultdict(set)
    send = Connection.send

    def noted(connection: Connection, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        if subject.startswith(head):
            body: dict[str, Any] = msgspec.json.decode(data)
            if "idle_heartbeat" in body:
                beats[subject.removeprefix(head)].add(body["idle_heartbeat"])
        send(connection, subject, reply, headers, data)

    monkeypatch.setattr(Connection, "send", noted)
    both = ("failed", "completed")
    async with (
        working(ledger, noop),
        ledger.subscription("billing", types=both),
        ledger.subscription("audit", types=("started",)),
        aclosing(aiter(ledger.events(types=both, follow=True))) as followed,
    ):
        following = asyncio.create_task(anext(followed))
        found = await asking(ledger, beats, 5)  # timers, children, limits, one subscription and the follower
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert {name: beats[name] for name in found} == {
        name: {(10 if count > 1 else 2) * 1_000_000_000} for name, count in found.items()
    }
