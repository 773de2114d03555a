"""A gateway whose connection to the server breaks, again and again: who asks waits a moment, and is refused nothing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.gateways import gateway_of
from tests.support.limits import LIMIT_S
from tests.support.proxy import Proxy

from jobledger.gateway.app import app
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

JOBS = 8
#: Of messages that break the connection they are sent on.
CUT_SHARE = 0.01


@task(queue="mail")
async def send(number: int) -> int:
    return number


async def ask(http: httpx.AsyncClient, number: int) -> Counter[tuple[str, int]]:
    """Add a job, look at it and at all else, and act; return what was answered with which status."""
    job = f"/v1/jobs/mail/j-{number}"
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/jobs", {"task": "send", "input": {"number": number}, "id": f"j-{number}"}),
        *(("GET", f"{job}{more}", None) for more in ("", "/events", "/why", "/trail")),
        *(
            ("GET", f"/v1/{name}", None)
            for name in ("jobs", "workers", "queues", "limits", "schedules", "diagnoses")
        ),
        ("GET", "/", None),
        ("POST", f"{job}/note", {"text": "seen"}),
        ("POST", "/v1/queues/mail/pause", {"reason": "while the line is bad"}),
        ("POST", f"{job}/cancel", {"reason": "not needed"}),
    ]
    found: Counter[tuple[str, int]] = Counter()
    for method, path, body in asked:
        answer = await http.request(method, path, json=body)
        found[f"{method} {path.removeprefix(job)}", answer.status_code] += 1
    return found


async def test_no_request_is_refused_because_a_connection_broke(
    ledger: Ledger, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    entry = entry_of(send, worker="w", at=ledger.clock.now())
    await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
    async with (
        Proxy(int(nats_server.url.rpartition(":")[2]), random.Random(1)) as proxy,
        connect(proxy.url, environment=ledger.names.environment) as behind,
        gateway_of(behind, tmp_path) as gateway,
    ):
        transport = httpx.ASGITransport(app(gateway))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8080", timeout=LIMIT_S
        ) as http:
            await ask(http, JOBS)
            proxy.cut_share = CUT_SHARE
            found: Counter[tuple[str, int]] = Counter()
            for told in await asyncio.gather(*(ask(http, number) for number in range(JOBS))):
                found += told
            proxy.cut_share = 0.0
    assert proxy.cuts > 2
    assert {status for _, status in found} == {200, 202}, found
