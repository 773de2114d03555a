"""Graphs that are stored under a name: their versions, runs of them with an input, and who begins these."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.projections import finish
from tests.support.working import LIMIT_S, ended, working

from jobledger.admin.run_graph import graph_of
from jobledger.admin.runs import run_tree
from jobledger.audit.verify import verify
from jobledger.ledger import (
    ChildFailedError,
    Graph,
    GraphNotFoundError,
    GraphRun,
    InvalidInputError,
    JobState,
    Ledger,
    Run,
    sync,
    task,
    workflow,
)
from jobledger.ledger.graphs.graph_run import Version
from jobledger.ledger.graphs.named import told
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.projections import Store

pytestmark = pytest.mark.anyio


@task(queue="mail")
async def greet(name: str, *, words: list[str] = []) -> str:  # noqa: B006 - as users write it
    return f"{' '.join(words) or 'hello'} {name}"


@task(queue="mail")
async def count(text: str, least: int = 0) -> int:
    if len(text) < least:
        message = f"{text!r} is too short"
        raise ValueError(message)
    return len(text)


ALL = (greet, count)


def onboarding(word: str = "hello") -> Graph:
    graph = Graph("onboarding")
    text = graph.add(greet.options(name="letter"), Graph.input("/customer/name"), words=[word])
    graph.add(count.options(name="length", max_attempts=1), text, least=Graph.input("/least", default=1))
    return graph


async def all_announced(ledger: Ledger) -> None:
    async with asyncio.timeout(LIMIT_S):
        for each in ALL:
            while await ledger.find_task(each.name) is None:
                await asyncio.sleep(0.01)


async def version_of(job: Any) -> tuple[str, int]:
    step = (await job.snapshot()).steps["version"]
    found = msgspec.json.decode(step.result, type=Version)
    return found.graph, found.version


async def test_a_stored_graph_runs_with_the_input_of_each_run_and_records_its_version(
    ledger: Ledger, tmp_path: Path
) -> None:
    first = await ledger.graphs.put(onboarding(), reason="new", by="ann")
    again = await ledger.graphs.put(onboarding())
    assert (first.changed, again.changed, first.state.version, first.state.by) == (True, False, 1, "ann")
    async with working(ledger, *ALL):
        one = await ledger.graphs.run("onboarding", {"customer": {"name": "bea"}}, id="o-1")
        twice = await ledger.graphs.run("onboarding", {"customer": {"name": "bea"}}, id="o-1")
        assert (one.created, twice.created, one.queue) == (True, False, BUILT_IN_QUEUE)
        assert await one.result(timeout_s=LIMIT_S) == {"letter": "hello bea", "length": 9}
        await ledger.graphs.put(onboarding("welcome"))
        two = await ledger.graphs.run("onboarding", {"customer": {"name": "cy"}, "least": 2}, tenant="acme")
        assert await two.result(timeout_s=LIMIT_S) == {"letter": "welcome cy", "length": 10}
    assert [await version_of(one), await version_of(two)] == [("onboarding", 1), ("onboarding", 2)]
    step = (await two.snapshot()).steps["onboarding"]
    assert step.target == "onboarding version 2"
    assert step.order is not None
    assert [node.label for node in step.order.nodes] == ["letter", "length"]
    drawn = graph_of(await two.snapshot())
    assert [node.label for node in drawn.nodes][2:] == ["letter", "length"]
    await finish(ledger.log, tmp_path / "rows.db")
    with Store.open(tmp_path / "rows.db") as store:
        tree = run_tree(store, two.id)
    assert sorted(child.label for step in tree.steps for child in step.children) == ["length", "letter"]
    child = await (await ledger.job(f"{two.id}-2-0-of-{two.queue}")).snapshot()
    assert child.order.tenant == "acme"
    assert (await ledger.graphs.get("onboarding", version=1)).spec == first.state.spec
    assert [(each.name, each.version) for each in await ledger.graphs.all()] == [("onboarding", 2)]
    assert (await verify(ledger.log)).violations == ()


async def test_what_a_run_lacks_is_refused_at_the_door_and_fails_a_run_at_once(ledger: Ledger) -> None:
    await ledger.graphs.put(onboarding())
    with pytest.raises(InvalidInputError, match=r"node 'letter' of graph onboarding: .*'/customer/name'"):
        await ledger.graphs.run("onboarding", {"customer": {}})
    with pytest.raises(GraphNotFoundError, match="no stored graph 'onbording'"):
        await ledger.graphs.run("onbording")
    with pytest.raises(InvalidInputError, match=r"store it with graphs\.put"):
        await ledger.run_graph(onboarding())
    with pytest.raises(InvalidInputError, match="'customer' is no JSON pointer"):
        Graph("g").add(count, Graph.input("customer"))
    async with working(ledger, *ALL):
        await all_announced(ledger)
        with pytest.raises(
            InvalidInputError, match=r"node 'letter' .*argument name: Expected `str`, got `int`"
        ):
            await ledger.graphs.run("onboarding", {"customer": {"name": 7}})
        await ledger.schedules.add(
            "weekly", GraphRun("onboarding", {"customer": {"name": "dan"}}), on_demand=True
        )
        with pytest.raises(InvalidInputError, match="customer"):
            await ledger.schedules.add("wrong", GraphRun("onboarding"), on_demand=True)
        job = await ledger.job(await ledger.schedules.trigger("weekly"))
        assert await job.result(timeout_s=LIMIT_S) == {"letter": "hello dan", "length": 9}
        removed = await ledger.graphs.remove("onboarding", reason="moved", by="ann")
        assert (removed.changed, removed.state.spec, removed.state.version) == (True, None, 1)
        lost = await ended(await ledger.job(await ledger.schedules.trigger("weekly")))
        assert lost.error is not None
        assert (lost.state, lost.attempts_count, lost.error.type) == (
            JobState.DEAD_LETTERED,
            1,
            "GraphNotFoundError",
        )
    with pytest.raises(GraphNotFoundError):
        await ledger.graphs.remove("onboarding")
    assert (await ledger.graphs.put(onboarding())).state.version == 2
    assert (await verify(ledger.log)).violations == ()


async def test_a_graph_by_names_is_stored_as_code_would_and_told_in_the_same_form(ledger: Ledger) -> None:
    given = {
        "name": "letters",
        "nodes": [
            {"name": "length", "task": "count", "takes": {"/text": "letter"}},
            {
                "name": "letter",
                "task": "greet",
                "input": {"name": {"$input": "/who"}, "words": [{"$input": "/word"}]},
            },
        ],
    }
    async with working(ledger, *ALL):
        await all_announced(ledger)
        stored = (await ledger.graphs.put(given)).state
        assert stored.spec is not None
        again = await ledger.graphs.put(told(stored.spec))
        assert (again.changed, again.state.version) == (False, 1)

        def call() -> list[Any]:
            config = ledger.config
            with sync.connect(config.url, environment=config.environment, create=False) as blocking:
                blocking.graphs.put(onboarding())
                job = blocking.graphs.run("letters", {"who": "eve", "word": "hi"}, id="l-1")
                names = [each.name for each in blocking.graphs.all()]
                blocking.graphs.remove("onboarding")
                return [job.result(timeout_s=LIMIT_S), names, blocking.graphs.get("letters").version]

        found = await asyncio.to_thread(call)
    assert found == [{"letter": "hi eve", "length": 6}, ["letters", "onboarding"], 1]


@workflow(queue="mail", max_attempts=1)
async def named(run: Run) -> int:
    total = await run.call(count.options(name="short"), "ab")
    child = await run.start(count.options(name="long"), "abc")
    with contextlib.suppress(ChildFailedError):
        wrong = count.options(name="wrong", max_attempts=1)
        await run.options(on_dead_letter="fail").call(wrong, "", least=1)
    return total + await child.result()


async def test_calls_of_a_run_and_nodes_have_the_names_that_the_code_gives(ledger: Ledger) -> None:
    async with working(ledger, *ALL, named):
        job = await ledger.enqueue(named)
        assert await job.result(timeout_s=LIMIT_S) == 5
    assert list((await job.snapshot()).steps) == ["short", "long", "wrong"]
    graph = Graph("g")
    graph.add(count.options(name="one"), "a")
    with pytest.raises(InvalidInputError, match="two nodes of graph g are called 'one'"):
        graph.add(count.options(name="one"), "b")
    with pytest.raises(InvalidInputError, match="has no name='one' but in a run or a graph"):
        await ledger.enqueue(count.options(name="one"), "a")
