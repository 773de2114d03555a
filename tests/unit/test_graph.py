"""Graphs as they are built: which node waits for which, where results go, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from tests.support.tables import each_row

from jobledger.ledger import InvalidInputError, InvalidTokenError, Limit, TaskDefinitionError, task
from jobledger.ledger.graphs.graph import Graph
from jobledger.ledger.model.graphs.spec import GraphSpec
from jobledger.ledger.model.runs.orders import Take
from jobledger.ledger.model.runs.steps import admit


@task(queue="web", priority="high", max_attempts=3)
async def fetch(page: int, size: int = 100) -> list[str]:
    return [str(page)] * size


@task(queue="merge")
async def merge(a: list[str], b: list[str]) -> int:
    return len(a) + len(b)


@task(queue="mail")
async def tell(lines: list[dict[str, Any]]) -> None:
    assert lines


@task(queue="web", limits=(Limit("site", key="site", slots=1),))
async def visit(site: str, n: int = 0) -> str:
    return f"{site} {n}"


def diamond() -> Graph:
    graph = Graph("nightly", limit=5)
    first, second = graph.add(fetch, 1), graph.add(fetch.options(queue="slow"), 2, size=3)
    total = graph.add(merge, first, b=second)
    graph.after(total).add(tell, [{"n": 1}])
    return graph


def test_a_node_waits_for_those_whose_results_it_takes_and_those_it_comes_after() -> None:
    spec = diamond().spec()
    assert [node.label for node in spec.nodes] == ["fetch", "fetch#2", "merge", "tell"]
    assert [node.after for node in spec.nodes] == [(), (), (0, 1), (2,)]
    assert spec.nodes[2].node.takes == (Take(at=("a",), of=0), Take(at=("b",), of=1))
    assert [node.input for node in spec.nodes] == [
        {"page": 1},
        {"page": 2, "size": 3},
        {"a": None, "b": None},
        {"lines": [{"n": 1}]},
    ]
    order = spec.order
    assert (order.count, order.limit, order.on_failure, order.after) == (4, 5, "stop", ((), (), (0, 1), (2,)))
    assert [(n.task, n.queue, n.priority, n.max_attempts) for n in order.nodes[:2]] == [
        ("fetch", "web", "high", 3),
        ("fetch", "slow", "high", 3),
    ]
    assert msgspec.json.decode(spec.items) == [node.input for node in spec.nodes]
    assert msgspec.json.decode(msgspec.json.encode(spec), type=GraphSpec) == spec


def test_results_may_lie_within_lists_and_dicts_and_values_that_look_alike_are_values() -> None:
    graph = Graph("g")
    page = graph.add(fetch, 1)
    graph.add(tell, [{"n": 0, "of": (page, "x")}, {"of": {"deep": page}}, {"$result": 0, "at": ["of"]}])
    node = graph.spec().nodes[1]
    assert node.node.takes == (
        Take(at=("lines", 0, "of", 0), of=0),
        Take(at=("lines", 1, "of", "deep"), of=0),
    )
    assert node.input["lines"][2] == {"$result": 0, "at": ["of"]}


def test_a_node_that_runs_always_is_told() -> None:
    graph = Graph("g", on_failure="continue")
    page = graph.add(fetch, 1)
    graph.after(page, always=True).add(tell, [])
    order = graph.spec().order
    assert (order.always, order.on_failure) == ((1,), "collect")
    assert admit(order, 0b01, 0b01, 0b01) == 0b11


def test_nodes_are_stored_behind_those_they_wait_for_in_whatever_order_they_were_added() -> None:
    graph = Graph("g")
    last, first = graph.add(tell, []), graph.add(fetch, 1)
    graph.add(merge, first, first)
    graph.edge(first, last)
    spec = graph.spec()
    assert [node.label for node in spec.nodes] == ["fetch", "tell", "merge"]
    assert [node.after for node in spec.nodes] == [(), (0,), (0,)]
    assert {take.of for take in spec.nodes[2].node.takes} == {0}


def test_a_cycle_is_refused_with_its_path_and_changes_nothing() -> None:
    graph = diamond()
    page = graph.add(fetch, 3)
    count = graph.add(merge, page, page)
    end = graph.after(count).add(tell, [])
    with pytest.raises(InvalidInputError, match=r"wait for itself: fetch#3 -> merge#2 -> tell#2 -> fetch#3"):
        graph.edge(end, page)
    with pytest.raises(InvalidInputError, match="fetch#3 -> fetch#3"):
        graph.edge(page, page)
    assert graph.spec().nodes[4].after == ()


class World:
    """A graph with two nodes, and one of another graph."""

    def __init__(self) -> None:
        self.graph = Graph("g")
        self.page: Any = self.graph.add(fetch, 1)
        self.site: Any = self.graph.add(visit, "a")
        self.stranger: Any = Graph("g").add(fetch, 1)

    def add(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        return self.graph.add(task, *args, **kwargs)


REFUSED: list[tuple[Callable[[World], object], type[Exception], str]] = [
    (lambda _: Graph("a b"), InvalidTokenError, "graph 'a b'"),
    (lambda _: Graph("g", limit=-1), InvalidInputError, "0 or more"),
    (lambda _: Graph("g", on_failure=cast("Any", "no")), InvalidInputError, "stop or continue"),
    (lambda _: Graph("g").spec(), InvalidInputError, "has 0 nodes"),
    (lambda w: w.graph.after(w.stranger), InvalidInputError, "no node of graph g"),
    (lambda w: w.graph.after(7), InvalidInputError, "7 is no node"),
    (lambda w: w.add(fetch, "x"), InvalidInputError, "argument page"),
    (lambda w: w.add(fetch, 1, of=2), InvalidInputError, "no argument 'of'"),
    (lambda w: w.add(merge, w.page), InvalidInputError, "needs the argument 'b'"),
    (lambda w: w.add(fetch.options(id="x"), 1), TaskDefinitionError, "cannot have id"),
    (lambda w: w.add(fetch.options(delay_s=1), 1), TaskDefinitionError, "delay_s"),
    (lambda w: w.add(visit, w.site), TaskDefinitionError, "limit site"),
    (lambda w: w.page[0], TypeError, "not there before the graph runs"),
    (lambda w: w.page.rows, TypeError, "not there before the graph runs"),
    (lambda w: bool(w.page), TypeError, "result of node fetch"),
]


@each_row("build, kind, words", REFUSED)
def test_what_cannot_be_a_graph_is_refused_and_changes_nothing(
    build: Callable[[World], object], kind: type[Exception], words: str
) -> None:
    world = World()
    with pytest.raises(kind, match=words):
        build(world)
    assert len(world.graph) == 2


def test_limits_of_nodes_have_the_keys_that_their_arguments_give() -> None:
    graph = Graph("g")
    graph.add(visit, "a", n=1)
    assert graph.spec().nodes[0].node.limits == ("site:a",)


def test_a_graph_written_by_hand_is_checked() -> None:
    spec = diamond().spec()
    backwards = msgspec.structs.replace(spec, nodes=spec.nodes[::-1])
    with pytest.raises(InvalidInputError, match="behind those that it waits for"):
        backwards.check()
