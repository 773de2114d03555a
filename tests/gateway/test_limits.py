"""More than a gateway or its ledger takes is refused in time, and what looks after the process is answered all the same."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.full_ledgers import unthrottled
from tests.support.gateways import gateway_of
from tests.support.limits import LIMIT_S
from tests.support.secured import Authority

from jobledger.gateway.app import app
from jobledger.gateway.life import Life
from jobledger.gateway.process import requests
from jobledger.gateway.process.counters import Counters
from jobledger.gateway.process.listener import listen, url_of
from jobledger.gateway.process.requests import Requests
from jobledger.gateway.process.server import Server, Settings
from jobledger.gateway.shares import Shares
from jobledger.ledger import connect, task
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio


@task(queue="mail")
async def send(to: str) -> None:
    """Be enqueued only."""


class Slow:
    """An application whose answers wait until they may come."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        if scope["path"] != "/healthz":
            await self.may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def client(inner: Slow, counted: Counters, appends: int = 0) -> httpx.AsyncClient:
    limited = Requests(inner, Life(), counted, body_bytes_max=1000, appends=lambda: appends)
    return httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://127.0.0.1")


async def test_who_writes_while_too_many_events_wait_is_refused_and_who_reads_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "_PATIENCE_S", 0.02)
    inner = Slow()
    inner.may_end.set()
    async with client(inner, Counters(), appends=requests.APPENDS_MAX) as http:
        refused = await http.post("/v1/jobs", json={})
        assert (refused.status_code, refused.json()["code"]) == (503, "LEDGER_BUSY")
        assert (await http.get("/v1/jobs")).status_code == 200


async def test_a_full_ledger_says_that_it_is_full(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    environment = f"t_{secrets.token_hex(6)}"
    async with (
        connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 16) as ledger,
        gateway_of(ledger, tmp_path) as gateway,
        httpx.AsyncClient(transport=httpx.ASGITransport(app(gateway)), base_url="http://127.0.0.1") as http,
    ):
        entry = entry_of(send, worker="web-1-0a", at=ledger.clock.now())
        await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
        body = {"task": "send", "input": {"to": "a" * 10_000}}
        answers = [await http.post("/v1/jobs", json=body) for _ in range(10)]
        throttled = answers[-1]
        assert answers[0].status_code == 202
        assert (throttled.status_code, throttled.json()["code"]) == (503, "LEDGER_THROTTLED")
        assert int(throttled.headers["retry-after"]) >= 1
        unthrottled(ledger)
        full = [await http.post("/v1/jobs", json=body) for _ in range(10)][-1]
        assert (full.status_code, full.json()["code"]) == (507, "LEDGER_FULL")
        stored = (await ledger.log.head()).last_sequence
        assert stored >= sum(answer.status_code == 202 for answer in answers)


async def test_a_server_shows_its_certificate_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1")
    inner = Slow()
    inner.may_end.set()
    server = Server(inner, Settings(https_cert=files.cert, https_key=files.key), Shares().connected)
    with listen("127.0.0.1", 0) as bound:
        ready = asyncio.Event()
        running = asyncio.create_task(server.run(bound, ready.set))
        await asyncio.wait_for(ready.wait(), LIMIT_S)
        trusted = ssl.create_default_context(cafile=str(authority.ca))
        async with httpx.AsyncClient(verify=trusted, timeout=LIMIT_S) as http:
            assert (await http.get(url_of(bound, https=True))).status_code == 200
        server.stop()
        await asyncio.wait_for(running, LIMIT_S)
