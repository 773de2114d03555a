"""What a person does to stored graphs and sees of them: store, list, show and remove one."""

from __future__ import annotations

import msgspec

from jobledger.admin.events.changes import Change, state_and_changes
from jobledger.ledger.client import Ledger
from jobledger.ledger.graphs.named import NamedGraph, told
from jobledger.ledger.graphs.stored import graph_named
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.graphs.spec import GraphSpec
from jobledger.ledger.model.graphs.stored import GRAPH, StoredGraph, inputs_of
from jobledger.ledger.model.named_chain import ChangedValue
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.subjects import check_token


class GraphInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored graph as it stands."""

    graph: str  #: its name
    version: int
    nodes: int  #: how many nodes it has; 0: it was removed
    takes: tuple[str, ...]  #: JSON pointers into a run's input whose values it takes
    removed: bool
    changed_at: Moment  #: when its newest event was appended
    changed_by: str
    reason: str
    sequence: int  #: stream sequence of that event; 0 of a plan


class StoredGraphs(msgspec.Struct, frozen=True, kw_only=True):
    """The stored graphs, by name."""

    items: list[GraphInfo]


class ShownGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A stored graph, and how it became so."""

    info: GraphInfo
    definition: NamedGraph | None  #: in the form in which it can be stored again; none: it was removed
    history: tuple[Change, ...]  #: the newest first


class ChangedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A stored graph after an act."""

    info: GraphInfo
    changed: bool  #: False: it was so already


def may_view(principal: Principal, graph: StoredGraph) -> bool:
    """Return whether somebody may see each node's job, and so the graph."""
    return graph.spec is not None and all(
        principal.may("view", node.node.queue, node.node.task) for node in graph.spec.nodes
    )


def require_of_nodes(
    principal: Principal, permission: Permission, name: str, graph: StoredGraph
) -> GraphSpec:
    """Return the nodes of a stored graph for a principal that has the permission for each of them.

    Raises: GraphNotFoundError also if the principal may not see one of them; AccessDeniedError.
    """
    missing = GraphNotFoundError(name)
    if graph.spec is None:
        raise missing
    for node in graph.spec.nodes:
        principal.require_about(permission, node.node.queue, node.node.task, missing)
    return graph.spec


async def require_replaceable(ledger: Ledger, principal: Principal, name: str) -> None:
    """Refuse to replace a graph that somebody may not manage. Raises: GraphNotFoundError, AccessDeniedError."""
    try:
        known = await ledger.graphs.get(name)
    except GraphNotFoundError:
        return
    require_of_nodes(principal, "manage", name, known)


async def show_graph(ledger: Ledger, name: str, *, version: int = 0) -> ShownGraph:
    """Return a stored graph, in its newest version (0) or in an older one, and its newest events.

    Raises: GraphNotFoundError for a graph or a version that was never stored; InvalidTokenError, UnreachableError.
    """
    check_token("graph name", name)
    missing = GraphNotFoundError(name)
    graph, history = await state_and_changes(ledger.log, GRAPH, name, missing=missing)
    if version:
        graph, _ = await graph_named(ledger.log, name, version)
    definition = None if graph.spec is None else told(graph.spec)
    return ShownGraph(info=info_of(graph), definition=definition, history=history)


def changed_graph(done: ChangedValue[StoredGraph]) -> ChangedGraph:
    """Return a stored graph after a command, as it is shown."""
    return ChangedGraph(info=info_of(done.state), changed=done.changed)


def info_of(graph: StoredGraph) -> GraphInfo:
    """Return a stored graph as a person sees it."""
    spec = graph.spec
    return GraphInfo(
        graph=graph.name,
        version=graph.version,
        nodes=0 if spec is None else len(spec.nodes),
        takes=() if spec is None else tuple(inputs_of(spec)),
        removed=spec is None,
        changed_at=graph.at,
        changed_by=graph.by,
        reason=graph.reason,
        sequence=graph.sequence,
    )
