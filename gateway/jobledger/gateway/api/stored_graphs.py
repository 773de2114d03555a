"""Beginning runs of a graph that is stored under a name; other acts on such graphs: `jobledger.admin.verbs.graphs`."""

from __future__ import annotations

from typing import Any, Final

from jobledger.admin.graphs import require_of_nodes
from jobledger.gateway.api.additions import (
    JobEnqueued,
    added,
    existing,
    id_of,
    require_free,
    require_own,
    reused,
)
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, endpoint_maker
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.model.errors import InputMismatchError
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE
from jobledger.ledger.options import LabelFields, OnOtherInput


class NewRun(LabelFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of a stored graph to begin."""

    input: dict[str, Any] = {}  #: must contain all values that the graph takes from it
    id: str | None = None  #: id of its job; a repeat of the id begins nothing, and returns the existing job
    tenant: str | None = None  #: tenant of the run and of its nodes' jobs
    owner: str | None = None  #: owner of its data, `kind:id`; left out: the one that its nodes name
    on_other_input: OnOtherInput = "error"  #: what happens if the id belongs to a run with another input


async def run_graph(asked: ApiRequest, name: str, *, body: NewRun) -> Answer:
    """Begin a run of a stored graph as one job, whose result holds the results of its nodes by name.

    Its job is in queue `jobledger`. The caller needs the right to add each node's job. The run takes the newest version
    when it begins, and records its number.
    """
    ledger, principal = asked.gateway.ledger, asked.principal
    require_of_nodes(principal, "queue", name, await ledger.graphs.get(name))
    job_id = id_of(asked, body.id)
    is_keyed = job_id != body.id
    if is_keyed and job_id is not None:
        await require_free(asked, job_id, BUILT_IN_QUEUE)
    labels: Any = {each: getattr(body, each) for each in LabelFields.__struct_fields__}
    try:
        with acting_for(None):  # each of its nodes was allowed
            handle = await ledger.graphs.run(
                name,
                body.input,
                id=job_id,
                by=principal.name,
                trace=asked.trace,
                on_other_input=body.on_other_input,
                owner=body.owner,
                **labels,
            )
    except InputMismatchError:
        if is_keyed:
            raise reused(f"job {job_id}") from None
        raise
    held = await existing(asked, handle)
    if held is not None and is_keyed:
        require_own(asked, held.job)
    return await added(asked, handle, held)


_endpoint: Final = endpoint_maker("graphs", under="/v1/graphs")

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
        "POST",
        "/{name}/run",
        run_graph,
        "Begin a run of a stored graph",
        JobEnqueued,
        permission="queue",
        body=NewRun,
        heeds=("Idempotency-Key", "Prefer"),
        status=202,
        also=(200,),
        problems=(*_RUN, *_WRITES),
    ),
)
