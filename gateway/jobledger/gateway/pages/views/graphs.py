"""Stored graphs: their list, and one of them with its nodes, its history and a form that begins a run."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from markupsafe import Markup

from jobledger.admin.graphs import GraphInfo, ShownGraph, info_of, may_view, require_of_nodes, show_graph
from jobledger.admin.run_graph import levels, nodes_of
from jobledger.gateway.pages.charts.graph import Box, graph
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, shell_of
from jobledger.ledger.model.graphs.spec import GraphSpec
from jobledger.ledger.model.hooks.pointers import words_of


class Query(When, frozen=True, kw_only=True):
    """The choice of a graph to show with its nodes."""

    graph: Annotated[str, msgspec.Meta(max_length=64)] = ""


class OneGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A graph with its nodes."""

    shown: ShownGraph
    drawn: Markup
    example: str  #: an input as JSON, with a place for each value that the graph takes


class Graphs(PageFacts, frozen=True, kw_only=True):
    """The page."""

    graphs: list[GraphInfo]
    one: OneGraph | None  #: the graph that was asked for


async def graphs(looked: Viewer, *, query: Query) -> Graphs:
    """Return the present stored graphs of which the viewer may see every node. Raises: GraphNotFoundError."""
    found = await looked.gateway.ledger.graphs.all()
    one = await _one(looked, query.graph) if query.graph else None
    shell = await shell_of(looked)
    seen = [info_of(each) for each in found if may_view(looked.principal, each)]
    return Graphs(shell=shell, graphs=seen, one=one)


async def _one(looked: Viewer, name: str) -> OneGraph:
    ledger = looked.gateway.ledger
    spec = require_of_nodes(looked.principal, "view", name, await ledger.graphs.get(name))
    shown = await show_graph(ledger, name)
    return OneGraph(shown=shown, drawn=_drawn(spec), example=_example(shown.info.takes))


def _drawn(spec: GraphSpec) -> Markup:
    nodes = nodes_of(spec)
    rows = [
        [
            Box(id=node.id, label=node.label, style="", state=spec.nodes[int(node.id)].node.task)
            for node in row
        ]
        for row in levels(nodes)
    ]
    return graph(rows, nodes.edges, label=f"Nodes of graph {spec.name}")


def _example(takes: tuple[str, ...]) -> str:
    """Return an input with a place for each value that the graph takes; people fill in the values."""
    found: dict[str, Any] = {}
    for words in map(words_of, takes):
        inside = found
        for word in words[:-1]:
            below = inside.get(word)
            inside[word] = below if isinstance(below, dict) else {}
            inside = inside[word]
        if words:
            inside.setdefault(words[-1], None)
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
