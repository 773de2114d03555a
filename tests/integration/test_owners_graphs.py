"""Stored graphs whose runs have an owner: the graph names it, each run gives the values, and all of these are sealed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_owners import Connect, found_in, master_file
from tests.support.limits import LIMIT_S
from tests.support.working import ended, working

from jobledger.admin.erasure import keys_of
from jobledger.ledger import (
    ErasedError,
    Graph,
    GraphRun,
    InvalidInputError,
    JobHandle,
    JobState,
    Limit,
    OwnerErasingError,
    RefusedError,
    task,
)
from jobledger.ledger.enqueuer import Enqueuer
from jobledger.ledger.graphs.graph_run import run_stored_graph
from jobledger.ledger.graphs.named import told
from jobledger.ledger.model.forms import FORM_FIRST
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio
WORD = f"Canary-Ada-{secrets.token_hex(4)}"


@task(owner="person:{person}")
async def greet(person: int, text: str, greeting: str = "hello") -> str:
    return f"{greeting} {text}"


@task
async def measure(text: str) -> int:
    return len(text)


@task(owner="person:{person}", limits=(Limit("mail", key="greeting", slots=1),))
async def limited(person: int, greeting: str) -> None:
    return None


@task(owner="person:{who}")
async def named(who: str, text: str) -> None:
    return None


def letters() -> Graph:
    graph = Graph("letters")
    person, text = Graph.input("/person"), Graph.input("/text")
    graph.add(measure, graph.add(greet, person, text, greeting="dear"))
    return graph


async def keys(*jobs: JobHandle[Any]) -> list[str]:
    return [(await each.snapshot()).order.key for each in jobs]


async def test_a_run_has_the_owner_that_its_nodes_name_and_shows_nothing(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        stored = (await ledger.graphs.put(letters())).state
        assert stored.spec is not None
        assert [node.owner for node in stored.spec.nodes] == ["person:{person}", ""]
        given = {"person": 17, "text": WORD}
        run = await ledger.graphs.run("letters", given, id="g")
        again = await ledger.graphs.run("letters", given, id="g", owner="person:17")
        assert (run.created, again.created) == (True, False)
        large = await ledger.graphs.run("letters", {"person": 18, "text": WORD * 6_000})
        daily = await ledger.schedules.add("daily", GraphRun("letters", given), on_demand=True)
        assert daily.definition.order.key == "person:17/1"
        ticked = await ledger.job(await ledger.schedules.trigger("daily"))
        async with working(ledger, greet, measure):
            for each, text in ((run, WORD), (large, WORD * 6_000), (ticked, WORD)):
                assert (await each.result(timeout_s=LIMIT_S))["measure"] == len(f"dear {text}")
        nodes = [await ledger.job(f"g-2-{item}-of-jobledger") for item in (0, 1)]
        assert await keys(run, large, ticked, *nodes) == [
            "person:17/1",
            "person:18/1",
            "person:17/1",
            "person:17/1",
            "person:17/1",
        ]
        assert found_in(nats_server.directory, WORD) == {}
        await keys_of(ledger).destroy("person:17", 1, ledger.clock.now())
        with pytest.raises(ErasedError):
            await run.result()
        await keys_of(ledger).close("person:17", 1)
        with pytest.raises(OwnerErasingError):
            await ledger.graphs.run("letters", given)


async def test_a_graph_is_told_with_its_owners_and_stored_again_as_it_was(
    connected: Connect, tmp_path: Path
) -> None:
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        stored = (await ledger.graphs.put(letters())).state
        assert stored.spec is not None
        async with working(ledger, greet, measure), asyncio.timeout(LIMIT_S):
            while None in [await ledger.find_task(each.name) for each in (greet, measure)]:
                await asyncio.sleep(0.01)
        assert not (await ledger.graphs.put(told(stored.spec))).changed
        ledger.form = FORM_FIRST
        with pytest.raises(RefusedError, match=r"jobledger upgrade finish"):
            await ledger.graphs.put(one_letter("other"))


def one_letter(name: str, **given: Any) -> Graph:
    graph = Graph(name)
    graph.add(greet, **{"person": Graph.input("/person"), "text": Graph.input("/text"), **given})
    return graph


def by_result() -> Graph:
    graph = Graph("g")
    graph.add(greet, graph.add(measure, "x"), Graph.input("/text"))
    return graph


def one_node(kind: Any, *args: Any, **given: Any) -> Graph:
    graph = Graph("g")
    graph.add(kind, *args, **given)
    return graph


TEXT = Graph.input("/text")
REFUSED: dict[str, tuple[Callable[[], Graph], str]] = {
    "its own person": (
        lambda: one_letter("g", person=17, text=WORD),
        r"person:17, and a stored graph .* take person, text from",
    ),
    "a default": (
        lambda: one_node(greet.options(owner="team:a"), 1, Graph.input("/text", default=WORD)),
        r"owner team:a, .* take person, text from",
    ),
    "a key of a limit": (
        lambda: one_node(limited, Graph.input("/person"), greeting=WORD),
        r"limit mail .* sealed for person:\{person\}",
    ),
    "a result": (by_result, "is the result of another node here"),
    "braces in a value": (lambda: one_node(named, "{text}", TEXT), "owner must be kind:id"),
}


@pytest.mark.parametrize("which", REFUSED)
async def test_what_a_graph_would_keep_in_the_clear_is_refused(
    connected: Connect, tmp_path: Path, which: str
) -> None:
    make, said = REFUSED[which]
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        with pytest.raises(InvalidInputError, match=said):
            await ledger.graphs.put(make())
        assert (await ledger.log.head()).last_sequence == 0


async def test_a_run_whose_nodes_have_several_owners_is_refused(connected: Connect, tmp_path: Path) -> None:
    two = Graph("two")
    for each in ("/a", "/b"):
        two.add(greet, Graph.input(each), Graph.input("/text"))
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        await ledger.graphs.put(two)
        with pytest.raises(InvalidInputError, match="has the owner person:2, and its run has person:1"):
            await ledger.graphs.run("two", {"a": 1, "b": 2, "text": WORD})
        with pytest.raises(InvalidInputError, match="has the owner person:1, and its run has person:7"):
            await ledger.graphs.run("two", {"a": 1, "b": 1, "text": WORD}, owner="person:7")
        with pytest.raises(InvalidInputError, match="the key of the owner, must be"):
            await ledger.graphs.run("two", {"a": "no id", "b": "no id", "text": WORD})
        run = await ledger.graphs.run("two", {"a": 1, "b": 1, "text": WORD})
        assert await keys(run) == ["person:1/1"]


async def test_a_run_that_was_begun_without_the_owner_of_its_nodes_ends_at_once(
    connected: Connect, tmp_path: Path
) -> None:
    """As a program begins it that knows of no owners, or saw an earlier version."""
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        await ledger.graphs.put(letters())
        enqueuer = Enqueuer(ledger, config=ledger.config, clock=ledger.clock, tracing=None)
        run = await enqueuer.one(run_stored_graph, graph="letters", input={"person": 17, "text": "x"})
        async with working(ledger, greet, measure):
            job = await ended(run)
        assert (job.state, job.error is not None and job.error.type) == (
            JobState.DEAD_LETTERED,
            "InvalidInputError",
        )
        assert job.error is not None
        assert "version 1 has the owner person:17, and its run has none" in job.error.message


async def test_a_rule_begins_a_run_with_the_owner_of_its_nodes(
    connected: Connect, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    sources = {"person": "/person", "text": "/text"}
    rules = tuple(
        RouteRule(name=name, graph="letters", input=sources, when={"at": "/is", "is": name}, owner=owner)
        for name, owner in (("own", None), ("other", "person:7"))
    )
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        await ledger.graphs.put(letters())
        await ledger.routes.set("crm", RouteDefinition(scheme="internal", keep_bodies_days=0, rules=rules))
        runs: list[JobHandle[Any]] = []
        for given in (
            {"is": "own", "person": 17},
            {"is": "other", "person": 17},
            {"is": "own", "person": "no id"},
        ):
            made = await ledger.emit("crm", {**given, "text": WORD})
            runs.append(await ledger.job(made.matched[0].job))
        assert await keys(*runs) == ["person:17/1", "person:7/1", "ledger:default/1"]
        assert found_in(nats_server.directory, WORD) == {}
        async with working(ledger, greet, measure):
            assert (await runs[0].result(timeout_s=LIMIT_S))["measure"] == len(f"dear {WORD}")
            assert [(await ended(each)).state for each in runs[1:]] == [JobState.DEAD_LETTERED] * 2


async def test_a_schedule_of_a_graph_made_by_code_has_the_owner_that_it_is_given(
    connected: Connect, tmp_path: Path
) -> None:
    graph = Graph("once")
    graph.add(measure, graph.add(greet, 17, WORD))
    async with connected(master_key=master_file(tmp_path, "m1")) as ledger:
        with pytest.raises(InvalidInputError, match="begin it with that owner"):
            await ledger.schedules.add("once", graph, on_demand=True)
        await ledger.schedules.add("once", graph, on_demand=True, owner="person:17")
        run = await ledger.job(await ledger.schedules.trigger("once"))
        async with working(ledger, greet, measure):
            await run.result(timeout_s=LIMIT_S)
        assert await keys(run) == ["person:17/1"]
        with pytest.raises(InvalidInputError, match="give it the owner, as task"):
            await ledger.schedules.add("task", measure, input={"text": "x"}, on_demand=True, owner="a:b")
