"""Acts of a person on the whole ledger."""

from __future__ import annotations

from jobledger.gateway.acts.verification import begin_check
from jobledger.gateway.pages.html import address
from jobledger.gateway.pages.page import SentForm


async def check_ledger(sent: SentForm) -> str:
    """Begin a check of the whole ledger. Raises: ProblemError, and as `Ledger.enqueue`."""
    sent.principal.require_everywhere("manage")
    made = await begin_check(sent.gateway.ledger, sent.principal.name)
    return address(f"/jobs/{made.queue}/{made.id}")
