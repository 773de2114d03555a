"""Requests that mean harm, sent to a real gateway process: each gets one sentence, and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.support.limits import LIMIT_S
from tests.support.warm import start

from jobledger.gateway.problems import ProblemError
from jobledger.gateway.process import bodies, protocol
from jobledger.gateway.process.bodies import Body
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.access.account import read_account_key
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

HOST = b"Host: 127.0.0.1\r\n"
JSON = b"Content-Type: application/json\r\n"
CANCEL = b"POST /v1/jobs/mail/a/cancel HTTP/1.1\r\n"
CHUNK = b"10000\r\n" + b"a" * 65536 + b"\r\n"


@task(queue="mail")
async def send(to: str) -> None:
    """Be enqueued only."""


class Attacked(NamedTuple):
    port: int
    ledger: Ledger
    cookie: bytes  #: of the account, for that the browser of somebody who is let in is what pages elsewhere attack by


@pytest.fixture(scope="module")
async def attacked(
    nats_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Attacked]:
    """A gateway process of a ledger with one job."""
    folder, environment = tmp_path_factory.mktemp("gateway"), f"t_{secrets.token_hex(6)}"
    async with connect(nats_server.url, environment=environment, ledger_bytes_max=16 << 20) as ledger:
        await ledger.enqueue(send.options(id="a"), to="ann")
        process = start(
            *(
                "-m",
                "jobledger.cli",
                "gateway",
                "--port",
                "0",
                "--json",
                "--projection",
                str(folder / "p.db"),
            ),
            *("--url", nats_server.url, "--environment", environment),
            folder=folder,
            variables={**os.environ, "XDG_DATA_HOME": str(folder)},
        )
        try:
            assert process.stdout is not None
            ready = json.loads(await asyncio.to_thread(process.stdout.readline))
            port = int(ready["gateway"].rpartition(":")[2])
            yield Attacked(port, ledger, await logged_in(ready))
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.to_thread(process.communicate, LIMIT_S)
            assert "Traceback" not in errors, errors


async def logged_in(ready: dict[str, str]) -> bytes:
    """Return the header of a browser in which the account logged in."""
    key = read_account_key(Path(ready["key_file"]))
    async with httpx.AsyncClient(base_url=ready["gateway"], timeout=LIMIT_S) as client:
        answer = await client.get("/login", params={"token": key})
    return f"Cookie: {answer.headers['set-cookie'].partition(';')[0]}\r\n".encode()


class Reply(NamedTuple):
    status: int
    text: str  #: the sentence
    code: str  #: "" where the connection itself was refused


async def attack(attacked: Attacked, parts: Iterable[bytes]) -> Reply:
    """Send something, as much of it as is taken, and read the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", attacked.port)

    async def sending() -> None:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part.replace(HOST, HOST + attacked.cookie))
                await writer.drain()

    task = asyncio.create_task(sending())
    try:
        async with asyncio.timeout(LIMIT_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            body = (await reader.readexactly(length)).decode()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    status = int(head.split(" ", 2)[1])
    if "problem+json" not in head:
        return Reply(status, body, "")
    problem: dict[str, Any] = json.loads(body)
    return Reply(status, problem["detail"], problem["code"])


def trailing(head: bytes) -> Iterable[bytes]:
    yield head + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    while True:
        yield b"X: " + b"a" * 60_000 + b"\r\n"


def whole(head: bytes, body: bytes, kind: bytes = JSON) -> list[bytes]:
    return [head + HOST + kind + b"Content-Length: %d\r\n\r\n" % len(body), body]


def endless(head: bytes, kind: bytes = JSON) -> Iterable[bytes]:
    yield head + HOST + kind + b"Transfer-Encoding: chunked\r\n\r\n"
    while True:
        yield CHUNK


FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
FOREIGN = b"Origin: https://evil.example\r\n"
DEEP = b'{"input":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}"
ATTACKS: dict[str, tuple[Iterable[bytes], int, str, str]] = {
    "a foreign host": (
        [b"GET /v1/jobs/mail/a HTTP/1.1\r\nHost: evil.example\r\n\r\n"],
        421,
        "MISDIRECTED",
        "--allow-host",
    ),
    "a name that was rebound to this machine": (
        [CANCEL + b"Host: evil.example:8080\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}"],
        421,
        "MISDIRECTED",
        "evil.example",
    ),
    "no host": ([b"GET /v1/jobs/mail/a HTTP/1.1\r\n\r\n"], 421, "MISDIRECTED", "missing"),
    "a form of another site": (
        whole(CANCEL, b"reason=x", FORM + FOREIGN + b"Sec-Fetch-Site: cross-site\r\n"),
        403,
        "CROSS_SITE",
        "nothing was done",
    ),
    "a form of another site in an old browser": (
        whole(CANCEL, b"reason=x", FORM + FOREIGN),
        403,
        "CROSS_SITE",
        "nothing was done",
    ),
    "a form without an origin": (
        whole(CANCEL, b'{"reason":"x"}', b"Content-Type: text/plain\r\n"),
        403,
        "CROSS_SITE",
        "application/json",
    ),
    "a header of 10 MB": (
        [b"GET /v1/jobs HTTP/1.1\r\n" + HOST + b"X: ", *[b"a" * 100_000] * 100, b"\r\n\r\n"],
        431,
        "",
        "65,536 bytes",
    ),
    "headers of 10 MB": (
        [b"GET /v1/jobs HTTP/1.1\r\n" + HOST, *[b"X: " + b"a" * 10_000 + b"\r\n"] * 1000, b"\r\n"],
        431,
        "",
        "65,536 bytes",
    ),
    "an endless body": (endless(CANCEL), 413, "PAYLOAD_TOO_LARGE", "pass a reference"),
    "a body that says that it has 1 GB": (
        [CANCEL + HOST + JSON + b"Content-Length: 1000000000\r\n\r\n"],
        413,
        "PAYLOAD_TOO_LARGE",
        "pass a reference",
    ),
    "a line of 100 MB": (
        endless(b"POST /v1/jobs/bulk?task=send HTTP/1.1\r\n", b"Content-Type: application/x-ndjson\r\n"),
        413,
        "PAYLOAD_TOO_LARGE",
        "line 1",
    ),
    "JSON 10,000 deep": (
        whole(b"POST /v1/jobs/mail/a/requeue HTTP/1.1\r\n", DEEP),
        400,
        "BAD_REQUEST",
        "JSON",
    ),
    "JSON 10,000 deep where nothing is read": (
        whole(CANCEL, b"[" * 10_000),
        400,
        "BAD_REQUEST",
        "the body",
    ),
    "JSON that is cut": (whole(CANCEL, b'{"reason": "x'), 400, "BAD_REQUEST", "JSON"),
    "headers behind the body": (
        [
            CANCEL
            + HOST
            + JSON
            + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nHost: evil.example\r\n\r\n"
        ],
        400,
        "BAD_REQUEST",
        "JSON",
    ),
    "headers without end behind the body": (trailing(CANCEL), 431, "", "65,536 bytes"),
    "a chunk with a name of 10 MB": (
        [CANCEL + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n1;", *[b"a" * 100_000] * 100],
        431,
        "",
        "65,536 bytes",
    ),
    "two lengths": (
        [CANCEL + HOST + JSON + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"],
        400,
        "",
        "no HTTP",
    ),
    "TLS": ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 200], 400, "", "https are mixed up"),
    "a method that is none": ([b"HACK / HTTP/1.1\r\n" + HOST + b"\r\n"], 400, "", "no HTTP"),
    "a method that reflects": (
        [b"TRACE /v1/jobs HTTP/1.1\r\n" + HOST + b"\r\n"],
        405,
        "METHOD_NOT_ALLOWED",
        "TRACE",
    ),
    "a header in the address": (
        [b"GET /v1/jobs/mail/a%0d%0aSet-Cookie:x HTTP/1.1\r\n" + HOST + b"\r\n"],
        400,
        "BAD_REQUEST",
        "1 to 64 characters",
    ),
    "a path out of the folder": (
        [b"GET /static/..%2f..%2f..%2fetc/passwd HTTP/1.1\r\n" + HOST + b"\r\n"],
        404,
        "ENDPOINT_NOT_FOUND",
        "there is no address",
    ),
}


async def test_each_hostile_request_gets_one_sentence_and_changes_nothing(attacked: Attacked) -> None:
    before = (await attacked.ledger.log.head()).last_sequence
    replies = await asyncio.gather(*(attack(attacked, parts) for parts, *_ in ATTACKS.values()))
    for (name, (_, status, code, word)), reply in zip(ATTACKS.items(), replies, strict=True):
        assert (reply.status, reply.code) == (status, code), f"{name}: {reply}"
        assert word in reply.text, f"{name}: {reply}"
        assert "\n" not in reply.text.strip(), f"{name}: one sentence"
        assert "Traceback" not in reply.text, name
    assert (await attacked.ledger.log.head()).last_sequence == before
    alive = await attack(attacked, [b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"])
    assert (alive.status, alive.text) == (200, "ok\n")


async def test_requests_that_never_end_keep_nobody_else_waiting(attacked: Attacked) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", attacked.port) for _ in range(200)]
    for _, writer in idle[:100]:
        writer.write(CANCEL + HOST + attacked.cookie + JSON + b"Content-Length: 100\r\n\r\n{")
    for _, writer in idle[100:]:
        writer.write(b"GET /v1/jobs HTTP/1.1\r\nHo")
    alive = await attack(attacked, [b"GET /v1/jobs/mail/a HTTP/1.1\r\n" + HOST + b"\r\n"])
    assert alive.status == 200
    for _, writer in idle:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in idle), return_exceptions=True)


def slow(*, bytes_in: int, waits_s: float, parts: int, monkeypatch: pytest.MonkeyPatch) -> Body:
    """A body of which every part comes after so long, on a clock that jumps."""
    now = [0.0]
    monkeypatch.setattr("jobledger.gateway.process.bodies.time.monotonic", lambda: now[0])
    left = [parts]

    async def receive() -> dict[str, Any]:
        now[0] += waits_s
        left[0] -= 1
        return {"type": "http.request", "body": b"a" * bytes_in, "more_body": left[0] > 0}

    async def ignore(_message: Any) -> None: ...

    return Body({"type": "http", "headers": [(b"content-type", b"application/x-ndjson")]}, receive, ignore, 1)


async def read(body: Body, parts: int) -> int:
    total = 0
    for _ in range(parts):
        total += len((await body.receive())["body"])
    return total


async def test_a_body_has_thirty_seconds_or_comes_fast_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = slow(bytes_in=200_000, waits_s=1.0, parts=100, monkeypatch=monkeypatch)
    assert await read(fast, 100) == 20_000_000
    late = slow(bytes_in=50_000, waits_s=1.0, parts=100, monkeypatch=monkeypatch)
    with pytest.raises(ProblemError) as refused:
        await read(late, 100)
    assert refused.value.code == "BODY_TOO_SLOW"
    assert "100,000 bytes in each second" in str(refused.value)


@pytest.mark.fault
@pytest.mark.timeout(120)
async def test_a_slow_head_and_a_slow_body_are_cut_off(attacked: Attacked) -> None:
    async def trickle(port: int, head: bytes, drop: bytes) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)

        async def sending() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await asyncio.sleep(0.5)
                    writer.write(drop)
                    await writer.drain()

        task = asyncio.create_task(sending())
        text = (await asyncio.wait_for(reader.read(), protocol.HEAD_S + bodies.BODY_S + LIMIT_S)).decode()
        task.cancel()
        writer.close()
        return Reply(int(text.split(" ", 2)[1]), text.rpartition("\r\n")[2], "")

    before = (await attacked.ledger.log.head()).last_sequence
    head, body = await asyncio.gather(
        trickle(attacked.port, b"GET /v1/jobs HTTP/1.1\r\n", b"X: a\r\n"),
        trickle(
            attacked.port, CANCEL + HOST + attacked.cookie + JSON + b"Content-Length: 5000\r\n\r\n", b"a"
        ),
    )
    assert (head.status, body.status) == (408, 408)
    assert (await attacked.ledger.log.head()).last_sequence == before
