"""Gateways that know keys, and those who hold them: for tests of who is let in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
from tests.support.gateways import gateway_of
from tests.support.limits import LIMIT_S
from tests.support.working import until

from jobledger.admin.keys import Grant, MadeKey, create_key
from jobledger.gateway.access.keys import AccessSettings, KeyAccess, opened_access
from jobledger.gateway.app import app
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.process.counters import Counters
from jobledger.gateway.process.requests import Requests
from jobledger.ledger import Ledger
from jobledger.ledger.access.account import ACCOUNT_FILE, read_account_key

BASE = "http://127.0.0.1:8080"
_BODY_BYTES_MAX = 10 << 20


class House:
    """One gateway with its gate, asked without a port."""

    def __init__(self, gateway: Gateway, access: KeyAccess, account_file: Path) -> None:
        self.account_file = account_file  #: see `jobledger.ledger.access.account`
        self.gateway = gateway
        self.access = access
        self.ledger: Ledger = gateway.ledger
        self.feed = gateway.feed
        self._app = Requests(
            app(gateway), gateway.life, Counters(), body_bytes_max=_BODY_BYTES_MAX, appends=lambda: 0
        )

    def client(self, base: str = BASE, peer: str = "127.0.0.1", **settings: Any) -> httpx.AsyncClient:
        """Return a client of its own; `peer` is the address that it comes from."""
        transport = httpx.ASGITransport(self._app, client=(peer, 40_000))
        return httpx.AsyncClient(transport=transport, base_url=base, **settings)

    def account(self, **settings: Any) -> httpx.AsyncClient:
        """Return a client that sends the key of this account."""
        return self.client(headers={"authorization": f"Bearer {self.account_key}"}, **settings)

    @contextlib.asynccontextmanager
    async def browser(self, **settings: Any) -> AsyncGenerator[httpx.AsyncClient, None]:
        """Give a browser in which this account opened the address that the gateway printed."""
        async with self.client(**settings) as made:
            answer = await made.get("/login", params={"token": self.account_key})
            assert (answer.status_code, answer.headers["location"]) == (303, "/"), answer.text
            yield made

    @property
    def account_key(self) -> str:
        """The key of the account that the gateway runs under."""
        return read_account_key(self.account_file)

    def holder(self, made: MadeKey, **settings: Any) -> httpx.AsyncClient:
        """Return a client that sends a key."""
        return self.client(headers={"authorization": f"Bearer {made.secret}"}, **settings)

    async def key(self, name: str = "ci", **grant: Any) -> MadeKey:
        """Return a new key that this gateway has heard of."""
        made = await create_key(self.ledger, name, Grant(**grant or {"role": "viewer"}), by="ann")
        await self.heard_of(made.info.key, "live")
        return made

    async def heard_of(self, key: str, standing: str) -> None:
        """Wait until this gateway knows that a key stands so."""

        def known() -> bool:
            found = self.access.ring.find(key)
            return found is not None and found.standing(self.ledger.clock.now()) == standing

        await until(known, limit_s=LIMIT_S)


@contextlib.asynccontextmanager
async def house(
    ledger: Ledger, folder: Path, *, is_loopback: bool = True, **settings: Any
) -> AsyncGenerator[House, None]:
    """Open a gateway that knows keys; several on one folder share the key that signs sessions."""
    file = folder / ACCOUNT_FILE
    chosen = AccessSettings(**dict[str, Any](session_key=folder / "session.key", account_key=file) | settings)
    async with (
        opened_access(ledger, chosen, is_loopback=is_loopback) as access,
        gateway_of(ledger, folder, access) as gateway,
    ):
        yield House(gateway, access, file)


def code_of(answer: httpx.Response) -> int | str:
    """Return the code of a refusal, else the status."""
    is_problem = answer.headers.get("content-type") == "application/problem+json"
    return str(answer.json()["code"]) if is_problem else answer.status_code


def altered(text: str) -> str:
    """Return a key or a cookie with another character in its middle: the last one holds only some bits."""
    middle = len(text) // 2
    return text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]
