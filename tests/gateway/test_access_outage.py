"""A gateway whose server is away lets nobody in once its keys are too old, and knows what was revoked when it is back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from tests.conftest import ServerFactory
from tests.support.keyholders import code_of, house
from tests.support.limits import LIMIT_S

from jobledger.admin.keys import revoke_key
from jobledger.gateway.access import ring
from jobledger.ledger import connect

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(120)]
STALE_S = 1.5


async def test_a_gateway_without_its_server_lets_nobody_in_and_is_right_afterwards(
    tmp_path: Path, server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "STALE_S", STALE_S)
    server = server_factory()
    await server.start()
    async with (
        connect(server.url, ledger_bytes_max=16 << 20) as ledger,
        connect(server.url, create=False) as other,
        house(ledger, tmp_path) as home,
    ):
        for _ in range(3):
            made, kept = await home.key("ended"), await home.key("kept")
            async with home.holder(made) as ended, home.holder(kept) as holder:
                assert (await holder.get("/v1/me")).status_code == 200
                await server.stop()
                await _until(holder, "LEDGER_UNREACHABLE")
                await server.start()
                await other.connection.wait_connected(LIMIT_S)
                await revoke_key(other, made.info.key, by="ann")
                await _until(holder, 200)
                # What it read the moment it was back may be older than the revocation, but not for longer than it is kept.
                async with asyncio.timeout(STALE_S):
                    await _until(ended, "UNAUTHENTICATED")
            await revoke_key(other, kept.info.key, by="ann")


async def _code(client: httpx.AsyncClient) -> int | str:
    return code_of(await client.get("/v1/me"))


async def _until(client: httpx.AsyncClient, expected: int | str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await _code(client) != expected:
            await asyncio.sleep(0.02)
