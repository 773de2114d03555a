"""Every endpoint of the document is called, and each answer that it names is given: by the cases beside this module."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.gateway.cases import archived, events, job_acts, jobs
from tests.support.gateway import ADMIN, Asker, Doorman, Failing, refusing, send, someone
from tests.support.gateways import gateway_of

from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.http.endpoint import NDJSON, Endpoint
from jobledger.gateway.http.openapi import openapi
from jobledger.ledger import TaskRegistry, connect
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    LedgerFullError,
    ServerUnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

Case = Callable[[Asker], Awaitable[None]]
CASES: Final[tuple[Case, ...]] = (*jobs.CASES, *job_acts.CASES, *events.CASES, *archived.CASES)
#: What an address has in its braces, and what a body holds: enough to come as far as the ledger.
WORDS: Final = {"queue": "mail", "id": "job-1"}
BODIES: Final[dict[str, Any]] = {"reschedule": {"delay_s": 60}}
#: What may happen to any request that comes as far as the ledger, and the error that stands for it.
ERRORS: Final[dict[str, Callable[[], Exception]]] = {
    "LEDGER_UNREACHABLE": lambda: ServerUnreachableError("as the test says"),
    "BUSY": lambda: refusing("BUSY"),
    "LEDGER_FULL": lambda: LedgerFullError("as the test says"),
    "LEDGER_BUSY": lambda: WrongSequenceError("chain", 1),
    "LEDGER_DAMAGED": lambda: CorruptLedgerError("as the test says"),
    "INTERNAL": lambda: RuntimeError("a secret"),
}


@pytest.fixture
async def asker(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Asker]:
    environment = f"t_{secrets.token_hex(6)}"
    async with (
        connect(nats_server.url, environment=environment, ledger_bytes_max=64 << 20) as ledger,
        gateway_of(ledger, tmp_path) as gateway,
    ):
        gateway.access = door = Doorman()
        yield Asker(gateway, ENDPOINTS, door, tmp_path)


def _declared(endpoints: Iterable[Endpoint]) -> set[tuple[str, str, str]]:
    """Return every answer that the document names."""
    found: set[tuple[str, str, str]] = set()
    for path, methods in openapi(endpoints)["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                codes = answer["description"].split(", ") if "problem" in str(answer["content"]) else [status]
                found |= {(method.upper(), path, code) for code in codes}
    return found


async def _generic(asker: Asker, endpoint: Endpoint) -> None:
    """Call an endpoint so that each answer comes that any endpoint may give."""
    path = endpoint.path.format_map(WORDS)
    body = BODIES.get(path.rpartition("/")[2], {}) if endpoint.body is not None else None
    request: dict[str, Any] = {"headers": {"accept": NDJSON}, **({} if body is None else {"json": body})}
    method = endpoint.method
    await asker.sees(method, f"{path}?colour=red", "BAD_REQUEST", **request)
    for code in ("UNAUTHENTICATED", "RATE_LIMITED"):
        await asker.sees(method, path, code, who=refusing(code), **request)
    await asker.sees(method, path, "JOB_ACCESS_DENIED", who=someone(), **request)
    gateway = asker.gateway
    kept = (gateway.ledger, gateway.rows, gateway.projection, gateway.feed)
    gateway.tasks = TaskRegistry([send])
    for code in {"INTERNAL", "LEDGER_UNREACHABLE", *endpoint.problems} & ERRORS.keys():
        failing: Any = Failing(ERRORS[code]())
        gateway.ledger = gateway.rows = gateway.projection = gateway.feed = failing
        try:
            answer = await asker.sees(method, path, code, who=ADMIN, **request)
        finally:
            gateway.ledger, gateway.rows, gateway.projection, gateway.feed = kept
        assert "secret" not in answer.text
    gateway.tasks = None


async def test_every_endpoint_is_called_with_each_of_its_codes(asker: Asker) -> None:
    for endpoint in ENDPOINTS:
        await _generic(asker, endpoint)
    for case in CASES:
        await case(asker)
    declared = _declared(ENDPOINTS)
    assert declared - asker.seen == set(), "are in the document and were never seen"
    known = {each for each in asker.seen if each[2] != "304"}
    assert known - declared == set(), "were seen and are not in the document"
