"""What the tests of the gateway share: a ledger in an environment of the test's own, and a client that needs no port."""

from __future__ import annotations

import importlib.util
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.support.gateways import gateway_of, listening
from tests.support.limits import LIMIT_S

from jobledger.gateway.app import app
from jobledger.gateway.gateway import Gateway
from jobledger.ledger import Ledger, connect
from jobledger.ledger.server import EmbeddedServer

if importlib.util.find_spec("sniffio") is None:
    # httpx imports it several times for each request. Where it is not installed, each of these looks through all folders.
    sys.modules["sniffio"] = None  # type: ignore[assignment] # so an import fails at once


@pytest.fixture(autouse=True)
def leaves_sound_ledgers(sound_ledgers: None) -> None:
    """Every test's ledgers are verified at its end."""


@pytest.fixture
async def ledger(nats_server: EmbeddedServer) -> AsyncIterator[Ledger]:
    """One client of an environment that nobody else has."""
    environment = f"t_{secrets.token_hex(6)}"
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=16 << 20) as made:
        yield made


@pytest.fixture
async def gateway(ledger: Ledger, tmp_path: Path) -> AsyncIterator[Gateway]:
    """Give what the handlers share."""
    async with gateway_of(ledger, tmp_path) as made:
        yield made


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the application itself."""
    transport = httpx.ASGITransport(app(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        yield client


@pytest.fixture
async def served(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the gateway that listens: for streams."""
    async with (
        listening(gateway) as url,
        httpx.AsyncClient(base_url=url, timeout=LIMIT_S, verify=False) as client,
    ):
        yield client
