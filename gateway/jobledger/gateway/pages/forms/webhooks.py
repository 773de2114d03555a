"""What a person does to webhooks and to deliveries."""

from __future__ import annotations

from typing import Final

from jobledger.admin.hooks.routes import retry_delivery
from jobledger.admin.hooks.webhooks import pause_webhook, resume_webhook, try_webhook
from jobledger.gateway.pages.page import Sent
from jobledger.gateway.pages.rendering import address
from jobledger.gateway.problems import ProblemError

#: What a form can do to a webhook.
VERBS: Final = ("pause", "resume", "test")


async def act_on_webhook(sent: Sent, name: str, verb: str) -> str:
    """Pause, resume or test a webhook. Raises: ProblemError, and as those verbs."""
    sent.principal.require_everywhere("manage")
    if verb not in VERBS:
        raise ProblemError("ENDPOINT_NOT_FOUND", f"nobody can {verb[:40]!r} a webhook here")
    ledger, by, reason = sent.gateway.ledger, sent.principal.name, sent.fields.reason()
    match verb:
        case "pause":
            await pause_webhook(ledger, name, reason=reason, by=by)
        case "resume":
            await resume_webhook(ledger, name, reason=reason, by=by)
        case _:
            made = await try_webhook(ledger, name, by=by)
            return address(f"/jobs/{made.ref.queue}/{made.id}")
    return "/webhooks"


async def process_again(sent: Sent, route: str, delivery: str) -> str:
    """Process a delivery again by the rules as they are now. Raises: ProblemError, and as `retry_delivery`."""
    sent.principal.require_everywhere("manage")
    done = await retry_delivery(
        sent.gateway.ledger, route, delivery, reason=sent.fields.reason(), by=sent.principal.name
    )
    if len(done.jobs) == 1:
        return address(f"/jobs/{done.jobs[0].queue}/{done.jobs[0].job}")
    return address("/webhooks", [("route", route)])
