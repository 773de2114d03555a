"""Webhooks that go out: their deliveries, and sending missed events again."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from jobledger.admin.hooks.webhooks import (
    RedeliveryResult,
    redeliver_events,
)
from jobledger.admin.lists.jobs import JobPage, list_jobs
from jobledger.gateway.api.pagination import READ, looking, next_page
from jobledger.gateway.api.parameters import Limit, Look, aware
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, endpoint_maker
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE
from jobledger.ledger.webhooks.changes import find_webhook
from jobledger.ledger.webhooks.redelivery import Only
from jobledger.projections import JobFilter, SaidFilter


class RedeliveryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A choice of events to send again."""

    since: datetime
    until: datetime | None = None  #: None: up to now
    only: Only = "failed"  #: only events that never arrived, or all
    plan: bool = True  #: show what would be sent, and send nothing


class DeliveriesQuery(Look, frozen=True, kw_only=True):
    """A page of deliveries."""

    limit: Limit = 50
    after: str | None = None  #: `next` of the previous page


async def redeliver(asked: ApiRequest, name: str, *, body: RedeliveryRequest) -> RedeliveryResult:
    """Send events of a range of time again; unless `plan` is false, tell what would be sent."""
    asked.principal.require_everywhere("manage")
    since = aware("since", body.since)
    assert since is not None, "it is required"
    return await redeliver_events(
        asked.gateway.ledger,
        name,
        since=since,
        until=aware("until", body.until),
        only=body.only,
        plan=body.plan,
    )


async def deliveries(asked: ApiRequest, name: str, *, query: DeliveriesQuery) -> Answer:
    """List the jobs that a webhook made, the newest first."""
    asked.principal.require_everywhere("view")
    webhook = await find_webhook(asked.gateway.ledger.log, name)
    queue = webhook.definition.target.queue or DELIVERIES_QUEUE
    chosen = JobFilter(queue=queue, said=SaidFilter(created_by=f"webhook:{name}"))
    async with looking(asked, query) as (view, _):
        page = await list_jobs(view, chosen, cursor=query.after, limit=query.limit)
    return Answer(value=page, headers=next_page(asked, page.next))


_endpoint: Final = endpoint_maker("webhooks", under="/v1/webhooks", permission="view")

_LOOK: Final = ("NOT_FOUND", "LEDGER_DAMAGED")

ENDPOINTS: Final = (
    _endpoint(
        "POST",
        "/{name}/redeliver",
        redeliver,
        "Send events of the past again",
        RedeliveryResult,
        permission="manage",
        body=RedeliveryRequest,
        problems=("LEDGER_FULL", "LEDGER_BUSY", "JOB_INVALID_INPUT", "NOT_FOUND", "REFUSED"),
    ),
    _endpoint(
        "GET",
        "/{name}/deliveries",
        deliveries,
        "List the jobs that a webhook made",
        JobPage,
        query=DeliveriesQuery,
        problems=(*_LOOK, *READ, "JOB_INVALID_INPUT", "CURSOR_MISMATCH"),
    ),
)
