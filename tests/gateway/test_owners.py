"""Limits and unique keys that somebody else's jobs hold: a client that is bound to queues or tasks takes none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import Asker, Doorman, send, someone

from jobledger.admin.limits import set_limit
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.parts import Gateway
from jobledger.ledger import Limit, Unique, task
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.unique.rule import OnConflict

pytestmark = pytest.mark.anyio

BOUND = someone("queue", "view", "manage", queues=("mail",))
OF_TASK = someone("queue", "view", "manage", tasks=("send", "own"))


@task(queue="mail", limits=("printer", Limit("tenant", slots=1, key="tenant")))
async def own(to: str = "ann") -> None:
    """Have limits by its code."""


@pytest.fixture
async def asker(gateway: Gateway, tmp_path: Path) -> Asker:
    gateway.access = door = Doorman()
    return Asker(gateway, ENDPOINTS, door, tmp_path)


@pytest.mark.parametrize("who", [BOUND, OF_TASK])
async def test_a_client_that_is_bound_names_no_limit_but_those_of_the_tasks_code(
    asker: Asker, who: Any
) -> None:
    await asker.announced(send, own)
    await set_limit(asker.ledger, "report", {"slots": 1, "mode": "replace"}, by="ann")
    before = (await asker.ledger.log.head()).last_sequence
    named = {"task": "send", "limits": ["report"]}
    node = {"name": "a", **named}
    lines = '{"task": "send", "input": {}, "limits": ["report"]}\n'
    head = {"content-type": "application/x-ndjson"}
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/jobs", {"json": named}),
        ("POST", "/v1/jobs/bulk", {"content": lines, "headers": head}),
        ("POST", "/v1/graphs", {"json": {"name": "g", "nodes": [node]}}),
        ("PUT", "/v1/graphs/g", {"json": {"name": "g", "nodes": [node]}}),
        ("PUT", "/v1/schedules/s", {"json": {**named, "every_s": 60}}),
        ("PUT", "/v1/batches/b", {"json": {"task": "send", "on_end": named}}),
    ]
    for method, path, request in asked:
        told = (await asker.sees(method, path, "JOB_ACCESS_DENIED", who=who, **request)).json()["detail"]
        assert "leave out limit report" in told
    assert (await asker.ledger.log.head()).last_sequence == before
    allowed = {"task": "own", "limits": ["printer"], "tenant": "acme"}
    made = await asker.post("/v1/jobs", allowed, 202, who=who)
    assert (await (await asker.ledger.job(made["id"])).snapshot()).order.limits == ("printer", "tenant:acme")
    await asker.post("/v1/jobs", named, 202)  # nothing is foreign to who may do it everywhere


@pytest.mark.parametrize(
    "limit", ["webhooks-out", "webhooks-out:shop", "queue:bills", "task:send", "schedule:s"]
)
async def test_nobody_names_a_limit_of_the_ledgers_own(asker: Asker, limit: str) -> None:
    await asker.announced(send)
    told = await asker.post("/v1/jobs", {"task": "send", "limits": [limit]}, "JOB_INVALID_INPUT")
    assert "has a name that the ledger itself uses" in told["detail"]
    with pytest.raises(InvalidInputError, match="the ledger itself uses"):
        await asker.ledger.enqueue(send.options(limits=(limit,)))


@pytest.mark.parametrize("how", ["return", "reject", "replace"])
async def test_a_unique_key_of_a_job_that_is_hidden_is_refused_and_tells_nothing_of_it(
    asker: Asker, how: OnConflict
) -> None:
    @task(name="greet", queue="mail", unique=Unique(args=("to",), on_conflict=how))
    async def greet(to: str) -> None:
        """Be the only one of its kind."""

    await asker.announced(greet)
    held = await asker.ledger.enqueue(greet.options(queue="vault", id="secret-7"), to="ann")
    body = {"task": "greet", "input": {"to": "ann"}}
    told = (await asker.post("/v1/jobs", body, "JOB_ACCESS_DENIED", who=BOUND))["detail"]
    assert "is not free for eve" in told
    assert not [word for word in ("vault", "secret-7", "superseded") if word in told]
    assert (await held.snapshot()).state == "queued"
    await asker.post("/v1/jobs", {**body, "input": {"to": "bob"}}, 202, who=BOUND)


async def test_a_debounced_job_that_is_hidden_is_not_put_off(asker: Asker) -> None:
    @task(name="index", queue="mail", unique=Unique(args=("to",)), debounce_s=60)
    async def index(to: str, cents: int = 1) -> None:
        """Wait for the last call."""

    await asker.announced(index)
    held = await asker.ledger.enqueue(index.options(queue="vault"), to="ann")
    before = await held.snapshot()
    body = {"task": "index", "input": {"to": "ann", "cents": 2}}
    await asker.post("/v1/jobs", body, "JOB_ACCESS_DENIED", who=BOUND)
    assert await held.snapshot() == before
