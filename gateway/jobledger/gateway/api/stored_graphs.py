"""Graphs that are stored under their names: which there are, storing and removing one, and beginning runs of them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from jobledger.admin.graphs import ChangedGraph, GraphInfo, ShownGraph, changed_graph, info_of, show_graph
from jobledger.gateway.api.adding import (
    JobEnqueued,
    added,
    existing,
    id_of,
    naming_no_hidden_task,
    require_free,
    require_own,
    reused,
)
from jobledger.gateway.api.asking import Text
from jobledger.gateway.http.asked import Asked
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.ledger.access.acting import acting_for
from jobledger.ledger.graphs.named import NamedGraph, graph_of
from jobledger.ledger.model.errors import InputMismatchError, InvalidInputError
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.graphs.spec import GraphSpec
from jobledger.ledger.model.graphs.stored import StoredGraph
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import OnOtherInput


class StoredGraphs(msgspec.Struct, frozen=True, kw_only=True):
    """The stored graphs, by name."""

    items: list[GraphInfo]


class GraphQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which version."""

    version: Annotated[int, msgspec.Meta(ge=0)] = 0  #: 0: the newest


class ChangingGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to do it, and why."""

    plan: bool = False  #: tell what would be, and change nothing
    reason: Text = ""  #: kept in the ledger with who said so


class GivenGraph(NamedGraph, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph to store, as in `POST /v1/graphs`; inputs may have `{"$input": "/customer"}` in place of values."""

    name: str = ""  #: may be left out, since the address has it


class NewRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of a stored graph to begin."""

    input: dict[str, Any] = {}  #: what the graph takes of it must be there
    id: str | None = None  #: of its job; the same id again begins nothing, and gives the one that is there
    tenant: str | None = None  #: whom it and its nodes' jobs belong to
    correlation: str | None = None
    metadata: dict[str, str] | None = None
    on_other_input: OnOtherInput = "error"  #: what is done where the id belongs to a run with another input


def may_view(principal: Principal, graph: StoredGraph) -> bool:
    """Return whether somebody may see each node's job, and so the graph."""
    return graph.spec is not None and all(
        principal.may("view", node.node.queue, node.node.task) for node in graph.spec.nodes
    )


def require_of_nodes(
    principal: Principal, permission: Permission, name: str, graph: StoredGraph
) -> GraphSpec:
    """Return the nodes of a stored graph for whoever may do something with each of them.

    Raises: GraphNotFoundError also for who may not see one of them; ProblemError.
    """
    missing = GraphNotFoundError(name)
    if graph.spec is None:
        raise missing
    for node in graph.spec.nodes:
        principal.require_about(permission, node.node.queue, node.node.task, missing)
    return graph.spec


async def list_graphs(asked: Asked) -> StoredGraphs:
    """List the stored graphs as the ledger says now: those of which who asks may see every node."""
    found = await asked.gateway.ledger.graphs.all()
    return StoredGraphs(items=[info_of(each) for each in found if may_view(asked.principal, each)])


async def show_one_graph(asked: Asked, name: str, *, query: GraphQuery) -> ShownGraph:
    """Show a stored graph as it can be stored again, in its newest version or an older one, and its history."""
    ledger, principal = asked.gateway.ledger, asked.principal
    if not principal.is_everywhere:  # a graph that was removed has no nodes to go by
        require_of_nodes(principal, "view", name, await ledger.graphs.get(name, version=query.version))
    return await show_graph(ledger, name, version=query.version)


async def put_graph(asked: Asked, name: str, *, query: ChangingGraph, body: GivenGraph) -> ChangedGraph:
    """Store a graph under a name, as its next version; what says the same changes nothing. Runs go on with theirs."""
    ledger, principal = asked.gateway.ledger, asked.principal
    given = _named(check_token("graph", name), body)
    for named in given.nodes:
        principal.require("manage", None, check_token("task name", named.task))
    with naming_no_hidden_task(principal):
        graph = await graph_of(ledger.patience, ledger.announced, given)
    for node in graph.spec().nodes:
        principal.require("manage", node.node.queue, node.node.task)
    await _require_replaceable(asked, name)
    done = await ledger.graphs.put(graph, reason=query.reason, by=principal.name, plan=query.plan)
    return changed_graph(done)


