"""Webhooks of others, sent to gateways that listen: once for all of them, whoever else has keys, and refused quietly."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.gateway.cases.routes import GITHUB, pushed
from tests.support.gateways import gateway_of, listening
from tests.support.keyholders import house
from tests.support.limits import LIMIT_S

from jobledger.admin.hooks.routes import definition_of
from jobledger.gateway.app import app
from jobledger.gateway.gateway import FRESH_S
from jobledger.gateway.refused_requests import KEPT_MAX, RefusedRequests
from jobledger.ledger import Ledger
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.webhooks.secrets import Secrets

pytestmark = pytest.mark.anyio


async def test_twenty_of_the_same_over_two_gateways_make_one_job(ledger: Ledger, tmp_path: Path) -> None:
    await ledger.routes.set("github", definition_of(GITHUB))
    async with gateway_of(ledger, tmp_path) as one, gateway_of(ledger, tmp_path) as other:
        one.secrets = other.secrets = Secrets({"NEW": "new"})
        async with listening(one) as first, listening(other) as second, httpx.AsyncClient() as client:
            answers = await asyncio.gather(
                *(client.post(f"{(first, second)[n % 2]}/in/github", **pushed("d1")) for n in range(20))
            )
    assert {each.status_code for each in answers} == {202}
    assert len({each.text for each in answers}) == 1
    stored = [message.subject async for batch in ledger.log.read_messages() for message in batch]
    assert [sum(f".{kind}." in subject for subject in stored) for kind in ("delivery", "job")] == [1, 1]


async def test_a_bearer_token_of_a_route_is_no_key_of_the_gateway(ledger: Ledger, tmp_path: Path) -> None:
    rules = (RouteRule(name="all", task="send"),)
    definition = RouteDefinition(scheme="bearer", secrets=("env:TOKEN",), rules=rules)
    await ledger.routes.set("ci", definition)
    async with house(ledger, tmp_path) as home:
        await home.key(role="viewer")
        home.gateway.secrets = Secrets({"TOKEN": "t0ken"})
        headers = {"authorization": "Bearer t0ken"}
        async with home.client(headers=headers) as client:
            assert (await client.post("/in/ci", content=b"{}")).status_code == 202
            assert (await client.post("/in/ci", content=b"{}")).json()["matched"] == 1
            assert (await client.get("/v1/routes")).status_code == 401
        async with home.client() as client:
            refused = await client.post("/in/ci", content=b"{}")
            assert (refused.status_code, refused.json()["code"]) == (401, "BAD_SIGNATURE")


async def test_requests_to_names_that_nobody_set_cost_the_ledger_one_look_in_half_a_second(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def watched(verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*given: Any, **options: Any) -> Any:
            asked.append(verb)
            return real(*given, **options)

        return ask

    for verb in ("newest_sequence", "read_messages", "last", "read_chain"):
        monkeypatch.setattr(ledger.log, verb, watched(verb, getattr(ledger.log, verb)))
    definition = definition_of(GITHUB)
    async with gateway_of(ledger, tmp_path) as gateway:
        gateway.secrets = Secrets({"NEW": "new"})
        transport = httpx.ASGITransport(app(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            began = time.monotonic()
            answers = await asyncio.gather(
                *(client.post(f"/in/unknown-{number}", content=b"{}") for number in range(200))
            )
            assert {each.status_code for each in answers} == {404}
            assert len(asked) <= 2 + (time.monotonic() - began) / FRESH_S
            await ledger.routes.set("github", definition)
            async with asyncio.timeout(LIMIT_S):
                while (taken := await client.post("/in/github", **pushed("d1"))).status_code == 404:
                    await asyncio.sleep(0.02)
            assert taken.status_code == 202
            asked.clear()
            assert (await client.post("/in/no token", content=b"{}")).status_code == 400
            assert asked == []


def test_refused_requests_are_logged_at_most_once_a_minute_for_each_route(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [1_000.0]
    refused = RefusedRequests(lambda: now[0])
    at = datetime(2026, 1, 2, tzinfo=UTC)
    with caplog.at_level(logging.WARNING, logger="jobledger.gateway"):
        for number in range(KEPT_MAX + 50):
            refused.add(f"r{number % 2}", "BAD_SIGNATURE", f"why {number}", client="192.0.2.1", at=at)
        now[0] += 60
        refused.add("r0", "STALE_TIMESTAMP", "late", client="", at=at)
    assert [record.getMessage() for record in caplog.records] == [
        "a request to route r0 from 192.0.2.1 was refused: why 0",
        "a request to route r1 from 192.0.2.1 was refused: why 1",
        "a request to route r0 from nowhere was refused, and 124 before it: late",
    ]
    assert len(refused.newest) == KEPT_MAX
    assert msgspec.structs.asdict(refused.newest[0])["code"] == "STALE_TIMESTAMP"


async def test_a_delivery_id_that_comes_with_another_body_is_kept_and_counted_as_such(
    ledger: Ledger, tmp_path: Path
) -> None:
    await ledger.routes.set("github", definition_of(GITHUB))
    async with gateway_of(ledger, tmp_path) as gateway:
        gateway.secrets = Secrets({"NEW": "new"})
        codes: list[str | None] = []
        inner = app(gateway)

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            await inner(scope, receive, send)
            codes.append(scope.get("jobledger.code"))

        transport = httpx.ASGITransport(noted)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            first = await client.post("/in/github", **pushed("d1"))
            again = await client.post("/in/github", **pushed("d1"))
            assert (again.text, list(gateway.refused.newest)) == (first.text, [])
            other = await client.post(
                "/in/github", **pushed("d1", body=b'{"ref": "refs/heads/main", "more": 1}')
            )
            assert other.text == first.text, "who sends it gets what the first one got"
            kept = (await client.get("/v1/routes/github/refused")).json()["items"]
    assert [(each["code"], "d1" in each["why"]) for each in kept] == [("DIFFERENT_BODY", True)]
    assert codes[:3] == [None, None, "DIFFERENT_BODY"], "by which requests are counted"
