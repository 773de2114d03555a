"""Stored graphs as the ledger has them: the newest version of one, an older one, and all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobledger.ledger.limits.keys import KeySource
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.graphs.spec import GraphNode, GraphSpec
from jobledger.ledger.model.graphs.stored import GRAPH, StoredGraph, for_run
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.named_chain import look, newest, states
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.templates import filled


async def graph_named(log: Log, name: str, version: int = 0) -> tuple[StoredGraph, GraphSpec]:
    """Return a stored graph and its nodes: the newest version, or one that the ledger still has.

    Raises: GraphNotFoundError, InvalidTokenError, UnreachableError.
    """
    if version:
        check_token(GRAPH.name, name)
        said = [each async for _, each in states(log, GRAPH, name) if each.version == version]
        found = next((each for each in said if each.spec is not None), None)
    else:
        found = (await look(log, GRAPH, name)).state
    if found is None or found.spec is None:
        raise GraphNotFoundError(name, version)
    return found, found.spec


async def all_graphs(log: Log) -> list[StoredGraph]:
    """Return every stored graph in its newest version, by name. Raises: CorruptLedgerError, UnreachableError."""
    return [each for _, each in sorted((await newest(log, GRAPH)).items()) if each.spec is not None]


def owner_of_run(spec: GraphSpec, given: Mapping[str, Any], said: str = "") -> str:
    """Return whose data a run of a stored graph holds: the owner that its nodes name, else `said`.

    `given`: the input of the run. Raises: InvalidInputError with the node where two of them differ.
    """
    if not any(node.owner for node in spec.nodes):
        return said
    found = said
    for node in for_run(spec, given).nodes:
        owner = _owner_of(node)
        if found and owner and owner != found:
            raise InvalidInputError(
                f"node {node.label!r} of graph {spec.name} has the owner {owner}, and its run has {found}: give all of "
                "them one owner"
            )
        found = found or owner
    return found


def _owner_of(node: GraphNode) -> str:
    if "{" not in node.owner:
        return node.owner
    return filled(
        "owner", node.owner, KeySource(node.node.task, node.node.queue, Order(), lambda: node.input)
    )
