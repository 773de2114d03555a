"""Stored graphs as facts: their wire form, what may follow what, what a check finds, and the places for a run's input."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.golden import golden_lines
from tests.support.tables import each_row

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.errors import InvalidError, InvalidInputError
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.graphs.spec import GraphNode, GraphSpec
from jobledger.ledger.model.graphs.stored import (
    GRAPH,
    GraphEvent,
    SetGraph,
    StoredGraph,
    decide,
    evolve,
    for_run,
    inputs_of,
)
from jobledger.ledger.model.runs.orders import ChildNode
from jobledger.ledger.model.subjects import Names

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STAMP = Stamp(at=NOW, by="alice", trace="t")
LINES = [line for line in golden_lines() if line.aggregate == "graph"]


def spec(given: Any = None, name: str = "g") -> GraphSpec:
    node = GraphNode(label="a", node=ChildNode(task="t", queue="q"), input={"x": given})
    return GraphSpec(name=name, nodes=(node,))


@each_row("line", LINES)
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: Any) -> None:
    message = Message(data=line.data, stream_sequence=9, stored_at=NOW, subject="ledger.graph.x.set")
    event = GRAPH.decode(message)
    assert GRAPH.encode(event) == line.data
    assert GRAPH.is_at(GRAPH.subject(Names(), event), event)


def test_every_field_of_every_event_has_a_golden_line() -> None:
    for tag, cls in GRAPH.types.items():
        lines = [line.said for line in LINES if line.said["type"] == tag]
        assert {name for line in lines for name in line} == {"type", *cls.__struct_fields__}, tag


def run(*commands: Any) -> tuple[StoredGraph | None, list[GraphEvent]]:
    state: StoredGraph | None = None
    events: list[GraphEvent] = []
    for number, command in enumerate(commands, 1):
        event = decide("g", state, command, STAMP)
        if event is not None:
            assert GRAPH.check is not None
            assert list(GRAPH.check(state, event, number)) == []
            state = evolve(state, event, number)
            events.append(event)
    return state, events


def test_each_graph_that_says_something_else_is_the_next_version() -> None:
    state, events = run(
        SetGraph(spec=spec(1)),
        SetGraph(spec=spec(1)),
        SetGraph(spec=spec(2)),
        Remove(),
        SetGraph(spec=spec(2)),
    )
    assert [(GRAPH.type_of(each), each.version) for each in events] == [
        ("set", 1),
        ("set", 2),
        ("removed", 2),
        ("set", 3),
    ]
    assert state is not None
    assert (state.version, state.sequence) == (3, 5)
    for before in (None, evolve(None, events[2], 3)):
        with pytest.raises(GraphNotFoundError):
            decide("g", before, Remove(), STAMP)


def test_a_check_finds_what_no_command_would_have_made() -> None:
    _, (first, *_) = run(SetGraph(spec=spec(1)))
    check = GRAPH.check
    assert check is not None
    state = evolve(None, first, 1)
    _, removed = run(SetGraph(spec=spec(1)), Remove())[1]
    forged: list[tuple[StoredGraph | None, Any, str]] = [
        (state, msgspec.structs.replace(first, version=3, reason="x"), "behind version 1"),
        (None, msgspec.structs.replace(first, spec=spec(1, "other")), "stored as g"),
        (None, msgspec.structs.replace(first, spec=spec({"$input": "x"})), "no JSON pointer"),
        (None, removed, "was not there"),
        (evolve(None, removed, 2), msgspec.structs.replace(removed, reason="x"), "was not there"),
    ]
    for before, event, words in forged:
        assert [words in sentence for _, sentence in check(before, event, 5)] == [True], words
    assert list(check(state, first, 7)) == []  # an archive run says it again


@each_row(
    "given, values, found",
    [
        ({"$input": "/a/b"}, {"a": {"b": None}}, None),
        ({"$input": ""}, {"a": 1}, {"a": 1}),
        ([1, {"k": {"$input": "/l/1"}}], {"l": [1, 2]}, [1, {"k": 2}]),
        ({"$input": "/a", "default": [0]}, {}, [0]),
        ({"$input": "/a", "default": 0}, {"a": {"$input": "/b"}}, {"$input": "/b"}),
        ({"input": "/a"}, {}, {"input": "/a"}),
        ("/a", {"a": 1}, "/a"),
    ],
)
def test_the_places_of_a_graph_are_filled_from_the_input_of_its_run(
    given: Any, values: Any, found: Any
) -> None:
    assert for_run(spec(given), values).nodes[0].input == {"x": found}


def test_what_a_graph_takes_of_its_input_is_told_and_missed_by_name() -> None:
    graph = spec([{"$input": "/a"}, {"b": {"$input": "/c", "default": 1}}, {"$input": "/a"}])
    assert inputs_of(graph) == ["/a", "/c"]
    with pytest.raises(InvalidInputError, match="node 'a' of graph g: the input must have a value at '/a'"):
        for_run(graph, {"c": 2})


@each_row(
    "wrong",
    [
        spec({"$input": "a"}),
        spec({"$input": 7}),
        spec({"$input": "/a", "defualt": 1}),
        spec([{"x": {"$input": "/~2"}}]),
        spec("x" * (256 << 10)),
        spec(1, "a.b"),
        GraphSpec(name="g", nodes=()),
    ],
)
def test_what_cannot_run_is_not_stored(wrong: GraphSpec) -> None:
    with pytest.raises(InvalidError):
        SetGraph(spec=wrong)
