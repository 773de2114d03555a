"""One job: what it is now, or was at a moment of the past."""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.admin.find import find_job
from jobledger.admin.past import events_until
from jobledger.admin.views import JobDetails, job_details
from jobledger.gateway.api.asking import Past
from jobledger.gateway.http.asked import Asked
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.ledger.model.chain import fold

_HIDDEN: Final = "hidden: this key lacks the permission 'payloads'"


async def show_job(asked: Asked, queue: str, id: str, *, query: Past) -> Answer:  # noqa: A002 - as in the address
    """Show a job with its attempts and every event, read from its chain and so never stale."""
    return await _shown(asked, id, queue, query)


async def show_job_by_id(asked: Asked, id: str, *, query: Past) -> Answer:  # noqa: A002 - as in the address
    """Show the only job of this id."""
    return await _shown(asked, id, None, query)


async def _shown(asked: Asked, job_id: str, queue: str | None, query: Past) -> Answer:
    gateway, past = asked.gateway, query.as_of()
    ledger = gateway.ledger
    history = await (await find_job(gateway.rows, job_id, queue)).history()
    if past is not None:
        history = events_until(history, await past.moment(ledger.log, ledger.clock))
    job = fold(history).job
    assert job is not None, "a history is not empty"
    asked.principal.require("view", job.queue, job.task)
    details = await job_details(ledger, job, history)
    if not asked.principal.may("payloads"):
        details = msgspec.structs.replace(details, input=_HIDDEN, result=_HIDDEN)
    return Answer(value=details, etag=str(details.last_sequence))


_PROBLEMS: Final = ("JOB_NOT_FOUND", "AMBIGUOUS_ID", "ARCHIVED")

ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/v1/jobs/{queue}/{id}",
        permission="view",
        handler=show_job,
        summary="Show a job with its attempts and every event",
        tag="jobs",
        query=Past,
        returns=JobDetails,
        problems=_PROBLEMS,
    ),
    Endpoint(
        method="GET",
        path="/v1/jobs/{id}",
        permission="view",
        handler=show_job_by_id,
        summary="Show the only job of an id",
        tag="jobs",
        query=Past,
        returns=JobDetails,
        problems=_PROBLEMS,
    ),
)
