"""Gateways that listen: for what only a real server shows, such as streams and connections that end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import httpx
import uvicorn
from tests.support.limits import LIMIT_S

from jobledger.admin.rows import Rows
from jobledger.gateway.access.local import LocalAccess
from jobledger.gateway.app import app
from jobledger.gateway.events.feed import Feed
from jobledger.gateway.parts import Access, Gateway
from jobledger.gateway.projection import OwnProjection
from jobledger.ledger import Ledger


@contextlib.asynccontextmanager
async def gateway_of(
    ledger: Ledger, folder: Path, access: Access | None = None
) -> AsyncGenerator[Gateway, None]:
    """Give what the handlers of a gateway share, in this process; without `access` nobody is asked who they are."""
    rows = Rows(ledger, folder / "projection.db")
    async with Feed(ledger) as feed:
        yield Gateway(ledger, rows, OwnProjection(rows), access or LocalAccess(), feed)


@contextlib.asynccontextmanager
async def listening(gateway: Gateway, port: int = 0) -> AsyncGenerator[str, None]:
    """Let a gateway listen, on a free port unless told otherwise; give its address."""
    config = uvicorn.Config(
        app(gateway), host="127.0.0.1", port=port, log_config=None, lifespan="off", http="httptools"
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    async with asyncio.timeout(LIMIT_S):
        while not server.started:
            await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        gateway.feed.close()
        server.should_exit = True
        async with asyncio.timeout(LIMIT_S):
            await running


class Event:
    """One server-sent event."""

    def __init__(self) -> None:
        self.id = ""
        self.kind = ""
        self.data = ""


async def events_of(response: httpx.Response) -> AsyncIterator[Event]:
    """Read server-sent events as the HTML standard says; those that only move the id on have no data."""
    event = Event()
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        match name:
            case "id":
                event.id = value
            case "event":
                event.kind = value
            case "data":
                event.data = value
            case "" if event.id or event.data:
                yield event
                event = Event()
            case _:
                pass
