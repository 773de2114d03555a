"""What the gateway's server writes for each kind of answer, byte by byte, and requests that begin and do not end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.support.limits import LIMIT_S

from jobledger.gateway.process import protocol
from jobledger.gateway.process.listener import listen
from jobledger.gateway.process.server import Server, Settings
from jobledger.gateway.shares import Shares

pytestmark = pytest.mark.anyio

LENGTH_2 = [(b"content-length", b"2")]


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """Answer as the path says."""
    message = await receive()
    path, start = scope["path"], {"type": "http.response.start", "status": 200}
    if path == "/empty":
        await send({**start, "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    elif path == "/parts":
        await send({**start, "headers": []})
        for part in (b"one", b"two", b""):
            await send({"type": "http.response.body", "body": part, "more_body": bool(part)})
    elif path == "/broken":
        await send({**start, "headers": LENGTH_2})
    else:
        await send({**start, "headers": LENGTH_2})
        await send({"type": "http.response.body", "body": message["body"] or b"ok"})


@contextlib.asynccontextmanager
async def connected() -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """Give a connection to a server."""
    bound, ready = listen("127.0.0.1", 0), asyncio.Event()
    server = Server(answering, Settings(), Shares().connected)
    running = asyncio.create_task(server.run(bound, ready.set))
    async with asyncio.timeout(LIMIT_S):
        await ready.wait()
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            server.stop()
            await running


def asking(*paths: str, more: str = "") -> bytes:
    lines = (f"{path} HTTP/1.1\r\nhost: here\r\n{more}\r\n" for path in paths)
    return "".join(lines).encode()


def without_dates(text: bytes) -> list[str]:
    return [line for line in text.decode().split("\r\n") if not line.startswith("date:")]


async def test_each_kind_of_answer_is_written_whole_and_in_its_turn() -> None:
    async with connected() as (reader, writer):
        writer.write(asking("GET /", "HEAD /", "GET /empty", "GET /parts", "GET /", "GET /broken"))
        found = without_dates(await reader.read())
    ok = ["HTTP/1.1 200 OK", "content-length: 2", ""]
    parts = ["HTTP/1.1 200 OK", "transfer-encoding: chunked", "", "3", "one", "3", "two", "0", ""]
    whole = [*ok, "ok" + ok[0], *ok[1:], "HTTP/1.1 204 No Content", "", parts[0], *parts[1:], ok[0], *ok[1:]]
    assert found == [*whole, "ok" + ok[0], *ok[1:], ""]


async def test_a_body_is_asked_for_before_its_answer_begins() -> None:
    async with connected() as (reader, writer):
        writer.write(asking("POST /", more="content-length: 2\r\nexpect: 100-continue\r\n"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_head_and_body_of_an_answer_are_written_at_once() -> None:
    class Transport:
        def __init__(self) -> None:
            self.calls: list[bytes] = []

        def write(self, data: bytes) -> None:
            self.calls.append(data)

        def writelines(self, parts: tuple[bytes, ...]) -> None:
            self.calls.append(b"".join(parts))

        def is_closing(self) -> bool:
            return False

    transport: Any = Transport()
    together = protocol._Together(transport)
    for data in (b"head,", b"body", b",more"):
        together.write(data)
    together.end()
    assert transport.calls == [b"head,body", b",more"]


@pytest.mark.parametrize("before", [b"", asking("GET /"), b"\r\n"])
async def test_a_head_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.05)
    monkeypatch.setattr(protocol, "LINGER_S", 0.05)
    async with connected() as (reader, writer):
        writer.write(before + b"GET / HT")
        assert b"HTTP/1.1 408 Request Timeout" in await reader.read()


async def test_a_long_body_and_requests_behind_each_other_are_no_long_head() -> None:
    body = b"b" * (3 * protocol.HEAD_BYTES_MAX)
    posted = asking("POST /parts", more=f"content-length: {len(body)}\r\n") + body
    fits = asking("GET /", more=f"x: {'a' * (protocol.HEAD_BYTES_MAX - 200)}\r\n")
    async with connected() as (reader, writer):
        writer.write(posted + fits + fits + asking("GET /broken"))
        found = (await reader.read()).decode()
    assert found.count("HTTP/1.1 200") == 4, found[:300]


@pytest.mark.parametrize("before", [b"", asking("GET /")])
@pytest.mark.parametrize("long", ["x: {}", "GET /{}", "many", "blanks"])
async def test_a_head_that_is_too_long_is_refused_also_where_it_comes_at_once(
    monkeypatch: pytest.MonkeyPatch, before: bytes, long: str
) -> None:
    """The system hands over up to 256 KiB at once, which is a whole head for the parser."""
    monkeypatch.setattr(protocol, "LINGER_S", 0.2)
    longer = protocol.HEAD_BYTES_MAX + 1
    headers = {
        "x: {}": f"x: {'a' * longer}\r\n",
        "many": "a:\r\n" * (longer // 4 + 1),
        "blanks": f"x:{' ' * 2 * longer}a\r\n",
    }
    head = asking("GET /", more=headers[long]) if long in headers else asking(long.format("a" * longer))
    async with connected() as (reader, writer):
        writer.write(before + head)
        found = (await reader.read()).decode()
    assert "HTTP/1.1 431 Request Header Fields Too Large" in found
    assert found.count("HTTP/1.1 200") == 0 or before
    assert "cache-control: no-store\r\nx-content-type-options: nosniff" in found
