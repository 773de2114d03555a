"""Limits and unique keys that somebody else's jobs hold: a client that is bound to queues or tasks takes none of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import ADMIN, Asker, Doorman, send, someone
from tests.support.working import LIMIT_S, working

from jobledger.admin.limits import set_limit
from jobledger.gateway.api.table import ENDPOINTS
from jobledger.gateway.gateway import Gateway
from jobledger.ledger import Ledger, Limit, Run, Unique, task, workflow
from jobledger.ledger.limits import definitions
from jobledger.ledger.model import named_chain
from jobledger.ledger.model.aggregate import View
from jobledger.ledger.model.errors import (
    AccessDeniedError,
    ConfigurationError,
    InputMismatchError,
    InvalidInputError,
)
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.model.limits.definition import LIMIT, Definition, Terms
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.named_chain import look
from jobledger.ledger.model.subjects import JobRef
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
    defined = (await look(asker.ledger.log, LIMIT, "tenant")).state
    assert defined is not None, "the code says it, whoever asks for the job"
    assert defined.source == "code"
    await asker.post("/v1/jobs", named, 202)  # nothing is foreign to who may do it everywhere


async def test_a_limit_is_named_by_the_jobs_that_its_definition_names_and_by_no_others(asker: Asker) -> None:
    await asker.announced(send, own)
    ledger = asker.ledger
    await asker.sees("PUT", "/v1/limits/report", 200, json={"slots": 1, "mode": "replace", "queues": ["ma*"]})
    held = await ledger.enqueue(send.options(queue="mail", id="secret-7", limits=("report",)))
    named = {"task": "send", "limits": ["report"], "queue": "bills"}
    node, lines = {"name": "a", **named}, json.dumps({**named, "input": {}}) + "\n"
    rule = {"name": "r", "task": "send", "queue": "bills", "limits": {"report": ""}}
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/jobs", {"json": named}),
        ("POST", "/v1/jobs/bulk", {"content": lines, "headers": {"content-type": "application/x-ndjson"}}),
        ("POST", "/v1/graphs", {"json": {"name": "g", "nodes": [node]}}),
        ("PUT", "/v1/graphs/g", {"json": {"name": "g", "nodes": [node]}}),
        ("PUT", "/v1/schedules/s", {"json": {**named, "every_s": 60}}),
        ("PUT", "/v1/batches/b", {"json": {"task": "send", "on_end": named}}),
        ("PUT", "/v1/routes/r", {"json": {"scheme": "internal", "rules": [rule]}}),
    ]
    before = (await ledger.log.head()).last_sequence
    for who in (ADMIN, someone("queue", "view", "manage", queues=("bills",))):
        for method, path, request in asked:
            if who.is_everywhere or "routes" not in path:
                told = (await asker.sees(method, path, "JOB_ACCESS_DENIED", who=who, **request)).json()[
                    "detail"
                ]
                assert "leave out limit report" in told
                assert not [word for word in ("mail", "secret-7", "ma*") if word in told]
    assert (await ledger.log.head()).last_sequence == before
    with pytest.raises(AccessDeniedError, match="may not name limit report"):
        await ledger.enqueue(send.options(queue="bills", limits=("report:acme",)))
    with pytest.raises(AccessDeniedError, match="may not name limit report"):
        await ledger.enqueue_many(send.options(queue="bills", limits=("report",)), [{}])
    assert (await held.snapshot()).state == "held"
    await asker.post(
        "/v1/jobs", {**named, "queue": "mail"}, 202, who=BOUND
    )  # whoever is bound to those may, too


async def test_who_may_name_a_limit_is_said_again_and_taken_back(asker: Asker) -> None:
    await asker.announced(send)
    named = {"task": "send", "limits": ["report"]}

    async def said(refused: str | int, **who: list[str]) -> None:
        await asker.sees("PUT", "/v1/limits/report", 200, json={"slots": 1, **who})
        await asker.post("/v1/jobs", named, refused, who=BOUND)

    await said("JOB_ACCESS_DENIED")
    await said(202, queues=["*"])
    await said("JOB_ACCESS_DENIED", tasks=["other"])
    await said(202, tasks=["se*"])
    await asker.sees("PUT", "/v1/limits/report:acme", 200, json={"slots": 3})  # a key leaves it as it is
    shown = await asker.get("/v1/limits/report")
    assert (shown["terms"]["queues"], shown["terms"]["tasks"]) == (["*"], ["se*"])
    (first, _) = (await asker.get("/v1/limits"))["items"]
    assert (first["queues"], first["tasks"]) == (["*"], ["se*"])
    await said("JOB_ACCESS_DENIED", queues=[], tasks=[])
    for limit, who in (
        ("report:acme", {"queues": ["mail"]}),
        ("queue", {"tasks": ["send"]}),
        ("x", {"queues": ["a b"]}),
    ):
        await asker.sees("PUT", f"/v1/limits/{limit}", "JOB_INVALID_INPUT", json={"slots": 1, **who})


async def test_code_says_who_may_name_its_limit(ledger: Ledger) -> None:
    press = Limit("press", slots=1, queues=["print-*"], tasks=("own",))  # type: ignore[arg-type]

    @task(queue="print-a", limits=(press,))
    async def own() -> None:
        """Have a limit that is for it alone."""

    await ledger.enqueue(own)
    state = (await look(ledger.log, LIMIT, "press")).state
    assert state is not None
    assert state.common == press.terms == Terms(slots=1, queues=("print-*",), tasks=("own",))
    for refused in (own.options(queue="mail"), send.options(queue="print-a", limits=("press",))):
        with pytest.raises(AccessDeniedError, match="may not name limit press"):
            await ledger.enqueue(refused)
    wrongs: tuple[dict[str, Any], ...] = ({"queues": "mail"}, {"tasks": ("a b",)}, {"queues": (7,)})
    for wrong in wrongs:
        with pytest.raises(ConfigurationError, match="limit press: "):
            Limit("press", slots=1, **wrong)
    with pytest.raises(ConfigurationError, match="leave queues= and tasks= out"):
        Limit("queue", slots=1, queues=("mail",))
    with pytest.raises(ConfigurationError, match="give slots or rate as well"):
        Limit("press", queues=("mail",))


async def test_a_run_asks_for_no_child_with_a_limit_of_others(ledger: Ledger) -> None:
    await set_limit(ledger, "report", {"slots": 1, "queues": ("bills",)}, by="ann")

    @workflow(queue="runs", max_attempts=1)
    async def asks(run: Run) -> None:
        await run.map(send.options(queue="mail", limits=("report",)), ["ann"])

    run = await ledger.enqueue(asks)
    async with working(ledger, asks, queues=("runs",)):
        ended = await run.wait(timeout_s=LIMIT_S)
    assert ended.error is not None
    assert (ended.state, ended.error.type) == ("dead_lettered", "AccessDeniedError")


async def test_a_rule_whose_limit_is_for_others_by_now_makes_its_job_without(ledger: Ledger) -> None:
    await set_limit(ledger, "report", {"slots": 1}, by="ann")
    rule = RouteRule(name="r", task="send", queue="mail", limits={"report": ""})
    await ledger.routes.set("shop", RouteDefinition(scheme="internal", rules=(rule,)))
    limits: list[tuple[str, ...]] = []
    for who in ((), ("bills",)):
        await set_limit(ledger, "report", {"queues": who}, by="ann")
        (made,) = (await ledger.emit("shop", {})).matched
        limits.append((await ledger.handle_of(JobRef(queue="mail", job_id=made.job)).snapshot()).order.limits)
    assert limits == [("report",), ()]


async def test_jobs_that_name_limits_ask_for_them_once_in_a_while(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def counted(log: Log, of: Any, limit: str) -> View[Definition]:
        asked.append(limit)
        return await look(log, of, limit)

    for module in (definitions, named_chain):  # for the right to name one, and to define one
        monkeypatch.setattr(module, "look", counted)
    for _ in range(5):
        await ledger.enqueue(own.options(limits=("report",), tenant="acme"))
    await asyncio.gather(
        *(ledger.enqueue(own.options(limits=("report:a",), tenant="acme")) for _ in range(20))
    )
    await ledger.enqueue_many(send.options(limits=("report",)), [{} for _ in range(20)])
    assert sorted(asked) == ["printer", "report", "tenant"]


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


async def test_a_job_of_another_task_is_not_taken_for_the_one_of_a_period(asker: Asker) -> None:
    """Its id follows from the task, the arguments and the time, so anybody can work it out."""
    monthly = Unique(args=("to",), for_s=30 * 86_400)

    @task(name="report", queue="mail", unique=monthly)
    async def report(to: str) -> None:
        """Be made once a month."""

    await asker.announced(send, report)
    wanted = (await asker.ledger.enqueue(report.options(queue="elsewhere"), to="ann")).id
    taken = {"task": "send", "queue": "mail", "id": wanted}
    await asker.post("/v1/jobs", taken, 202, who=BOUND)
    lines = '{"task": "report", "input": {"to": "ann"}}\n'
    head = {"content-type": "application/x-ndjson"}
    for door in ("/v1/jobs", "/v1/jobs/bulk"):
        body: dict[str, Any] = {"json": {"task": "report", "input": {"to": "ann"}}}
        if "bulk" in door:
            body = {"content": lines, "headers": head}
        told = await asker.sees("POST", door, "INPUT_MISMATCH", **body)
        assert "exists for another task" in told.json()["detail"]
    for call in (
        lambda: asker.ledger.enqueue(report, to="ann"),
        lambda: asker.ledger.enqueue_many(report, [{"to": "ann"}]),
    ):
        with pytest.raises(InputMismatchError, match="no job of task report is made for this key"):
            await call()


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
