"""Webhooks that go out: what they do, what became of their deliveries, and sending again what was missed."""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.admin.hooks.webhooks import (
    KEEP_OLD_S,
    RedeliveryResult,
    WebhookInfo,
    put_webhook,
    redeliver_events,
    rotate_webhook,
    try_webhook,
)
from jobledger.admin.lists.jobs import JobPage, list_jobs
from jobledger.gateway.api.pagination import READ, looking, next_page
from jobledger.gateway.api.parameters import Limit, Look, Text, WithReason, aware
from jobledger.gateway.hooks.references import require_secrets, require_webhook
from jobledger.gateway.http.asked import ApiRequest
from jobledger.gateway.http.endpoint import Answer, Endpoint
from jobledger.ledger.model.hooks.definition import Format, Part, WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.references import is_reference
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE
from jobledger.ledger.webhooks.changes import find_webhook
from jobledger.ledger.webhooks.redelivery import Only
from jobledger.projections import JobFilter, SaidFilter


class GivenTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where events go: a URL, or a task and its queue."""

    url: str = ""
    task: str = ""
    queue: str = ""  #: of the task's jobs; "": default


class GivenWebhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a webhook is to do."""

    target: GivenTarget
    events: tuple[str, ...]  #: types of events of jobs, and `watch.firing`, `watch.resolved`
    queue: str = ""  #: only events of jobs of this queue
    task: str = ""  #: only events of jobs of this task
    job: str = ""  #: only events of jobs of this id
    secrets: tuple[str, ...] = ()  #: references, the newest first; none: those that it has
    include: tuple[Part, ...] = ()
    format: Format = "standard"
    headers: dict[str, str] = {}
    allow_http: bool = False
    allow_private: bool = False  #: the URL may name an address that is not of the public internet
    reason: Text = ""  #: kept in the ledger with who said so


class Rotating(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new secret."""

    secret: str  #: a reference to it
    keep_old_s: float = KEEP_OLD_S  #: how long the old one signs, too
    reason: Text = ""  #: kept in the ledger with who said so


class Redelivering(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events are sent again."""

    since: datetime
    until: datetime | None = None  #: None: up to now
    only: Only = "failed"  #: those that never arrived, or all
    plan: bool = True  #: tell what would be sent, and send nothing


class TestMade(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was made."""

    queue: str
    id: str


class DeliveriesQuery(Look, frozen=True, kw_only=True):
    """Which page of deliveries."""

    limit: Limit = 50
    after: str | None = None  #: what the page before says as `next`


async def put(asked: ApiRequest, name: str, *, body: GivenWebhook) -> WebhookInfo:
    """Have a webhook do this, whatever it did before; from here on events match."""
    asked.principal.require_everywhere("manage")
    if any(map(is_reference, body.headers.values())):
        # What it refers to is sent to the target, so whoever names both could read the gateway's files.
        asked.principal.require_everywhere("admin")
    given = {
        field: getattr(body, field) for field in body.__struct_fields__ if field not in {"target", "reason"}
    }
    target = WebhookTarget(url=body.target.url, task=body.target.task, queue=body.target.queue)
    definition = WebhookDefinition(target=target, **given)
    return await put_webhook(
        asked.gateway.ledger,
        name,
        definition,
        reason=body.reason,
        by=asked.principal.name,
        require=functools.partial(require_webhook, asked.principal, asked.gateway.secrets),
    )


async def rotate(asked: ApiRequest, name: str, *, body: Rotating) -> WebhookInfo:
    """Sign with another secret; the one before signs, too, for a time."""
    asked.principal.require_everywhere("manage")
    require_secrets(asked.principal, asked.gateway.secrets, [body.secret])
    return await rotate_webhook(
        asked.gateway.ledger,
        name,
        body.secret,
        keep_old_s=body.keep_old_s,
        reason=body.reason,
        by=asked.principal.name,
    )


async def test(asked: ApiRequest, name: str) -> Answer:
    """Make a job that posts a message of type `webhook.test`; its result says what the receiver answered."""
    asked.principal.require_everywhere("manage")
    ref = (await try_webhook(asked.gateway.ledger, name, by=asked.principal.name)).ref
    location = f"/v1/jobs/{ref.queue}/{ref.job_id}"
    return Answer(value=TestMade(queue=ref.queue, id=ref.job_id), headers={"location": location})


async def redeliver(asked: ApiRequest, name: str, *, body: Redelivering) -> RedeliveryResult:
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


def _endpoint(method: Any, path: str, handler: Any, summary: str, returns: Any, **more: Any) -> Endpoint:
    given: dict[str, Any] = {"permission": "view", "tag": "webhooks", **more}
    return Endpoint(
        method=method, path=f"/v1/webhooks{path}", handler=handler, summary=summary, returns=returns, **given
    )


_LOOK: Final = ("NOT_FOUND", "LEDGER_DAMAGED")
_PUT: Final = ("LEDGER_FULL", "LEDGER_BUSY", "JOB_INVALID_INPUT")
_ACT: Final = (*_PUT, "NOT_FOUND", "REFUSED")
_REASONED: Final[dict[str, Any]] = {"permission": "manage", "body": WithReason, "problems": _ACT}

ENDPOINTS: Final = (
    _endpoint(
        "PUT",
        "/{name}",
        put,
        "Have a webhook do something",
        WebhookInfo,
        permission="manage",
        body=GivenWebhook,
        problems=_PUT,
    ),
    _endpoint(
        "POST",
        "/{name}/rotate",
        rotate,
        "Sign with another secret",
        WebhookInfo,
        **{**_REASONED, "body": Rotating},
    ),
    _endpoint(
        "POST",
        "/{name}/test",
        test,
        "Post a message to the receiver, to see what it answers",
        TestMade,
        permission="manage",
        status=202,
        problems=_ACT,
    ),
    _endpoint(
        "POST",
        "/{name}/redeliver",
        redeliver,
        "Send events of the past again",
        RedeliveryResult,
        **{**_REASONED, "body": Redelivering},
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
