"""JetStream's API as it is on the wire, for tests that meddle with a server or look at more than the product does."""

from __future__ import annotations

from typing import Any

import msgspec

from jobledger.ledger.nats.inbox import Inbox

LIMIT_S = 5.0


async def api(inbox: Inbox, call: str, payload: object) -> dict[str, Any]:
    """Return the server's answer, a refusal under "error"."""
    data, _ = await inbox.ask(f"$JS.API.{call}", payload, timeout_s=LIMIT_S)
    answer: dict[str, Any] = msgspec.json.decode(data)
    return answer
