"""A gateway whose server is frozen: every address answers, and none of them keeps its asker waiting."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.gateway.test_endpoints import BODIES, WORDS
from tests.support.figures import Recorder
from tests.support.gateway import send
from tests.support.gateways import as_account
from tests.support.limits import LIMIT_S
from tests.support.warm import start
from tests.support.working import bury

from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.http.endpoint import NDJSON
from jobledger.gateway.pages.table import FORMS, PAGES
from jobledger.gateway.process.requests import SILENT_S_MAX
from jobledger.ledger import Ledger
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.model.hooks.schemes import PRESETS, sign
from jobledger.ledger.nats.task_book import write_tasks
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(180)]

#: Twice what a call to the ledger may take, for those that make two; and what a machine with little to do adds.
ANSWERED_WITHIN_S: Final = 12.0
_SECRET: Final = "the secret of the test"
_STREAM: Final = {"accept": "text/event-stream"}


@pytest.fixture
async def http(server: EmbeddedServer, ledger: Ledger, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway process."""
    words = ("--port", "0", "--json", "--projection", str(tmp_path / "p.db"))
    there = ("--url", server.url, "--environment", ledger.names.environment)
    variables = {
        **os.environ,
        "XDG_DATA_HOME": str(tmp_path),
        "A": _SECRET,
        "SECRET": _SECRET,
        "NEW": _SECRET,
    }
    process = start("-m", "jobledger.cli", "gateway", *words, *there, folder=tmp_path, variables=variables)
    try:
        assert process.stdout is not None
        ready = json.loads(await asyncio.to_thread(process.stdout.readline))
        url, own = ready["gateway"], as_account(ready)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, headers=own, timeout=60, limits=limits) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.to_thread(process.communicate, LIMIT_S)
        assert "Traceback" not in errors, errors[errors.index("Traceback") :]


async def _fill(ledger: Ledger, http: httpx.AsyncClient) -> None:
    """Have something of everything that addresses name."""
    entry = entry_of(send, worker="web-1-0a", at=ledger.clock.now())
    await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)
    await ledger.enqueue(send.options(id="job-1"))
    await bury(ledger, await ledger.enqueue(send.options(id="dead")))
    for path in ("limits/{limit}", "routes/{route}", "schedules/{name}", "webhooks/{name}", "watches/{name}"):
        body = BODIES[f"PUT /v1/{path}"]
        answer = await http.put(f"/v1/{path.format_map(WORDS)}", json=body)
        assert answer.status_code == 200, answer.text
    assert (await _delivered(http)).status_code == 202
    head = (await ledger.log.head()).last_sequence
    assert (await http.get(f"/v1/jobs?min_sequence={head}")).status_code == 200


async def _delivered(http: httpx.AsyncClient, delivery: str = "d1") -> httpx.Response:
    body = b'{"repository": {"name": "shop"}}'
    headers = {
        "x-github-event": "push",
        "x-github-delivery": delivery,
        "x-hub-signature-256": sign(PRESETS["github"], _SECRET, body),
    }
    return await http.post(f"/in/{WORDS['route']}", content=body, headers=headers)


async def _asked(
    http: httpx.AsyncClient, method: str, path: str, **given: Any
) -> tuple[str, float, int, str]:
    """Return what was asked, how long the answer took, its status and its text; of a stream its first part."""
    began = time.monotonic()
    text = ""
    async with http.stream(method, path, **given) as answer:
        async for part in answer.aiter_text():
            text += part
            if answer.headers["content-type"].startswith("text/event-stream"):
                break
    shown = f"{method} {path} {given or ''}"[:160]
    return shown, time.monotonic() - began, answer.status_code, text


