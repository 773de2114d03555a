"""Gateways that listen: for what only a real server shows, such as streams and connections that end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import anyio
import httpx
import uvicorn
from tests.support.limits import LIMIT_S
from tests.support.open_gateway import LocalAccess, OwnProjection

from jobledger.admin.rows import Rows
from jobledger.gateway.app import app
from jobledger.gateway.events.feed import Feed
from jobledger.gateway.gateway import Access, Gateway
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


def as_account(ready: Mapping[str, Any]) -> dict[str, str]:
    """Return the header by which this account gets in at a gateway, from the line in which that one said it is ready."""
    name, _, value = Path(ready["key_file"]).read_text(encoding="utf-8").strip().partition(": ")
    return {name: value}


class Cutter:
    """A proxy in front of several gateways in turn, which breaks off what they answer after any number of bytes."""

    def __init__(self, urls: Sequence[str], chance: random.Random, cuts_max: int, bytes_max: int) -> None:
        """After this number of cuts it hands on everything."""
        self._ports = cycle([int(url.rpartition(":")[2]) for url in urls])
        self._chance = chance
        self._cuts_max = cuts_max
        self._bytes_max = bytes_max
        self.cuts = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[str, None]:
        """Listen for the length of the block; give the address."""
        async with anyio.create_task_group() as group:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                group.start_soon(self._serve, reader, writer)

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            server.close()
            group.cancel_scope.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_there, to_there = await asyncio.open_connection("127.0.0.1", next(self._ports))
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._pass, reader, to_there)
                await self._cut(from_there, writer)
                group.cancel_scope.cancel()
        finally:
            writer.transport.abort()
            to_there.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)

    async def _cut(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self._chance.randrange(self._bytes_max) if self.cuts < self._cuts_max else 1 << 60
        with contextlib.suppress(ConnectionError):
            while left and (data := await reader.read(min(left, 1 << 16))):
                left -= len(data)
                writer.write(data)
                await writer.drain()
        if not left:
            self.cuts += 1
            writer.write_eof()  # what was passed on arrives, and nothing after it


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
