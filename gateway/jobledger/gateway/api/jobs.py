"""One job, now or at a past moment: its state, events, trail, obstacles, input and result."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import msgspec

from jobledger.admin import acts
from jobledger.admin.archived import payload_places
from jobledger.admin.objects.jobs import (
    CheckedChain,
    JobName,
    JobShown,
    TrailShown,
    WhyShown,
    checked,
    trail_shown,
    why_shown,
)
from jobledger.admin.views import AttemptView, attempt_views, event_fields
from jobledger.audit.trail import trail_of
from jobledger.audit.verify.links import check_history
from jobledger.audit.verify.payloads import states_of
from jobledger.gateway.api.events import stream_job
from jobledger.gateway.api.one_job import PROBLEMS, JobAtMoment, read_job, shown
from jobledger.gateway.api.parameters import Past
from jobledger.gateway.events import sse
from jobledger.gateway.events.waits import wait_for_end
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, Raw, StreamedAnswer, endpoint_maker
from jobledger.gateway.http.headers import Header
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.remedies import hint_over_http
from jobledger.gateway.visibility import facts_for
from jobledger.ledger.model.events import Completed, PayloadRef
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.rights.marks import hidden_from
from jobledger.ledger.nats.attempt_logs import JobLogs
from jobledger.ledger.nats.payloads import Payloads

_FRESH: Final = {"cache-control": "private, no-cache"}
_SUCCESSORS_MAX: Final = 1_000


class JobEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a job, the oldest first, without inputs, results and checkpoints."""

    items: list[dict[str, Any]]
    chain: CheckedChain  #: whether their hash links hold


