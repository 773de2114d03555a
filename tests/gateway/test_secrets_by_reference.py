"""A key that manages webhooks and routes cannot find out what files and variables the gateway has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection
from tests.support.gateway import someone
from tests.support.gateways import gateway_of
from tests.support.open_gateway import LocalAccess

from jobledger.gateway.app import app
from jobledger.ledger import Ledger
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import ROLES
from jobledger.ledger.webhooks.secrets import Secrets

pytestmark = pytest.mark.anyio
ADMIN = Principal(name="ann", permissions=ROLES["admin"])
MANAGER = someone("view", "manage", "queue")
SEALED = f"sealed:{'A' * 120}"


class Door(LocalAccess):
    """Lets in whom a test names."""

    def __init__(self) -> None:
        super().__init__()
        self.who = MANAGER

    def principal(self, connection: HTTPConnection) -> Principal:
        """Return who asks."""
        del connection
        return self.who


class World:
    """A gateway with a folder of secrets."""

    def __init__(self, http: httpx.AsyncClient, door: Door, folder: Path) -> None:
        self.http = http
        self.door = door
        self.folder = folder

    async def webhook(self, *secrets: str, who: Principal = MANAGER, **fields: Any) -> int:
        """Set the webhook `shop`; return the status."""
        url = fields.pop("url", "https://a.example/")
        body = {"target": {"url": url}, "events": ["completed"], "secrets": secrets, **fields}
        return await self._done("PUT", "/v1/webhooks/shop", body, who)

    async def rotate(self, secret: str, who: Principal = MANAGER) -> int:
        """Rotate its secret."""
        return await self._done("POST", "/v1/webhooks/shop/rotate", {"secret": secret}, who)

    async def route(self, *secrets: str, who: Principal = MANAGER, scheme: str = "github") -> int:
        """Set the route `push`."""
        body = {"scheme": scheme, "secrets": secrets, "rules": [{"name": "any", "task": "send"}]}
        return await self._done("PUT", "/v1/routes/push", body, who)

    async def _done(self, method: str, path: str, body: Any, who: Principal) -> int:
        self.door.who = who
        answer = await self.http.request(method, path, json=body)
        if answer.status_code == 403:
            assert answer.json()["code"] == "JOB_ACCESS_DENIED"
            assert "--secrets" in answer.json()["detail"]
        return answer.status_code


@pytest.fixture
async def world(ledger: Ledger, tmp_path: Path) -> AsyncIterator[World]:
    door = Door()
    async with gateway_of(ledger, tmp_path, door) as gateway:
        gateway.secrets = Secrets({"HOME": "/root", "JOBLEDGER_SECRET_SHOP": "x"}, None, tmp_path / "open")
        transport = httpx.ASGITransport(app(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
            yield World(http, door, tmp_path / "open")


async def test_whoever_manages_names_only_what_lies_where_the_gateway_was_told(world: World) -> None:
    opened = (f"file:{world.folder}/shop", "env:JOBLEDGER_SECRET_SHOP", SEALED)
    closed = (
        "file:/etc/passwd",
        f"file:{world.folder}/../session.key",
        f"file:{world.folder}er/shop",
        "env:HOME",
        "env:JOBLEDGER_SECRET",
        "env:jobledger_secret_shop",
    )
    assert await world.webhook("env:SHELL", who=ADMIN) == 200
    for reference in closed:
        assert await world.webhook(reference) == 403, reference
        assert await world.webhook(opened[0], reference) == 403, reference
        assert await world.rotate(reference) == 403, reference
        assert await world.route(reference) == 403, reference
        assert await world.route(reference, who=ADMIN) == 200, reference
    for reference in opened:
        assert await world.webhook(reference) == 200, reference
        assert await world.rotate(reference) in {200, 409}, reference
        assert await world.route(reference) == 200, reference


async def test_what_an_administrator_named_signs_for_no_other_target(world: World) -> None:
    assert await world.webhook("env:HOME", who=ADMIN) == 200
    assert await world.webhook("env:HOME", events=["queued"]) == 200, "it signs for the same target"
    assert await world.webhook(events=["failed"]) == 200, "it keeps its secret, as before"
    assert await world.webhook("env:HOME", url="https://eve.example/") == 403
    assert await world.webhook(url="https://eve.example/") == 403, "it would keep the secret"
    assert await world.webhook("env:JOBLEDGER_SECRET_SHOP", url="https://eve.example/") == 200


async def test_what_an_administrator_named_proves_in_no_other_way(world: World) -> None:
    assert await world.route("env:HOME", who=ADMIN) == 200
    assert await world.route("env:HOME") == 200
    assert await world.route("env:HOME", scheme="bearer") == 403
    assert await world.route("env:HOME", "env:PATH") == 403


async def test_a_header_takes_a_secret_from_an_administrator_alone(world: World) -> None:
    opened = "env:JOBLEDGER_SECRET_SHOP"
    headers = {"x-token": opened}
    assert await world.webhook(opened, who=ADMIN, headers=headers) == 200
    world.door.who = MANAGER
    body = {"target": {"url": "https://a.example/"}, "events": ["completed"], "headers": headers}
    assert (await world.http.put("/v1/webhooks/shop", json=body)).status_code == 403
