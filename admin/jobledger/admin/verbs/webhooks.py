"""Webhook verbs: set, list and show webhooks that go out, pause, resume, rotate, test and remove one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from jobledger.admin.hooks.webhooks import (
    KEEP_OLD_S,
    ShownWebhook,
    WebhookInfo,
    Webhooks,
    info_of,
    list_webhooks,
    put_webhook,
    rotate_webhook,
    show_webhook,
    try_webhook,
)
from jobledger.admin.verbs.kit import (
    Facts,
    Heading,
    Note,
    Place,
    Reason,
    Table,
    Told,
    Verb,
    option,
    told_changes,
    verb,
)
from jobledger.ledger.model.commands import Remove
from jobledger.ledger.model.hooks.definition import (
    FORMATS,
    PARTS,
    Format,
    Part,
    WebhookDefinition,
    WebhookTarget,
)
from jobledger.ledger.model.hooks.references import is_reference
from jobledger.ledger.model.hooks.webhook import Pause, Resume, WebhookCommand
from jobledger.ledger.webhooks.changes import change_webhook

Name = Annotated[str, option("The webhook's name.", "NAME")]
_WRITES: Final = ("LEDGER_FULL", "LEDGER_BUSY", "JOB_INVALID_INPUT", "NOT_FOUND")


class GivenTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where events go: a URL, or a task and its queue."""

    url: str = ""
    task: str = ""
    queue: str = ""  #: the queue of the task's jobs; "": default


