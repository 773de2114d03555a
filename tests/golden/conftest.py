"""What the recorded answers and pages share: a small ledger that is filled once, and a gateway on it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from tests.golden.app import TASKS
from tests.golden.world import fill
from tests.support.gateways import gateway_of

from jobledger.gateway.app import app
from jobledger.ledger import TaskRegistry, connect
from jobledger.ledger.server import EmbeddedServer

#: A worker that stopped is listed for so long: longer than the slowest machine takes for the questions.
_LEASE_S: Final = 600.0


class Recorded(NamedTuple):
    """A ledger that was filled, and a gateway on it in a thread of its own."""

    url: str
    environment: str
    names: dict[str, str]  #: that are not the same each time
    portal: BlockingPortal
    http: httpx.AsyncClient


@pytest.fixture(scope="module")
def recorded(
    nats_server: EmbeddedServer, nats_server_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recorded]:
    """Fill a ledger in an environment that nobody else has."""
    environment = f"t_{secrets.token_hex(6)}"

    @asynccontextmanager
    async def opened() -> AsyncGenerator[tuple[dict[str, str], httpx.AsyncClient], None]:
        folder = tmp_path_factory.mktemp("golden")
        empty = EmbeddedServer(folder / "empty", port=0, durability="process", binary=nats_server_binary)
        async with (
            empty,
            connect(
                nats_server.url, environment=environment, ledger_bytes_max=16 << 20, lease_s=_LEASE_S
            ) as ledger,
            gateway_of(ledger, folder) as gateway,
        ):
            gateway.tasks = TaskRegistry(TASKS)
            names = {**await fill(ledger), "empty": empty.url}
            transport = httpx.ASGITransport(app(gateway))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
                yield names, http

    # Commands are run in this thread, and each of them runs a loop of its own.
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened()) as (names, http):
        yield Recorded(nats_server.url, environment, names, portal, http)
