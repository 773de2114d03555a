"""Every endpoint of the document is called, and each answer that it names is given: by the cases beside this module."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.gateway.cases import (
    archived,
    batches,
    bulk_acts,
    enqueueing,
    events,
    fleet,
    graphs,
    job_acts,
    jobs,
    keys,
    limits,
    listing,
    process,
    queues,
    routes,
    running,
    runs,
    schedules,
    stored_graphs,
    webhooks,
)
from tests.support.gateway import ADMIN, Asker, Doorman, Failing, refusing, send, someone
from tests.support.gateways import gateway_of
from tests.support.limits import LIMIT_S

from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.http.endpoint import JSON, NDJSON, Endpoint
from jobledger.gateway.http.openapi import openapi
from jobledger.ledger import TaskRegistry, connect
from jobledger.ledger.model.errors import (
    CorruptLedgerError,
    LedgerFullError,
    LedgerThrottledError,
    RefusedError,
    ServerUnreachableError,
    WrongSequenceError,
)
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections.errors import ProjectionTimeoutError

pytestmark = pytest.mark.anyio

Case = Callable[[Asker], Awaitable[None]]
CASES: Final[tuple[Case, ...]] = (
    *jobs.CASES,
    *enqueueing.CASES,
    *job_acts.CASES,
    *listing.CASES,
    *bulk_acts.CASES,
    *queues.CASES,
    *schedules.CASES,
    *limits.CASES,
    *runs.CASES,
    *fleet.CASES,
    *running.CASES,
    *process.CASES,
    *events.CASES,
    *keys.CASES,
    *webhooks.CASES,
    *routes.CASES,
    # They leave runs behind that wait for any worker, which others count.
    *graphs.CASES,
    *stored_graphs.CASES,
    *batches.CASES,
)
#: What an address has in its braces, and what a body holds: enough to come as far as the ledger.
WORDS: Final = {
    "queue": "mail",
    "id": "job-1",
    "limit": "api",
    "name": "nightly",
    "task": "send",
    "key": "k",
    "route": "github",
    "delivery": "d1",
    "owner": "person:17",
}
BODIES: Final[dict[str, Any]] = {
    "POST /v1/jobs": {"task": "send"},
    "POST /v1/graphs": {"name": "g", "nodes": [{"name": "a", "task": "send"}]},
    "PUT /v1/graphs/{name}": {"nodes": [{"name": "a", "task": "send"}]},
    "PUT /v1/batches/{name}": {"task": "send"},
    "POST /v1/batches/{name}/close": {"count": 1},
    "POST /v1/acts": {"act": "cancel", "filter": {}},
    "POST /v1/jobs/{queue}/{id}/reschedule": {"delay_s": 60},
    "POST /v1/jobs/{queue}/{id}/note": {"text": "a remark"},
    "POST /v1/jobs/{queue}/{id}/rerun": {"from": "a"},
    "PUT /v1/limits/{limit}": {"slots": 1},
    "POST /v1/keys": {"name": "ci", "role": "viewer"},
    "PUT /v1/routes/{route}": routes.GITHUB,
    "POST /v1/routes/{route}/test": {"delivery": "d1"},
    "POST /v1/routes/{route}/emit": {"data": {}},
    "POST /v1/limits/simulate": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z", "limits": {}},
    "PUT /v1/schedules/{name}": schedules.NIGHTLY,
    "PUT /v1/webhooks/{name}": webhooks.SHOP,
    "POST /v1/webhooks/{name}/rotate": {"secret": "env:NEW"},
    "POST /v1/webhooks/{name}/redeliver": {"since": "2026-01-01T00:00:00Z"},
    "PUT /v1/watches/{name}": webhooks.DEEP,
    "PUT /v1/retention": {"keep_s": 3600.0},
    "POST /v1/owners/{owner}/erase": {"reason": "asked"},
    "POST /v1/schedules/{name}/backfill": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z"},
}
#: What handlers ask: each of them fails where a test says so.
PARTS: Final = ("ledger", "rows", "projection", "feed", "health")
#: What may happen to any request that comes as far as the ledger, and the error that stands for it.
ERRORS: Final[dict[str, Callable[[], Exception]]] = {
    "LEDGER_UNREACHABLE": lambda: ServerUnreachableError("as the test says"),
    "BUSY": lambda: refusing("BUSY"),
    "PROJECTION_BEHIND": lambda: ProjectionTimeoutError("as the test says"),
    "REFUSED": lambda: RefusedError("as the test says"),
    "LEDGER_FULL": lambda: LedgerFullError("as the test says"),
    "LEDGER_THROTTLED": lambda: LedgerThrottledError("as the test says"),
    "LEDGER_BUSY": lambda: WrongSequenceError("chain", 1),
    "LEDGER_DAMAGED": lambda: CorruptLedgerError("as the test says"),
    "INTERNAL": lambda: RuntimeError("a secret"),
}


@contextlib.asynccontextmanager
async def _asking(server: EmbeddedServer, folder: Path) -> AsyncGenerator[Asker, None]:
    """Give a gateway on a ledger of its own."""
    environment = f"t_{secrets.token_hex(6)}"
    async with (
        connect(server.url, environment=environment, ledger_bytes_max=64 << 20) as ledger,
        gateway_of(ledger, folder) as gateway,
    ):
        gateway.access = door = Doorman()
        yield Asker(gateway, ENDPOINTS, door, folder)


def _declared(endpoints: Iterable[Endpoint]) -> set[tuple[str, str, str]]:
    """Return every answer that the document names."""
    found: set[tuple[str, str, str]] = set()
    for path, methods in openapi(endpoints)["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                codes = (
                    answer["description"].split(", ") if "problem" in str(answer.get("content")) else [status]
                )
                found |= {(method.upper(), path, code) for code in codes}
    return found


async def _generic(asker: Asker, endpoint: Endpoint) -> None:
    """Call an endpoint so that each answer comes that any endpoint may give."""
    path = endpoint.path.format_map(WORDS)
    named = f"{endpoint.method} {endpoint.path}"
    body = BODIES.get(named, {}) if endpoint.body is not None else None
    heads = {"accept": NDJSON, **({"content-type": endpoint.takes} if endpoint.takes != JSON else {})}
    request: dict[str, Any] = {"headers": heads, **({} if body is None else {"json": body})}
    method = endpoint.method
    codes = {code for _, _, code in _declared([endpoint])}
    await asker.sees(method, f"{path}?colour=red", "BAD_REQUEST", **request)
    if "NO_PAST" in codes:
        await asker.sees(method, f"{path}?sequence=1", "NO_PAST", **request)
    for code in codes & {"UNAUTHENTICATED", "RATE_LIMITED", "SHARE_USED", "BUSY"}:
        await asker.sees(method, path, code, who=refusing(code), **request)
    if endpoint.permission is not None and not endpoint.public:
        await asker.sees(method, path, "JOB_ACCESS_DENIED", who=someone(), **request)
    gateway = asker.gateway
    kept = {name: getattr(gateway, name) for name in PARTS}
    gateway.tasks = TaskRegistry([send])
    for code in codes & ERRORS.keys():
        for name in PARTS:
            setattr(gateway, name, Failing(ERRORS[code]()))
        try:
            # What tells only who asks fails where that is found out.
            tells_who = endpoint.permission is None and not endpoint.public
            who = ERRORS[code]() if tells_who else ADMIN
            answer = await asker.sees(method, path, code, who=who, **request)
        finally:
            for name, part in kept.items():
                setattr(gateway, name, part)
        assert "secret" not in answer.text
    gateway.tasks = None


async def test_every_endpoint_is_called_with_each_of_its_codes(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with _asking(nats_server, tmp_path / "one") as asker:
        for endpoint in ENDPOINTS:
            await _generic(asker, endpoint)
        for case in CASES:
            async with asyncio.timeout(LIMIT_S):
                await case(asker)
    seen = asker.seen
    async with _asking(nats_server, tmp_path / "other") as asker:
        for case in archived.CASES:
            await case(asker)
    seen |= asker.seen
    declared = _declared(ENDPOINTS)
    assert declared - seen == set(), "are in the document and were never seen"
    assert seen - declared == set(), "are not in the document"
