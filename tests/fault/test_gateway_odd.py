"""Odd values in each field of each body and each parameter of a gateway: none of them is its failure, or keeps it long."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.gateway.test_endpoints import BODIES, WORDS
from tests.support.figures import Recorder
from tests.support.gateway import Asker, Doorman, send
from tests.support.gateways import gateway_of
from tests.support.working import bury

from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.http.endpoint import NDJSON
from jobledger.gateway.pages.table import PAGES
from jobledger.ledger import connect
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(600)]

_TEXTS: Final = (
    "", "x" * 3_000, "\0", "é\u202e", "-1", "0", "9" * 30, str(2**31), str(2**63 - 1), str(2**63), "1e308", "nan", "true",
    "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01T00:00:00Z", "../..",
    "a.b", "a b", "*", ">", "[]", "{}", "%", "'", '"', "\\", "²", "۳", "input.a=1", "$[", "a[*]=1", "(((((", "* * * * *",
    "0 0 30 2 *", "file:/etc/passwd", "env:PATH", "jobledger-acts", "webhooks-out", "mail",
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    *_TEXTS, None, -1, 0, 2**31, 2**63, 2**64, 10**30, 1e308, -0.5, True, [], {}, [[]], [{}], {"a": {}}, ["x"] * 2_000,
)  # fmt: skip
#: A number that lists wait for, which no ledger has.
_WAITS: Final = {"min_sequence", "wait"}
_ANSWERED_WITHIN_S: Final = 30.0


@pytest.fixture
def durability() -> str:
    return "process"


def _fields(kind: type[Any] | None) -> list[str]:
    names: tuple[str, ...] = getattr(kind, "__struct_encode_fields__", ())
    return list(names)


def _requests() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for endpoint in ENDPOINTS:
        path, named = endpoint.path.format_map(WORDS), f"{endpoint.method} {endpoint.path}"
        for field in _fields(endpoint.body):
            for value in _VALUES:
                yield endpoint.method, path, {"json": {**BODIES.get(named, {}), field: value}}
        if endpoint.method == "GET" and endpoint.path != "/v1/run":
            for field in sorted({*_fields(endpoint.query)} - _WAITS):
                for text in _TEXTS:
                    yield "GET", path, {"params": {field: text}, "headers": {"accept": NDJSON}}
    for page in PAGES:
        for field in sorted({*_fields(page.query)} - _WAITS):
            for text in _TEXTS:
                yield "GET", page.path.format_map(WORDS), {"params": {field: text}}


async def test_no_odd_value_is_a_failure_of_the_gateway(
    server: EmbeddedServer, tmp_path: Path, record: Recorder
) -> None:
    """Row 40b: some 15,000 requests, each with one value that nobody expects there."""
    environment = f"t_{secrets.token_hex(6)}"
    failed: list[str] = []
    count = 0
    async with (
        connect(server.url, environment=environment, ledger_bytes_max=256 << 20) as ledger,
        gateway_of(ledger, tmp_path) as gateway,
    ):
        gateway.access = door = Doorman()
        asker = Asker(gateway, ENDPOINTS, door, tmp_path)
        await asker.announced(send)
        await ledger.enqueue(send.options(id=WORDS["id"]))
        await bury(ledger, await ledger.enqueue(send.options(id="dead")))
        for path in (
            "limits/{limit}",
            "routes/{route}",
            "schedules/{name}",
            "webhooks/{name}",
            "watches/{name}",
        ):
            await asker.sees("PUT", f"/v1/{path.format_map(WORDS)}", 200, json=BODIES[f"PUT /v1/{path}"])
        for method, path, given in _requests():
            count += 1
            async with asyncio.timeout(_ANSWERED_WITHIN_S):
                answer = await asker.http.request(method, path, **given)
            if answer.status_code == 500 and "the gateway failed" in answer.text:
                failed.append(f"{method} {path} {str(given)[:200]}")
        events = (await ledger.log.head()).last_sequence
    assert not failed, "\n".join(failed)
    record(
        "40b",
        "odd values in each field and each parameter of each address of a gateway",
        faults=f"{count:,} requests, none answered as a failure of the gateway",
        jobs=2,
        events=events,
        now=asyncio.get_running_loop().time(),
    )
