"""What rules of routes make: jobs with the whole order, runs of stored graphs; and what is refused when a route is set."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import CommandLine
from tests.support.tables import each_row
from tests.support.working import LIMIT_S, working

from jobledger.audit.verify import verify
from jobledger.ledger import Graph, GraphNotFoundError, InvalidInputError, Ledger, task
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.nats.task_book import write_tasks

pytestmark = pytest.mark.anyio


@task(queue="mail")
async def greet(name: str, least: int = 0) -> str:
    return f"hello {name}"


@task(queue="mail")
async def keep(payload: dict[str, Any]) -> int:
    return len(payload)


def internal(**rule: Any) -> RouteDefinition:
    return RouteDefinition(scheme="internal", rules=(RouteRule(name="r", **rule),))


async def announce(ledger: Ledger) -> None:
    entries = [entry_of(each, worker="w", at=datetime(2026, 1, 1, tzinfo=UTC)) for each in (greet, keep)]
    await write_tasks(ledger.inbox, ledger.names, entries, replicas=1)


async def test_the_whole_body_is_a_parameter_too(ledger: Ledger) -> None:
    await announce(ledger)
    await ledger.routes.set("all", internal(task="keep", input={"payload": "/"}))
    async with working(ledger, greet, keep):
        made = await ledger.emit("all", {"a": 1, "b": 2})
        job = await ledger.job(made.matched[0].job)
        assert await job.result(timeout_s=LIMIT_S) == 2
    assert (await verify(ledger.log)).violations == ()


@each_row(
    "given, sentence",
    [
        ({"nam": "/name"}, "rule r: task greet (name, least) has no argument 'nam'"),
        ({"least": 1}, "rule r: task greet (name, least) needs the argument 'name'"),
        ({"name": "/name", "least": "many"}, "rule r: task greet, argument least: Expected `int`, got `str`"),
        ({"*": "/", "least": {"value": []}}, "argument least: Expected `int`, got `array`"),
    ],
)
def test_a_mapping_that_its_task_can_never_take_is_refused_when_it_is_set(
    cli: CommandLine, given: dict[str, Any], sentence: str
) -> None:
    async def refused(ledger: Ledger) -> str:
        await announce(ledger)
        with pytest.raises(InvalidInputError) as raised:
            await ledger.routes.set("x", internal(task="greet", input=given))
        assert await ledger.routes.find("x") is None
        for fine in ({"*": "/"}, {"name": "/name"}, {"name": "ann", "least": 3}):
            await ledger.routes.set("fine", internal(task="greet", input=fine))
        return str(raised.value)

    assert sentence in cli.with_ledger(refused)


async def test_a_rule_gives_its_job_the_whole_order(ledger: Ledger) -> None:
    rule = {
        "task": "greet",
        "queue": "mail",
        "input": {"name": "/name"},
        "id": "/order",
        "tenant": "/account",
        "run_at": "/at",
        "metadata": {"region": "/region"},
        "limits": {"crm": "/account"},
    }
    await ledger.routes.set("orders", internal(**rule))
    body = {"name": "ann", "order": 77, "account": "acme", "at": "2100-01-01T00:00:00Z", "region": "eu"}
    made = await ledger.emit("orders", body)
    assert made.matched[0].job == "77"
    job = await (await ledger.job("77")).snapshot()
    order = job.order
    assert (order.tenant, order.metadata, order.limits) == ("acme", {"region": "eu"}, ("crm:acme",))
    assert job.due_at == datetime(2100, 1, 1, tzinfo=UTC)
    again = await ledger.emit("orders", {**body, "name": "other"})
    assert [each.job for each in again.matched] == ["77"]
    assert (await (await ledger.job("77")).snapshot()).last_sequence == job.last_sequence
    assert (await verify(ledger.log)).violations == ()


@task(queue="mail", id="letter-{name}")
async def letter(name: str) -> str:
    return name


async def test_a_rule_names_its_job_as_the_task_declares_unless_it_says_the_id(ledger: Ledger) -> None:
    entries = [entry_of(letter, worker="w", at=datetime(2026, 1, 1, tzinfo=UTC))]
    await write_tasks(ledger.inbox, ledger.names, entries, replicas=1)
    for route, more in (("plain", {}), ("own", {"id": "/order"})):
        await ledger.routes.set(route, internal(task="letter", input={"name": "/name"}, **more))
    made = [await ledger.emit(route, {"name": "ann", "order": "o-7"}) for route in ("plain", "own")]
    assert [each.matched[0].job for each in made] == ["letter-ann", "o-7"]
    assert (await verify(ledger.log)).violations == ()


async def test_two_rules_that_give_one_id_make_one_job(ledger: Ledger) -> None:
    rules = tuple(RouteRule(name=name, task="greet", queue="mail", id="/order") for name in ("a", "b"))
    await ledger.routes.set("orders", RouteDefinition(scheme="internal", rules=rules))
    async with asyncio.timeout(LIMIT_S):
        made = await ledger.emit("orders", {"order": "o-1"})
    assert [each.job for each in made.matched] == ["o-1", "o-1"]
    assert (await verify(ledger.log)).violations == ()


async def test_a_rule_begins_runs_of_a_stored_graph_in_its_newest_version(ledger: Ledger) -> None:
    with pytest.raises(GraphNotFoundError):
        await ledger.routes.set("crm", internal(graph="letters"))
    graph = Graph("letters")
    graph.add(greet.options(name="letter"), Graph.input("/name"))
    await ledger.graphs.put(graph)
    rule = {"graph": "letters", "input": {"name": "/customer/name"}, "id": "/id", "tenant": "/account"}
    await ledger.routes.set("crm", internal(**rule))
    async with working(ledger, greet):
        delivered = {"customer": {"name": "bea"}, "id": "c-1", "account": "acme"}
        await ledger.emit("crm", delivered, id="d1")
        made = await ledger.emit("crm", delivered, id="d2")  # another delivery, and the same run
        assert (made.matched[0].queue, made.matched[0].job) == ("jobledger", "c-1")
        run = await ledger.job("c-1")
        assert await run.result(timeout_s=LIMIT_S) == {"letter": "hello bea"}
    assert (await run.snapshot()).order.tenant == "acme"
    assert (await verify(ledger.log)).violations == ()


def test_a_person_emits_from_the_command_line(cli: CommandLine, tmp_path: Path) -> None:
    where = cli.where
    assert cli.run("routes", "set", "orders", "--scheme", "internal", "--task", "greet", *where).code == 0
    emit = ("routes", "emit", "orders", "--data", '{"name": "ann"}', "--id", "d1")
    assert "delivery d1 made 1 job\n" in cli.run(*emit, *where).out
    assert "delivery d1 was there already, with 1 job\n" in cli.run(*emit, *where).out
    (tmp_path / "body.json").write_text(json.dumps({"name": "bob"}), encoding="utf-8")
    (said,) = cli.run(
        "routes", "emit", "orders", "--body", str(tmp_path / "body.json"), "--json", *where
    ).lines
    assert (said["repeated"], len(said["jobs"])) == (False, 1)
    for words, code, sentence in (
        (("emit", "orders"), 2, "needs --data or --body"),
        (("emit", "orders", "--data", "{"), 2, "JSON"),
        (("emit", "orders", "--data", "{}", "--body", "x"), 2, "give --data or --body, not both"),
        (("emit", "other", "--data", "{}"), 3, "there is no route 'other'"),
        (("set", "x", "--scheme", "internal", "--graph", "nothing"), 3, "there is no stored graph 'nothing'"),
        (("set", "x", "--scheme", "internal", "--task", "run_graph"), 2, "is one of the ledger's own"),
    ):
        found = cli.run("routes", *words, *where)
        assert (found.code, sentence in found.err) == (code, True), found
