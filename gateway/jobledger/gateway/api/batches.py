"""Batches: many jobs of one task under one name, and a job that is enqueued when all of them have ended.

A batch is opened, its jobs are added by `POST /v1/jobs/bulk?batch=NAME`, and it is closed with their number.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec

from jobledger.admin.hidden_tasks import naming_no_hidden_task
from jobledger.gateway.api.parameters import WithReason
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, endpoint_maker
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.model.errors import NotFoundError
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.reserved_ids import check_unreserved
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.runs.orders import BATCH_STEP, ITEMS_MAX
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.named_batches import Batch, batch_spec, close_batch, find_batch, open_batch
from jobledger.ledger.options import NodeFields


class BatchEnd(NodeFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job to enqueue when all jobs of a batch have ended; it gets `batch` and `counts` if its task takes them."""

    task: str
    queue: str | None = None  #: its queue; options that are left out are as in the task's code


class NewBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch to open."""

    task: str  #: the task of its jobs
    queue: str | None = None  #: the queue of its jobs; left out: as in the task's code
    on_end: BatchEnd | None = None


class BatchClose(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a batch: the number of its jobs."""

    count: Annotated[int, msgspec.Meta(ge=0, le=ITEMS_MAX)]  #: how many jobs were added


class BatchShown(msgspec.Struct, frozen=True, kw_only=True):
    """A batch."""

    name: str
    status: str  #: state of the job `jobledger/NAME`, which stands for the batch
    task: str
    queue: str  #: the queue of its jobs
    on_end: str | None  #: the task that follows it
    count: int | None  #: how many jobs it has; null: it is open
    ended: int  #: how many of them have ended
    counts: dict[str, int] | None  #: how many ended in which state; null until all have ended
    created_by: str
    created_at: datetime
    last_sequence: int


async def open_one(asked: ApiRequest, name: str, *, body: NewBatch) -> Answer:
    """Open a batch; an existing one with the same task, queue and end stays as it is."""
    ledger, principal, end = asked.gateway.ledger, asked.principal, body.on_end
    check_unreserved(name)
    follows = (
        None
        if end is None
        else (end.task, {each: getattr(end, each) for each in NodeFields.__struct_fields__})
    )
    for task in (body.task,) if end is None else (body.task, end.task):
        principal.require("queue", None, check_token("task name", task))
    with naming_no_hidden_task(principal):
        spec = await batch_spec(ledger, name, body.task, {"queue": body.queue}, follows)
    principal.require("queue", spec.queue, spec.task)
    if spec.end is not None:
        principal.require("queue", spec.end.queue, spec.end.task)
    with acting_for(None):  # the permissions for its jobs and its end were checked
        made = await open_batch(ledger, name, spec, by=principal.name, trace=asked.trace)
    value = await _shown(asked, await find_batch(ledger, name))
    return Answer(value=value, status=201 if made.created else 200)


async def show_batch(asked: ApiRequest, name: str) -> Answer:
    """Show a batch: whether it is open, and how many of its jobs have ended."""
    shown = await _shown(asked, await batch_for(asked, name, "view"))
    return Answer(value=shown, etag=str(shown.last_sequence))


async def close_one(asked: ApiRequest, name: str, *, body: BatchClose) -> BatchShown:
    """Close a batch with the number of its jobs: it ends once all of them have ended."""
    ledger = asked.gateway.ledger
    await batch_for(asked, name, "queue")
    with acting_for(None):  # a right to add its jobs is enough to close it
        await close_batch(ledger, name, body.count, by=asked.principal.name)
    return await _shown(asked, await find_batch(ledger, name))


async def cancel_batch(asked: ApiRequest, name: str, *, body: WithReason) -> BatchShown:
    """Cancel a batch and its open jobs; the job of its end is not enqueued then."""
    ledger = asked.gateway.ledger
    batch = await batch_for(asked, name, "cancel")
    with acting_for(None):  # a right to cancel its jobs is enough to cancel it
        await ledger.cancel(batch.ref, reason=body.reason, by=asked.principal.name)
    return await _shown(asked, await find_batch(ledger, name))


async def batch_for(asked: ApiRequest, name: str, permission: Permission) -> Batch:
    """Return a batch, if the caller has this permission for its jobs. Raises: NotFoundError, ProblemError."""
    asked.principal.require(permission)
    batch = await find_batch(asked.gateway.ledger, name)
    if not asked.principal.may(permission, batch.spec.queue, batch.spec.task):
        raise NotFoundError(f"there is no batch {name}: open it first")
    return batch


async def _shown(asked: ApiRequest, batch: Batch) -> BatchShown:
    job, spec, counts = batch.job, batch.spec, None
    if job.state is JobState.COMPLETED:
        results = asked.gateway.ledger.results
        counts = msgspec.json.decode(
            await results.get(job.result, job.result_ref, key=job.order.key), type=dict[str, int]
        )
    step = job.steps.get(BATCH_STEP)
    return BatchShown(
        name=job.id,
        status=job.state.value,
        task=spec.task,
        queue=spec.queue,
        on_end=None if spec.end is None else spec.end.task,
        count=batch.size,
        ended=0 if step is None else step.ended.bit_count(),
        counts=counts,
        created_by=job.created_by,
        created_at=job.created_at,
        last_sequence=job.last_sequence,
    )


_endpoint: Final = endpoint_maker("batches", under="/v1/batches/{name}", permission="queue")

_ADDED: Final = ("JOB_INVALID_INPUT", "ILLEGAL_TRANSITION", "LEDGER_FULL", "LEDGER_BUSY")
ENDPOINTS: Final = (
    _endpoint(
        "PUT",
        "",
        open_one,
        "Open a batch",
        BatchShown,
        body=NewBatch,
        status=201,
        also=(200,),
        problems=(*_ADDED, "TASK_NOT_FOUND"),
    ),
    _endpoint(
        "GET",
        "",
        show_batch,
        "Show a batch",
        BatchShown,
        permission="view",
        heeds=("If-None-Match",),
        problems=("NOT_FOUND",),
    ),
    _endpoint(
        "POST",
        "/close",
        close_one,
        "Say how many jobs a batch has",
        BatchShown,
        body=BatchClose,
        problems=(*_ADDED, "NOT_FOUND", "REFUSED"),
    ),
    _endpoint(
        "POST",
        "/cancel",
        cancel_batch,
        "Cancel a batch and its open jobs",
        BatchShown,
        permission="cancel",
        body=WithReason,
        problems=("NOT_FOUND", "ILLEGAL_TRANSITION", "LEDGER_FULL", "LEDGER_BUSY"),
    ),
)
