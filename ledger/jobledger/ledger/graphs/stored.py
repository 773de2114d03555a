"""Stored graphs as the ledger has them: the newest version of one, an older one, and all of them."""

from __future__ import annotations

from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.graphs.spec import GraphSpec
from jobledger.ledger.model.graphs.stored import GRAPH, StoredGraph
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.named_chain import look, newest, states
from jobledger.ledger.model.subjects import check_token


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
