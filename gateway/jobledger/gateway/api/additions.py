"""Parts that adding a job, a graph or a batch share: the id that a key gives it, the trace, and the answer."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import msgspec

from jobledger.admin.objects.jobs import JobShown
from jobledger.gateway.api.one_job import JobAtMoment, read_job, shown
from jobledger.gateway.events.waits import wait_for_end
from jobledger.gateway.http.api_request import ApiRequest, keyed_id
from jobledger.gateway.http.endpoint import Answer
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.reserved_ids import check_unreserved
from jobledger.ledger.model.trace import own_trace, trace_id

#: Problem codes of each endpoint that adds jobs.
REFUSALS: Final = (
    "TASK_NOT_FOUND",
    "JOB_INVALID_INPUT",
    "PAYLOAD_TOO_LARGE",
    "IDEMPOTENCY_KEY_REUSED",
    "LEDGER_FULL",
    "LEDGER_THROTTLED",
    "LEDGER_BUSY",
)


class JobEnqueued(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was added, or existed before."""

    id: str
    queue: str
    created: bool  #: False: it existed, and is unchanged
    sequence: int  #: stream sequence of its first event: the `min_sequence` of a list that has it
    trace_id: str  #: id of the W3C trace that it belongs to
    job: JobShown | msgspec.UnsetType = msgspec.UNSET  #: with `Prefer: wait=N`, if it ended in time


def id_of(asked: ApiRequest, given: str | None) -> str | None:
    """Return the id of the job to add: the given one, or one made from the `Idempotency-Key`; None without both.

    Raises: ProblemError; InvalidInputError for an id in a form that is reserved.
    """
    key = asked.idempotency_key
    if not key:
        if given is not None:
            check_unreserved(given)
        return given
    if given is not None:
        raise ProblemError("BAD_REQUEST", "id and Idempotency-Key both name the job: give one of them")
    return keyed_id(asked.principal.name, key)


async def require_free(asked: ApiRequest, job_id: str, queue: str) -> None:
    """Refuse a key that names a job of another queue. Raises: ProblemError (IDEMPOTENCY_KEY_REUSED)."""
    ledger = asked.gateway.ledger
    chain = ledger.names.chains_of_id(job_id)
    known = await ledger.patience.read(lambda: ledger.log.read_chain(chain))
    other = next((stored.event for stored in known if stored.event.queue != queue), None)
    if other is not None:
        raise reused(f"job {other.job} of queue {other.queue}")


def reused(what: str) -> ProblemError:
    """Return the refusal of an `Idempotency-Key` that was used for another request."""
    return ProblemError(
        "IDEMPOTENCY_KEY_REUSED",
        f"this Idempotency-Key made {what}, with another task, queue or input: give each job a key of its own",
    )


def require_own(asked: ApiRequest, job: Job) -> None:
    """Refuse the id of a key if somebody else made its job. Raises: ProblemError (IDEMPOTENCY_KEY_REUSED)."""
    if job.created_by not in {"", asked.principal.name}:  # "": its first event is in an archive
        raise ProblemError(
            "IDEMPOTENCY_KEY_REUSED",
            f"the id {job.id}, which follows from this Idempotency-Key, was given to a job that this key did not make: "
            "send the request with another key",
        )


async def existing(asked: ApiRequest, handle: JobHandle[Any]) -> JobAtMoment | None:
    """Return the job that had the id already; None if this request made it.

    Raises: ProblemError (DUPLICATE) for a job that the caller neither made nor may see. (They may make a graph without
        a right to see its job.)
    """
    if handle.created:
        return None
    history = await handle.history()
    job = fold(history[:1]).job
    assert job is not None, "a history is not empty"
    if job.created_by != asked.principal.name and not asked.principal.scope.has(job.queue, job.task):
        raise ProblemError("DUPLICATE", f"the id {job.id} is taken: choose another one")
    return JobAtMoment(job, history, None)


async def added(asked: ApiRequest, handle: JobHandle[Any], held: JobAtMoment | None) -> Answer:
    """Return the answer for a job; `held`: the job that had the id before, None if it was added now."""
    trace = (asked.trace or own_trace(handle.queue, handle.id)) if held is None else held.job.trace
    ended = await _ended(asked, handle)
    value = JobEnqueued(
        id=handle.id,
        queue=handle.queue,
        created=handle.created,
        sequence=handle.sequence,
        trace_id=trace_id(trace),
        job=msgspec.UNSET if ended is None else ended,
    )
    status = 202 if handle.created and ended is None else 200
    location = {"location": f"/v1/jobs/{handle.queue}/{handle.id}"}
    return Answer(value=value, status=status, headers=location)


async def _ended(asked: ApiRequest, handle: JobHandle[Any]) -> JobShown | None:
    """Return the job if it ended while its asker waited and may be seen by them; else None."""
    if asked.wait_s is None:
        return None
    # A key that is bound to tasks may begin a graph, but may not see the graph's own job.
    with contextlib.suppress(JobNotFoundError):
        async with asked.waiting(asked.wait_s):
            await wait_for_end(asked.gateway.feed, asked.gateway.ledger, handle.ref)
            if asked.principal.may("view", handle.queue):
                return await shown(asked, await read_job(asked, handle.queue, handle.id))
    return None
