"""Graphs by the names of their tasks: jobs that wait for each other and pass results on, begun as one run."""

from __future__ import annotations

from typing import Final

from jobledger.admin.hidden_tasks import naming_no_hidden_task
from jobledger.gateway.api.additions import (
    REFUSALS,
    JobEnqueued,
    added,
    existing,
    id_of,
    require_free,
    require_own,
    reused,
)
from jobledger.gateway.api.one_job import JobAtMoment
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.graphs.graph_run import run_graph
from jobledger.ledger.graphs.named import NamedGraph, graph_of
from jobledger.ledger.model.errors import InputMismatchError
from jobledger.ledger.model.graphs.spec import GraphSpec
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.model.seals import OWNER_DEFAULT, check_owner
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.tasks import TaskWithOptions


class NewGraph(NamedGraph, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph to begin."""

    id: str | None = None  #: id of its job; a repeat of the id begins nothing, and returns the existing job
    owner: str | None = None  #: owner of the data in the graph, `kind:id`: its values are sealed


async def begin_graph(asked: ApiRequest, *, body: NewGraph) -> Answer:
    """Begin a graph as one job, whose result holds the results of its nodes by name.

    Its job is in queue `jobledger`. The caller needs the right to add each node's job to its queue.
    """
    ledger, principal = asked.gateway.ledger, asked.principal
    for named in body.nodes:
        principal.require("queue", None, check_token("task name", named.task))
    with naming_no_hidden_task(principal):
        graph = await graph_of(ledger.patience, ledger.announced, body)
    owner = _owner(asked, body.owner)
    spec = graph.spec(owner=owner)
    for node in spec.nodes:
        principal.require("queue", node.node.queue, node.node.task)
    job_id = id_of(asked, body.id)
    is_keyed = job_id != body.id
    if is_keyed and job_id is not None:
        await require_free(asked, job_id, BUILT_IN_QUEUE)
    task, values = await graph.as_task(ledger, owner=owner)
    # `_require_graph` compares it with one that exists.
    said = {
        "id": job_id,
        "by": principal.name,
        "trace": asked.trace,
        "on_other_input": "keep",
        "owner": body.owner,
    }
    options = task.defaults.changed(said, queue=None, limits=())
    with acting_for(None):  # each of its nodes was allowed
        handle = await ledger.enqueue(TaskWithOptions(task, options), **values)
    held = await existing(asked, handle)
    if held is not None:
        await _require_graph(asked, held, spec, is_keyed=is_keyed)
    return await added(asked, handle, held)


def _owner(asked: ApiRequest, said: str | None) -> str:
    """Return whose data a graph holds, "" where nobody says it. Raises: InvalidInputError."""
    if said is not None:
        return check_owner(said)
    return OWNER_DEFAULT if asked.gateway.ledger.config.seal == "all" else ""


async def _require_graph(asked: ApiRequest, held: JobAtMoment, spec: GraphSpec, *, is_keyed: bool) -> None:
    """Refuse the id of a job that is no graph, or that is another graph than `spec`.

    Raises: ProblemError (DUPLICATE; IDEMPOTENCY_KEY_REUSED where a key named it), InputMismatchError.
    """
    ledger, job = asked.gateway.ledger, held.job
    if is_keyed:
        require_own(asked, job)
    if job.task != run_graph.name:
        raise ProblemError(
            "DUPLICATE", f"job {job.id} of queue {job.queue} is no graph: give this one another id"
        )
    text = await ledger.patience.read(
        lambda: ledger.inputs.get(job.order.input, job.order.input_ref, key=job.order.key)
    )
    if not spec.is_input(text):
        raise reused(f"graph {job.id}") if is_keyed else InputMismatchError(job.id, job.queue, ["graph"])


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/v1/graphs",
        permission="queue",
        handler=begin_graph,
        summary="Begin a graph of jobs that wait for each other",
        tag="runs",
        body=NewGraph,
        returns=JobEnqueued,
        heeds=("Idempotency-Key", "Prefer"),
        status=202,
        also=(200,),
        problems=(*REFUSALS, "DUPLICATE", "INPUT_MISMATCH"),
    ),
)