async def _require_replaceable(asked: Asked, name: str) -> None:
    """Refuse to replace a graph that its asker may not manage. Raises: ProblemError, GraphNotFoundError."""
    try:
        known = await asked.gateway.ledger.graphs.get(name)
    except GraphNotFoundError:
        return
    require_of_nodes(asked.principal, "manage", name, known)


def _named(name: str, body: GivenGraph) -> NamedGraph:
    if body.name not in {"", name}:
        raise InvalidInputError(
            f"the graph is called {ascii(body.name)[:80]}, and its address says {name}: leave the name out"
        )
    return msgspec.structs.replace(body, name=name)


async def delete_graph(asked: Asked, name: str, *, query: ChangingGraph) -> ChangedGraph:
    """Take a stored graph away: nothing begins a run of it any more; its runs go on."""
    graphs, principal = asked.gateway.ledger.graphs, asked.principal
    require_of_nodes(principal, "manage", name, await graphs.get(name))
    return changed_graph(await graphs.remove(name, reason=query.reason, by=principal.name, plan=query.plan))


async def run_graph(asked: Asked, name: str, *, body: NewRun) -> Answer:
    """Begin a run of a stored graph as one job, whose result has those of its nodes by name.

    Its job is in queue `jobledger`. Who asks must be allowed to add each node's job. The run takes the newest version
    when it begins, and records which.
    """
    ledger, principal = asked.gateway.ledger, asked.principal
    require_of_nodes(principal, "queue", name, await ledger.graphs.get(name))
    job_id = id_of(asked, body.id)
    is_keyed = job_id != body.id
    if is_keyed and job_id is not None:
        await require_free(asked, job_id, BUILT_IN_QUEUE)
    try:
        with acting_for(None):  # each of its nodes was allowed
            handle = await ledger.graphs.run(
                name,
                body.input,
                id=job_id,
                by=principal.name,
                trace=asked.trace,
                tenant=body.tenant,
                correlation=body.correlation,
                metadata=body.metadata,
                on_other_input=body.on_other_input,
            )
    except InputMismatchError:
        if is_keyed:
            raise reused(f"job {job_id}") from None
        raise
    held = await existing(asked, handle)
    if held is not None and is_keyed:
        require_own(asked, held.job)
    return await added(asked, handle, held)


def _endpoint(method: Any, path: str, handler: Any, summary: str, **more: Any) -> Endpoint:
    path = f"/v1/graphs{path}"
    return Endpoint(method=method, path=path, handler=handler, summary=summary, tag="runs", **more)


_WRITES: Final = ("LEDGER_BUSY", "LEDGER_FULL")
_RUN: Final = (
    "NOT_FOUND",
    "JOB_INVALID_INPUT",
    "PAYLOAD_TOO_LARGE",
    "IDEMPOTENCY_KEY_REUSED",
    "DUPLICATE",
    "INPUT_MISMATCH",
)

ENDPOINTS: Final = (
    _endpoint(
        "GET",
        "",
        list_graphs,
        "List the stored graphs",
        returns=StoredGraphs,
        permission="view",
        problems=("LEDGER_DAMAGED",),
    ),
    _endpoint(
        "GET",
        "/{name}",
        show_one_graph,
        "Show a stored graph",
        returns=ShownGraph,
        permission="view",
        query=GraphQuery,
        problems=("NOT_FOUND", "LEDGER_DAMAGED"),
    ),
    _endpoint(
        "PUT",
        "/{name}",
        put_graph,
        "Store a graph under a name",
        returns=ChangedGraph,
        permission="manage",
        query=ChangingGraph,
        body=GivenGraph,
        problems=("JOB_INVALID_INPUT", "TASK_NOT_FOUND", "NOT_FOUND", *_WRITES),
    ),
    _endpoint(
        "DELETE",
        "/{name}",
        delete_graph,
        "Take a stored graph away",
        returns=ChangedGraph,
        permission="manage",
        query=ChangingGraph,
        problems=("NOT_FOUND", *_WRITES),
    ),
    _endpoint(
        "POST",
        "/{name}/run",
        run_graph,
        "Begin a run of a stored graph",
        returns=JobEnqueued,
        permission="queue",
        body=NewRun,
        heeds=("Idempotency-Key", "Prefer"),
        status=202,
        also=(200,),
        problems=(*_RUN, *_WRITES),
    ),
)
