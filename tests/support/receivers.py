"""A receiver of webhooks on this machine: it keeps what it is sent, and answers as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from typing import NamedTuple


class Received(NamedTuple):
    """One request."""

    line: str  #: `POST /path HTTP/1.1`
    headers: dict[str, str]  #: by lower-case name
    body: bytes


class Receiver:
    """What came, and what is answered."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.answer = b"HTTP/1.1 204 No Content\r\n\r\n"
        self.slow_paths: set[str] = set()  #: requests of these are never answered
        self.url = ""
        self.port = 0
        self.now = 0  #: requests under way
        self.most = 0  #: of them at once

    def says(self, status: str, *headers: str, body: bytes = b"") -> None:
        """Answer so from here on."""
        lines = (f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers)
        self.answer = "\r\n".join((*lines, "", "")).encode() + body

    @property
    def ids(self) -> list[str]:
        """The ids of the messages that came, in their order."""
        return [each.headers["webhook-id"] for each in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one request."""
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append(Received(head[0], headers, body))
            if head[0].split(" ")[1] in self.slow_paths:
                await reader.read()  # until the sender gives up
            writer.write(self.answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.now -= 1
            writer.close()


@contextlib.asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncGenerator[Receiver]:
    """Listen for the length of the block."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{receiver.port}/hooks"
    try:
        yield receiver
    finally:
        server.close()