class JobAttempts(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of a job, the first one first."""

    items: list[AttemptView]


async def show_job(asked: ApiRequest, queue: str, id: str, *, query: Past) -> Answer:  # noqa: A002 - as in the address
    """Show a job with its attempts and every event, read from its chain, so never stale."""
    return await _shown(asked, queue, id, query)


async def show_job_by_id(asked: ApiRequest, id: str, *, query: Past) -> Answer:  # noqa: A002 - as in the address
    """Show the only job of this id."""
    return await _shown(asked, None, id, query)


async def _shown(asked: ApiRequest, queue: str | None, job_id: str, query: Past) -> Answer:
    held = await _ended(asked, await read_job(asked, queue, job_id, query), query)
    etag = str(held.job.last_sequence)
    if asked.has(etag):
        return Answer(etag=etag, headers=_FRESH)
    return Answer(value=await shown(asked, held), etag=etag, headers=_FRESH)


async def _ended(asked: ApiRequest, held: JobAtMoment, query: Past) -> JobAtMoment:
    """Wait for the end of a job if that was asked for; return the job as it is then."""
    if asked.wait_s is None or held.then is not None or held.job.is_final:
        return held
    async with asked.waiting(asked.wait_s):
        await wait_for_end(asked.gateway.feed, asked.gateway.ledger, held.ref)  # else it is shown as it is
    return await read_job(asked, held.job.queue, held.job.id, query)


async def list_job_events(asked: ApiRequest, queue: str, id: str, *, query: Past) -> Answer | StreamedAnswer:  # noqa: A002
    """List the events of a job; with `Accept: text/event-stream` stream them until the job has ended."""
    held = await read_job(asked, queue, id, query)
    if sse.MEDIA in asked.header("accept"):
        return await stream_job(asked, held)
    check = await check_history(asked.gateway.ledger.log, held.history)
    hidden = hidden_from(asked.principal)
    value = JobEvents(items=[event_fields(stored, hidden) for stored in held.history], chain=checked(check))
    return Answer(value=value, etag=str(held.job.last_sequence), headers=_FRESH)


async def list_attempts(asked: ApiRequest, queue: str, id: str, *, query: Past) -> Answer:  # noqa: A002
    """List the attempts of a job."""
    held = await read_job(asked, queue, id, query)
    value = JobAttempts(items=attempt_views(held.job))
    return Answer(value=value, etag=str(held.job.last_sequence), headers=_FRESH)


async def tell_trail(asked: ApiRequest, queue: str, id: str, *, query: Past) -> TrailShown:  # noqa: A002
    """Tell the history of a job: who did what and when, what the job waited for and how long."""
    ledger, held = asked.gateway.ledger, await read_job(asked, queue, id, query)
    check = await check_history(ledger.log, held.history)
    states = await states_of(payload_places(ledger, ledger.log), held.history)
    now = ledger.clock.now() if held.then is None else held.then.at or held.history[-1].stored_at
    return trail_shown(held.history, trail_of(held.history, now=now, states=states), check)


async def tell_why(asked: ApiRequest, queue: str, id: str, *, query: Past) -> WhyShown:  # noqa: A002
    """Say what a job waits for, since when, and which event says so."""
    await read_job(asked, queue, id, query)
    found = await acts.why(
        asked.gateway.rows,
        id,
        queue,
        past=query.as_of(),
        narrowed=facts_for(asked.principal),
        opens=asked.principal.may("payloads"),
    )
    return _with_requests(why_shown(found.job, found.why), found.job.queue)


def _with_requests(why: WhyShown, queue: str) -> WhyShown:
    """Return the answer with HTTP requests in place of commands."""
    replace = msgspec.structs.replace
    waits = tuple(replace(each, hint=hint_over_http(each.hint, queue)) for each in why.waits)
    return replace(why, hint=hint_over_http(why.hint, queue), waits=waits)


async def get_input(asked: ApiRequest, queue: str, id: str, *, query: Past) -> Raw:  # noqa: A002
    """Return the input of a job as JSON."""
    job = (await read_job(asked, queue, id, query, "payloads")).job
    return await _value(
        asked, asked.gateway.ledger.inputs, job.order.input, job.order.input_ref, job.order.key
    )


async def get_result(asked: ApiRequest, queue: str, id: str, *, query: Past) -> Raw | Answer:  # noqa: A002
    """Return a job's result as JSON; for a run that was continued in other runs, the result of the last one."""
    ledger = asked.gateway.ledger
    held = await _ended(asked, await read_job(asked, queue, id, query, "payloads"), query)
    for _ in range(_SUCCESSORS_MAX):
        ended = held.history[-1].event
        if not isinstance(ended, Completed) or not ended.successor:
            break
        held = await read_job(asked, queue, ended.successor, query, "payloads")
        held = await _ended(asked, held, query)
    job = held.job
    if not job.is_final:
        waits = JobName(id=job.id, queue=job.queue, status=job.state.value)
        return Answer(value=waits, status=202, headers={"retry-after": "1"})
    if job.state is not JobState.COMPLETED:
        raise _no_result(job)
    results = ledger.results if job.order.member is None else ledger.inputs
    return await _value(asked, results, job.result, job.result_ref, job.order.key)


async def _value(
    asked: ApiRequest, store: Payloads, value: msgspec.Raw, ref: PayloadRef | None, key: str
) -> Raw:
    text = await asked.gateway.ledger.patience.read(lambda: store.get(value, ref, key=key))
    return Raw(data=text or b"null", headers=_FRESH)


def _no_result(job: Job) -> ProblemError:
    if job.state is not JobState.DEAD_LETTERED:
        why = f": {job.cancel_reason}" if job.cancel_reason else ""
        return ProblemError("JOB_CANCELLED", f"job {job.id} was {job.state.value}{why}")
    error = job.error
    said = "no reason is recorded" if error is None else f"{error.type}: {error.message}"
    return ProblemError(
        "JOB_EXECUTION_ERROR",
        f"job {job.id} failed: {said}",
        type=None if error is None else error.type,
        message=None if error is None else error.message,
        attempt=job.attempts[-1].number if job.attempts else 0,
    )


class LogsAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choice of log lines; all lines if nothing is given."""

    attempt: Annotated[int, msgspec.Meta(ge=1)] | None = None  #: from 1
    step: str | None = None  #: key of a run's step


async def get_logs(asked: ApiRequest, queue: str, id: str, *, query: LogsAsked) -> Answer:  # noqa: A002
    """Return the log lines of a job's attempts, as far as they are kept."""
    held = await read_job(asked, queue, id, permission="payloads")
    handle = asked.gateway.ledger.handle_of(held.ref)
    return Answer(value=await handle.logs(attempt=query.attempt, step=query.step), headers=_FRESH)


_JOB: Final = "/v1/jobs/{queue}/{id}"


_read: Final = partial(endpoint_maker("jobs", permission="view", query=Past, problems=PROBLEMS), "GET")

_KNOWN: Final[tuple[Header, ...]] = ("If-None-Match",)
_VALUE: Final = {"permission": "payloads", "problems": (*PROBLEMS, "PAYLOAD_GONE")}
_RESULT: Final = {
    "heeds": ("Prefer",),
    "permission": "payloads",
    "also": (202,),
    "problems": (*PROBLEMS, "PAYLOAD_GONE", "JOB_CANCELLED", "JOB_EXECUTION_ERROR"),
}

ENDPOINTS: Final = (
    _read(
        _JOB,
        show_job,
        "Show a job with its attempts and every event",
        JobShown,
        heeds=(*_KNOWN, "Prefer"),
    ),
    _read(
        "/v1/jobs/{id}",
        show_job_by_id,
        "Show the only job of an id",
        JobShown,
        heeds=(*_KNOWN, "Prefer"),
        problems=(*PROBLEMS, "AMBIGUOUS_ID"),
    ),
    _read(
        f"{_JOB}/events",
        list_job_events,
        "List the events of a job, or stream them until it has ended",
        JobEvents,
        also=(204,),
        heeds=(*_KNOWN, "Last-Event-ID"),
        problems=(*PROBLEMS, "BUSY"),
    ),
    _read(f"{_JOB}/attempts", list_attempts, "List the attempts of a job", JobAttempts, heeds=_KNOWN),
    _read(f"{_JOB}/trail", tell_trail, "Tell what happened to a job", TrailShown),
    _read(f"{_JOB}/why", tell_why, "Say what a job waits for", WhyShown),
    _read(f"{_JOB}/input", get_input, "Return the input of a job", Any, **_VALUE),
    _read(
        f"{_JOB}/logs",
        get_logs,
        "Return what the attempts of a job logged",
        JobLogs,
        permission="payloads",
        query=LogsAsked,
    ),
    _read(f"{_JOB}/result", get_result, "Return the result of a job", Any, **_RESULT),
)
