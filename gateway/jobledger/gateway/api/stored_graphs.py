"""Storing a graph under its name, and beginning runs of it. What else is done to them, `jobledger.admin.verbs.graphs` has."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from jobledger.admin.graphs import ChangedGraph, changed_graph, require_of_nodes
from jobledger.gateway.api.additions import (
    JobEnqueued,
    added,
    existing,
    id_of,
    naming_no_hidden_task,
    require_free,
    require_own,
    reused,
)
from jobledger.gateway.api.parameters import Text
from jobledger.gateway.http.asked import ApiRequest
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.graphs.named import NamedGraph, graph_of
from jobledger.ledger.model.errors import InputMismatchError, InvalidInputError
from jobledger.ledger.model.graphs.errors import GraphNotFoundError
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import OnOtherInput


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


async def put_graph(asked: ApiRequest, name: str, *, query: ChangingGraph, body: GivenGraph) -> ChangedGraph:
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


async def _require_replaceable(asked: ApiRequest, name: str) -> None:
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


async def run_graph(asked: ApiRequest, name: str, *, body: NewRun) -> Answer:
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
    return Endpoint(method=method, path=path, handler=handler, summary=summary, tag="graphs", **more)


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
