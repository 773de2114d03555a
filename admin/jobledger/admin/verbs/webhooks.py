"""Webhook verbs: list and show webhooks that go out, pause, resume and remove one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from jobledger.admin.hooks.webhooks import (
    ShownWebhook,
    WebhookInfo,
    Webhooks,
    info_of,
    list_webhooks,
    show_webhook,
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
from jobledger.ledger.model.hooks.webhook import Pause, Remove, Resume, WebhookCommand
from jobledger.ledger.webhooks.changes import change_webhook

Name = Annotated[str, option("The webhook's name.", "NAME")]
_WRITES: Final = ("LEDGER_FULL", "LEDGER_BUSY", "JOB_INVALID_INPUT", "NOT_FOUND")


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
    """Let events match again, of a webhook that was paused or disabled."""

    name: Name
    reason: Reason = ""

    async def do(self, place: Place) -> WebhookInfo:
        """Resume it. Raises: as `change_webhook`, and RefusedError for one that is active."""
        return await _change(place, self.name, Resume(reason=self.reason))

    def say(self, found: WebhookInfo) -> Iterator[Told]:
        """Say that it is active, and how what it missed is sent."""
        yield webhook_words(found)
        yield Note(
            f"what it missed meanwhile: jobledger webhooks redeliver {found.webhook} --since TIME --plan"
        )


def webhook_words(found: WebhookInfo) -> str:
    """Return a sentence on what a webhook does."""
    return f"webhook {found.webhook} is {found.status}: {found.sends} to {found.to}"