def _requests() -> list[tuple[str, str, dict[str, Any]]]:
    found: list[tuple[str, str, dict[str, Any]]] = []
    for endpoint in ENDPOINTS:
        if endpoint.path.startswith("/in/"):
            continue
        named, given = f"{endpoint.method} {endpoint.path}", dict[str, Any]()
        if endpoint.takes == NDJSON:
            given = {"content": b'{"task": "send"}\n' * 3, "headers": {"content-type": NDJSON}}
        elif endpoint.body is not None:
            given = {"json": BODIES.get(named, {})}
        found.append((endpoint.method, endpoint.path.format_map(WORDS), given))
    found += [("GET", path, {}) for path in _pages()]
    found += [
        ("POST", form.path.format_map({**WORDS, "verb": "cancel"}), {"data": {"token": "x"}})
        for form in FORMS
    ]
    job = f"/v1/jobs/mail/{WORDS['id']}"
    found += [
        ("GET", path, {"headers": _STREAM})
        for path in ("/v1/events", "/v1/events?from=1", f"{job}/events", "/live")
    ]
    found += [
        ("GET", "/v1/events?wait=5", {"headers": {"accept": NDJSON}}),
        ("GET", "/v1/jobs?sequence=2", {}),
        ("GET", "/v1/jobs?min_sequence=99999", {}),
        ("GET", f"{job}?sequence=2", {}),
        ("GET", f"{job}/result", {"headers": {"prefer": "wait=5"}}),
        ("POST", "/v1/jobs", {"json": {"task": "send"}, "headers": {"idempotency-key": "k", "prefer": "wait=5"}}),
        ("POST", "/v1/jobs", {"json": {"task": "unheard"}}),
        ("POST", "/v1/acts", {"json": {"act": "requeue", "jobs": [{"queue": "mail", "id": "dead"}]}}),
        ("GET", "/?sequence=2", {}),
        ("GET", "/plan?verb=cancel", {}),
    ]  # fmt: skip
    return found


def _pages() -> list[str]:
    return [page.path.format_map(WORDS) for page in PAGES]


async def test_nothing_waits_long_for_a_server_that_is_frozen(
    server: EmbeddedServer, ledger: Ledger, http: httpx.AsyncClient, record: Recorder
) -> None:
    """Row 40a: SIGSTOP of the server, then every endpoint, page and form once, all at the same time."""
    await _fill(ledger, http)
    requests, events = _requests(), (await ledger.log.head()).last_sequence
    assert server.pid is not None
    # What a machine with much to do adds: as long as all pages take at once, of which none waits for anything.
    shown = await asyncio.gather(*(_asked(http, "GET", path) for path in _pages()))
    within_s = ANSWERED_WITHIN_S + max(took_s for _, took_s, _, _ in shown)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(_asked(http, method, path, **given)) for method, path, given in requests
            ]
            webhook = group.create_task(_delivered(http, "d2"))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    answers = [each.result() for each in asked]
    slow = [
        f"{took_s:.1f} s {what}: {status} {text[:200]}"
        for what, took_s, status, text in answers
        if took_s > within_s
    ]
    assert not slow, "\n".join(slow)
    wrong = [f"{what}: {status} {text[:300]}" for what, _, status, text in answers if status == 500]
    assert not wrong, "\n".join(wrong)
    assert webhook.result().json()["code"] == "LEDGER_UNREACHABLE"
    refused = sum(status == 503 for _, _, status, _ in answers)
    assert refused > len(answers) / 2, "the server was frozen"
    record(
        "40a",
        "server frozen, then every address of a gateway asked at once",
        faults=f"{len(answers)} requests, {refused} answered 503, each within {max(took_s for _, took_s, _, _ in answers):.0f} s",
        jobs=2,
        events=events,
        now=time.monotonic(),
    )


async def test_the_last_line_of_an_upload_waits_no_longer_than_its_first_one(
    server: EmbeddedServer, ledger: Ledger, http: httpx.AsyncClient
) -> None:
    """Its append was made later, and had a time of its own; another one began when the connection was lost: 16 s in all."""
    await _fill(ledger, http)
    line, headers = b'{"task": "send", "input": {"to": "ann"}}\n', {"content-type": NDJSON}

    async def lines() -> AsyncIterator[bytes]:
        yield line
        await asyncio.sleep(1.5)  # the task is looked up again after 2 s
        yield line

    known = await http.post("/v1/jobs/bulk", content=line, headers=headers)
    assert known.status_code == 202
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        upload = await _asked(http, "POST", "/v1/jobs/bulk", content=lines(), headers=headers)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    _, took_s, status, text = upload
    assert (status, json.loads(text)["code"]) == (503, "LEDGER_UNREACHABLE")
    assert took_s < SILENT_S_MAX + 1