class TestMade(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was made."""

    queue: str
    id: str


async def _change(place: Place, name: str, command: WebhookCommand) -> WebhookInfo:
    return info_of(await change_webhook(place.ledger, name, command, by=place.by))


@verb(
    "webhooks list",
    "GET /v1/webhooks",
    permission="view",
    summary="List the webhooks",
    problems=("LEDGER_DAMAGED",),
    is_list=True,
)
class ListWebhooks(Verb[Webhooks], frozen=True, kw_only=True):
    """List the webhooks: whether they are active, which events go where, and since when one fails."""

    async def do(self, place: Place) -> Webhooks:
        """List them as the ledger says now. Raises: as `list_webhooks`."""
        return Webhooks(items=await list_webhooks(place.ledger))

    def say(self, found: Webhooks) -> Iterator[Told]:
        """Yield a table of them."""
        if found.items:
            yield Table(
                ("webhook!", "status!", "events", "to", "failing since!"),
                [
                    (each.webhook, each.status, each.sends, each.to, each.failing_since)
                    for each in found.items
                ],
            )
        else:
            yield (
                "there is no webhook; make one with "
                "`jobledger webhooks set NAME --to URL --event completed --secret env:NAME`"
            )


@verb(
    "webhooks show",
    "GET /v1/webhooks/{name}",
    permission="view",
    summary="Show a webhook and its history",
    problems=("NOT_FOUND", "LEDGER_DAMAGED"),
)
class ShowWebhook(Verb[ShownWebhook], frozen=True, kw_only=True):
    """Show a webhook: what it does, since when it fails or why it stopped, and who changed it."""

    name: Name

    async def do(self, place: Place) -> ShownWebhook:
        """Read its chain. Raises: as `show_webhook`."""
        return await show_webhook(place.ledger, self.name)

    def say(self, found: ShownWebhook) -> Iterator[Told]:
        """Yield what is known of it, and its changes."""
        info, terms = found.info, found.info.definition
        why = f": {info.reason}" if info.reason and info.status != "active" else ""
        headers = ", ".join(f"{name}: {value}" for name, value in terms.headers.items())
        yield Heading(f"webhook {info.webhook}")
        yield Facts(
            [
                ("status", f"{info.status}{why}"),
                ("events", info.sends),
                ("to", info.to),
                ("includes", ", ".join(terms.include) or None),
                ("format", terms.format if terms.target.url else None),
                ("secrets", ", ".join(terms.secrets) or None),
                ("headers", headers or None),
                ("failing since", info.failing_since),
            ]
        )
        yield from told_changes(found.history)


@verb(
    "webhooks set",
    "PUT /v1/webhooks/{name}",
    permission="manage",
    summary="Have a webhook do something",
    problems=("LEDGER_FULL", "LEDGER_BUSY", "JOB_INVALID_INPUT"),
    has_own_command=True,  # it changes what is named, and may make a secret
)
class SetWebhook(Verb[WebhookInfo], frozen=True, kw_only=True):
    """Set what a webhook does, in place of all it did before; events match from here on."""

    name: Name
    target: Annotated[GivenTarget, option("Where events go.")]
    events: Annotated[
        tuple[str, ...], option("Types of events of jobs, and `watch.firing`, `watch.resolved`.", "TYPE")
    ]
    queue: Annotated[str, option("Only events of jobs of this queue.", "QUEUE")] = ""
    task: Annotated[str, option("Only events of jobs of this task.", "TASK")] = ""
    job: Annotated[str, option("Only events of jobs of this id.", "ID")] = ""
    secrets: Annotated[
        tuple[str, ...], option("References to what signs, the newest first; none: those that it has.", "REF")
    ] = ()
    include: Annotated[tuple[Part, ...], option(f"Send this, too: {', '.join(PARTS)}.", "PART")] = ()
    format: Annotated[Format, option(f"The form of a message: {', '.join(FORMATS)}.", "FORM")] = "standard"
    headers: Annotated[
        dict[str, str], option("Headers to send; a value may be a reference.", "NAME=VALUE")
    ] = msgspec.field(default_factory=dict[str, str])
    allow_http: Annotated[bool, option("Let the URL be without encryption.")] = False
    allow_private: Annotated[
        bool, option("Let the URL name an address that is not of the public internet.")
    ] = False
    reason: Reason = ""

    async def do(self, place: Place) -> WebhookInfo:
        """Set it. Raises: as `put_webhook`; AccessDeniedError for a secret that the caller may not name."""
        if any(map(is_reference, self.headers.values())):
            # A header may name a file of the gateway, whose text is sent to the target: a principal that may choose
            # both could read any file.
            place.principal.require_everywhere("admin")
        given = msgspec.structs.asdict(self)
        name, reason = given.pop("name"), given.pop("reason")
        target = WebhookTarget(**msgspec.structs.asdict(given.pop("target")))
        wanted = WebhookDefinition(target=target, **given)

        def require(before: WebhookDefinition | None, after: WebhookDefinition) -> None:
            # Secrets that it signs with already, for the same target, may stay.
            known = before.secrets if before is not None and before.target == after.target else ()
            place.require_secrets(set(after.secrets) - set(known))

        return await put_webhook(place.ledger, name, wanted, reason=reason, by=place.by, require=require)


@verb(
    "webhooks rotate",
    "POST /v1/webhooks/{name}/rotate",
    permission="manage",
    summary="Sign with another secret",
    problems=(*_WRITES, "REFUSED"),
    has_own_command=True,  # it may make the secret
)
class RotateWebhook(Verb[WebhookInfo], frozen=True, kw_only=True):
    """Sign with another secret; the one before signs, too, for a time."""

    name: Name
    secret: Annotated[str, option("A reference to the new secret: env:NAME or file:/PATH.", "REF")]
    keep_old_s: Annotated[float, option("How long the old one signs, too.", "SPAN")] = KEEP_OLD_S
    reason: Reason = ""

    async def do(self, place: Place) -> WebhookInfo:
        """Rotate it. Raises: as `rotate_webhook`; AccessDeniedError for a secret that the caller may not name."""
        place.require_secrets([self.secret])
        return await rotate_webhook(
            place.ledger,
            self.name,
            self.secret,
            keep_old_s=self.keep_old_s,
            reason=self.reason,
            by=place.by,
        )


@verb(
    "webhooks test",
    "POST /v1/webhooks/{name}/test",
    permission="manage",
    summary="Post a message to the receiver, to see what it answers",
    problems=(*_WRITES, "REFUSED"),
    status=202,
    location="/v1/jobs/{queue}/{id}",
    form="/webhooks/{name}/test",
    then="/jobs/{queue}/{id}",
    has_own_command=True,  # it waits for the receiver's answer
)
class TestWebhook(Verb[TestMade], frozen=True, kw_only=True):
    """Make a job that posts a message of type `webhook.test`; its result says what the receiver answered."""

    name: Name

    async def do(self, place: Place) -> TestMade:
        """Make it. Raises: as `try_webhook`."""
        ref = (await try_webhook(place.ledger, self.name, by=place.by)).ref
        return TestMade(queue=ref.queue, id=ref.job_id)


@verb(
    "webhooks remove",
    "DELETE /v1/webhooks/{name}",
    permission="manage",
    summary="End a webhook",
    problems=_WRITES,
)
class RemoveWebhook(Verb[WebhookInfo], frozen=True, kw_only=True):
    """End a webhook; deliveries that wait are not sent, and its history stays."""

    name: Name
    reason: Reason = ""

    async def do(self, place: Place) -> WebhookInfo:
        """End it. Raises: as `change_webhook`."""
        return await _change(place, self.name, Remove(reason=self.reason))

    def say(self, found: WebhookInfo) -> Iterator[Told]:
        """Say that it is removed."""
        yield webhook_words(found)


@verb(
    "webhooks pause",
    "POST /v1/webhooks/{name}/pause",
    permission="manage",
    summary="Let no event match",
    problems=(*_WRITES, "REFUSED"),
    form="/webhooks/{name}/pause",
    then="/webhooks",
)
class PauseWebhook(Verb[WebhookInfo], frozen=True, kw_only=True):
    """Let no event match and send nothing until it is resumed; what is missed can be redelivered."""

    name: Name
    reason: Reason = ""

    async def do(self, place: Place) -> WebhookInfo:
        """Pause it. Raises: as `change_webhook`, and RefusedError for one that is not active."""
        return await _change(place, self.name, Pause(reason=self.reason))

    def say(self, found: WebhookInfo) -> Iterator[Told]:
        """Say that it is paused."""
        yield webhook_words(found)


@verb(
    "webhooks resume",
    "POST /v1/webhooks/{name}/resume",
    permission="manage",
    summary="Let events match again",
    problems=(*_WRITES, "REFUSED"),
    form="/webhooks/{name}/resume",
    then="/webhooks",
)
class ResumeWebhook(Verb[WebhookInfo], frozen=True, kw_only=True):
    """Let events match a webhook again that was paused or disabled."""

    name: Name
    reason: Reason = ""

    async def do(self, place: Place) -> WebhookInfo:
        """Resume it. Raises: as `change_webhook`, and RefusedError for one that is active."""
        return await _change(place, self.name, Resume(reason=self.reason))

    def say(self, found: WebhookInfo) -> Iterator[Told]:
        """Say that it is active, and how to send events that it missed."""
        yield webhook_words(found)
        yield Note(
            f"what it missed meanwhile: jobledger webhooks redeliver {found.webhook} --since TIME --plan"
        )


def webhook_words(found: WebhookInfo) -> str:
    """Return a sentence on what a webhook does."""
    return f"webhook {found.webhook} is {found.status}: {found.sends} to {found.to}"
