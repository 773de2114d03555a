"""The page of webhooks: what comes in, what goes out, and what is watched."""

from __future__ import annotations

import re

import httpx
import pytest

from jobledger.admin.hooks.routes import definition_of, set_route
from jobledger.admin.hooks.webhooks import put_webhook, show_webhook
from jobledger.ledger import Ledger
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.hooks.watch import SetWatch, WatchDefinition
from jobledger.ledger.webhooks.changes import change_watch

pytestmark = pytest.mark.anyio
HOSTILE = "<script>alert(1)</script>"


async def test_the_page_of_webhooks_shows_them_and_acts_on_them(
    http: httpx.AsyncClient, ledger: Ledger
) -> None:
    target = WebhookTarget(task="tell", queue="mail")
    told = WebhookDefinition(target=target, events=("completed",), queue="billing")
    await put_webhook(ledger, "ends", told, reason=HOSTILE, by="ann")
    await change_watch(
        ledger, "deep", SetWatch(definition=WatchDefinition(figure="depth", above=10)), by="ann"
    )
    rules = [{"name": "all", "task": "send", "queue": "mail", "input": {"to": {"at": "/to"}}}]
    await set_route(ledger, "shop", definition_of({"scheme": "internal", "rules": rules}), by="ann")
    made = await ledger.emit("shop", {"to": "bob"}, by="ann")
    page = (await http.get("/webhooks")).text
    assert "<script>alert" not in page
    for word in ("ends", "deep", "shop", f"/jobs/mail/{made.matched[0].job}"):
        assert word in page, word
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found is not None
    sent = {"token": found[1], "reason": "quiet"}
    assert (await http.post("/webhooks/ends/pause", data=sent)).status_code == 303
    assert (await show_webhook(ledger, "ends")).info.status == "paused"
    again = re.search(r'action="(/webhooks/in/shop/[^"]+/retry)"', page)
    assert again is not None
    assert (await http.post(again[1], data=sent)).status_code == 303
    assert "processed 2 times" in (await http.get("/webhooks?route=shop")).text
    assert "Nothing was delivered" in (await http.get("/webhooks?unmatched=true")).text
