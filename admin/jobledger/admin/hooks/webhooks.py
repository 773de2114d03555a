"""What a person does with webhooks: set, list, show, rotate and test them, and send events again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
import uuid_utils

from jobledger.admin.events.changes import Change, state_and_changes
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.client import Ledger
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.chain import EMPTY_CHAIN, link
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.hooks.definition import (
    WebhookDefinition,
    WebhookTarget,
    filter_words,
    target_words,
)
from jobledger.ledger.model.hooks.errors import WebhookNotFoundError
from jobledger.ledger.model.hooks.references import reference_words
from jobledger.ledger.model.hooks.webhook import (
    WEBHOOK,
    Rotate,
    SetWebhook,
    Status,
    Webhook,
    WebhookCommand,
)
from jobledger.ledger.model.named_chain import newest
from jobledger.ledger.model.subjects import DELIVERIES_QUEUE, JobRef, check_token
from jobledger.ledger.webhooks.changes import change_webhook, find_webhook, update_webhook
from jobledger.ledger.webhooks.deliveries import DELIVER, DeliverInput
from jobledger.ledger.webhooks.redelivery import Only, Plan, plan_redelivery, redeliver

_TEST_TIMEOUT_S: Final = 60.0
KEEP_OLD_S: Final = 24 * 3600.0


class WebhookInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as it stands. Of a sealed secret it only says that there is one."""

    webhook: str  #: its name
    status: Status
    definition: WebhookDefinition
    sends: str  #: which events, in words
    to: str  #: where, in words
    failing_since: Moment | None  #: time since which all its deliveries failed
    changed_at: Moment  #: when its newest event was appended
    changed_by: str
    reason: str  #: why, as that person or the gateway said
    sequence: int  #: stream sequence of that event


class Webhooks(msgspec.Struct, frozen=True, kw_only=True):
    """The webhooks that are set, by name."""

    items: list[WebhookInfo]


class ShownWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook, and how it became so."""

    info: WebhookInfo
    history: tuple[Change, ...]  #: the newest first


class RedeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a redelivery sends, or would."""

    webhook: str
    only: Only
    matched: int  #: events of the range that the webhook asks for
    delivered: int  #: how many of these had arrived
    under_way: int  #: how many of these are still being delivered; they are not sent once more
    owed: int  #: how many of these are to be sent
    first: int | None  #: stream sequence of the first one to be sent
    last: int | None  #: stream sequence of the last one to be sent
    made: int | None  #: how many jobs were made for it; None: it is a plan


async def put_webhook(
    ledger: Ledger,
    name: str,
    definition: WebhookDefinition,
    *,
    reason: str = "",
    by: str,
    require: Callable[[WebhookDefinition | None, WebhookDefinition], None] | None = None,
) -> WebhookInfo:
    """Set a webhook's definition; a definition without secrets keeps those that the webhook has.

    `require` raises to refuse a change: it gets the definition before, None for a webhook that is not set, and after.

    Raises: InvalidInputError, InvalidTokenError, LedgerFullError, ServerUnreachableError; what `require` raises.
    """
    definition = msgspec.structs.replace(definition, target=await _with_queue(ledger, definition.target))

    def wish(before: Webhook | None) -> WebhookCommand:
        wanted = definition
        if before is not None and wanted.target.url and not wanted.secrets:
            kept = before.definition
            wanted = msgspec.structs.replace(
                wanted, secrets=kept.secrets, old_secret_until=kept.old_secret_until
            )
        if require is not None:
            require(None if before is None else before.definition, wanted)
        return SetWebhook(definition=wanted, reason=reason)

    return info_of(await update_webhook(ledger, name, wish, by=by))


async def set_webhook(
    ledger: Ledger, name: str, changes: Mapping[str, Any], *, reason: str = "", by: str
) -> WebhookInfo:
    """Change some of what a webhook does, or make one; what `changes` does not name stays as it is.

    `changes`: fields of `WebhookDefinition`. A target that is a task takes secrets and headers away.

    Raises: InvalidInputError, InvalidTokenError, LedgerFullError, ServerUnreachableError.
    """
    if "target" in changes:
        changes = {**changes, "target": await _with_queue(ledger, changes["target"])}

    def wish(before: Webhook | None) -> WebhookCommand:
        base = WebhookDefinition(target=WebhookTarget()) if before is None else before.definition
        if changes.get("secrets"):
            base = msgspec.structs.replace(base, old_secret_until=None)
        if "target" in changes and changes["target"].task:
            base = msgspec.structs.replace(
                base, secrets=(), old_secret_until=None, headers={}, allow_http=False, allow_private=False
            )
        return SetWebhook(definition=msgspec.structs.replace(base, **changes), reason=reason)

    return info_of(await update_webhook(ledger, name, wish, by=by))


