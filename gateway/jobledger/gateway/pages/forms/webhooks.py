"""What a person does to a webhook beside its verbs: have one message sent."""

from __future__ import annotations

from jobledger.admin.hooks.webhooks import try_webhook
from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import SentForm


async def test_webhook(sent: SentForm, name: str) -> str:
    """Have a webhook's receiver sent one message now. Raises: ProblemError, and as `try_webhook`."""
    sent.principal.require_everywhere("manage")
    sent.fields.reason()
    made = await try_webhook(sent.gateway.ledger, name, by=sent.principal.name)
    return address(f"/jobs/{made.ref.queue}/{made.id}")