async def _with_queue(ledger: Ledger, target: WebhookTarget) -> WebhookTarget:
    """Return a target; if it is a task without a queue, with the queue that a worker announced for it."""
    if not target.task or target.queue:
        return target
    known = await ledger.find_task(check_token("task name", target.task))
    return target if known is None else msgspec.structs.replace(target, queue=known.queue)


async def rotate_webhook(
    ledger: Ledger, name: str, secret: str, *, keep_old_s: float = KEEP_OLD_S, reason: str = "", by: str
) -> WebhookInfo:
    """Sign with another secret, named by a reference; the one before signs, too, for `keep_old_s` seconds.

    Raises: WebhookNotFoundError, RefusedError for a secret that signs already, InvalidInputError for what is no
        reference, LedgerFullError, ServerUnreachableError.
    """
    command = Rotate(secret=secret, keep_old_s=keep_old_s, reason=reason)
    return info_of(await change_webhook(ledger, name, command, by=by))


async def list_webhooks(ledger: Ledger) -> list[WebhookInfo]:
    """Return the webhooks that are set, by name, as the ledger says. Raises: CorruptLedgerError, UnreachableError."""
    found = sorted((await newest(ledger.log, WEBHOOK)).items())
    return [info_of(each) for _, each in found if each.status != "removed"]


async def show_webhook(ledger: Ledger, name: str) -> ShownWebhook:
    """Return a webhook as its chain says now, and its newest events.

    Raises: WebhookNotFoundError for one that was never set, InvalidTokenError, UnreachableError.
    """
    check_token("webhook name", name)
    missing = WebhookNotFoundError(name)
    state, history = await state_and_changes(ledger.log, WEBHOOK, name, missing=missing)
    return ShownWebhook(info=info_of(state), history=history)


async def try_webhook(ledger: Ledger, name: str, *, by: str) -> JobHandle[Any]:
    """Make a job that posts a message of type `webhook.test`, once, also for a webhook that is paused or disabled.

    A gateway has to run: its worker has the secrets, and its result says what the receiver answered.

    Raises: WebhookNotFoundError, RefusedError for a webhook whose target is a task, LedgerFullError, UnreachableError.
    """
    webhook = await find_webhook(ledger.log, name)
    if not webhook.definition.target.url:
        raise RefusedError(f"webhook {name} makes jobs of task {webhook.definition.target.task}: enqueue one")
    ref = JobRef(queue=DELIVERIES_QUEUE, job_id=f"{name}-test-{uuid_utils.uuid7().hex[-12:]}")
    text = msgspec.json.encode(DeliverInput(name, 0))
    order = Order(
        input=msgspec.Raw(text), max_attempts=1, timeout_s=_TEST_TIMEOUT_S, notify=ledger.hints.inbox
    )
    with acting_for(None):  # a job of the ledger's own: the caller's rights were checked before
        first = decide(None, Enqueue(ref=ref, task=DELIVER, order=order), ledger.stamp(by))
    sequence = await ledger.log.append(link(EMPTY_CHAIN, first, ledger.names).entries)
    return ledger.handle_of(ref, created=True, sequence=sequence)


async def redeliver_events(
    ledger: Ledger,
    name: str,
    *,
    since: datetime,
    until: datetime | None = None,
    only: Only = "failed",
    plan: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> RedeliveryResult:
    """Send events of a range of time again, those that never arrived or all of them; `plan`: say what would be sent.

    Deliveries under way are left to their own attempts. A repeated call does not send them twice.

    Raises: WebhookNotFoundError, RefusedError for a webhook that is not active, InvalidInputError, SequenceGapError
        for events in an archive, LedgerFullError, UnreachableError.
    """
    webhook = await find_webhook(ledger.log, name)
    planned = await plan_redelivery(ledger, webhook, since=since, until=until, only=only)
    made = None if plan else await redeliver(ledger, webhook, planned, on_progress=on_progress)
    return _redelivered(planned, only, made)


def _redelivered(plan: Plan, only: Only, made: int | None) -> RedeliveryResult:
    ends = [plan.owed[0].sequence, plan.owed[-1].sequence] if plan.owed else [None, None]
    return RedeliveryResult(
        webhook=plan.webhook,
        only=only,
        matched=plan.matched,
        delivered=plan.delivered,
        under_way=plan.under_way,
        owed=len(plan.owed),
        first=ends[0],
        last=ends[1],
        made=made,
    )


def info_of(webhook: Webhook) -> WebhookInfo:
    """Return a webhook as a person sees it."""
    terms = webhook.definition
    shown = msgspec.structs.replace(terms, secrets=tuple(map(reference_words, terms.secrets)))
    return WebhookInfo(
        webhook=webhook.name,
        status=webhook.status,
        definition=msgspec.structs.replace(
            shown, headers={name: reference_words(value) for name, value in terms.headers.items()}
        ),
        sends=filter_words(terms),
        to=target_words(terms.target),
        failing_since=webhook.failing_since,
        changed_at=webhook.at,
        changed_by=webhook.by,
        reason=webhook.reason,
        sequence=webhook.sequence,
    )
