"""Acts that pages offer on schedules, queues, limits, webhooks, deliveries and graphs: each is accepted in each state."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

import httpx
import pytest
from tests.support.dashboard import Form, Forms
from tests.support.schedules import declare

from jobledger.admin.hooks.routes import definition_of, set_route
from jobledger.admin.hooks.webhooks import put_webhook
from jobledger.admin.limits import set_limit
from jobledger.admin.verbs.webhooks import PauseWebhook
from jobledger.ledger import Graph, Ledger, Limit, task
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget

pytestmark = pytest.mark.anyio

#: What a form is filled with that a person has to say.
TYPED: Final = {"name": "x", "reason": "mended", "slots": "9", "minutes": "5"}


@task(queue="mail", limits=(Limit("customer", key="customer", slots=3),))
async def send(customer: str) -> None:
    """Be enqueued only."""


async def _schedules(ledger: Ledger) -> None:
    """One schedule that ticks, one that is paused, one whose moment has passed, one on demand."""
    for name in ("ticks", "paused"):
        await declare(ledger, name, every_s=3_600)
    await declare(ledger, "ended", at=ledger.clock.now() - timedelta(days=1), source="code", code_version="1")
    await ledger.schedules.pause("paused")
    await ledger.schedules.add("demand", send, on_demand=True, input={"customer": "a"})


async def _limits(ledger: Ledger) -> None:
    """One limit of code, one of a person with a key that differs, one that nobody set, one of a queue."""
    await ledger.enqueue(send, customer="acme")
    await set_limit(ledger, "tenant", {"slots": 3}, by="ann")
    await set_limit(ledger, "tenant:initech", {"slots": 0}, by="ann")
    await set_limit(ledger, "customer:acme", {"slots": 1}, by="ann")
    await set_limit(ledger, "queue:mail", {"slots": 4}, by="ann")
    await ledger.enqueue(send.options(limits=("nobodys",)), customer="acme")
    await ledger.pause_queue("night")


async def _hooks(ledger: Ledger) -> None:
    """Webhooks to a URL and to a task, active and paused; deliveries with and without body, and of a route that is gone."""
    for name, target in (
        ("url", WebhookTarget(url="https://shop.example/hooks")),
        ("task", WebhookTarget(task="tell", queue="mail")),
    ):
        for state in ("on", "off"):
            signed = ("env:X",) if target.url else ()
            definition = WebhookDefinition(
                target=target, events=("completed",), queue="billing", secrets=signed
            )
            await put_webhook(ledger, f"{name}-{state}", definition, by="ann")
        await ledger.do(PauseWebhook(name=f"{name}-off"))
    rules = [{"name": "all", "task": "tell", "queue": "mail"}]
    for name, days in (("kept", 7), ("short", 0), ("gone", 7)):
        route = definition_of({"scheme": "internal", "rules": rules, "keep_bodies_days": days})
        await set_route(ledger, name, route, by="ann")
        await ledger.emit(name, {"to": "bob"}, by="ann", id=f"d-{name}")
    await ledger.routes.remove("gone", by="ann")


async def _refusal(http: httpx.AsyncClient, form: Form) -> str:
    """Send a form as somebody who filled it in; return what is wrong with the answer, "" for nothing."""
    typed = {**TYPED, "limit": "new"}
    sent = {key: value or typed.get(key, "") for key, value in form.fields.items()}
    answer = await http.post(form.action, data=sent)
    said = re.sub(r"<[^>]*>|\s+", " ", answer.text.partition("<main")[2])
    return "" if answer.status_code == 303 else f"{form.action}: {answer.status_code} {said[:300]}"


async def _offered(http: httpx.AsyncClient, page: str) -> dict[str, Form]:
    """Return the acts on a page, by their address and the limit that they are about."""
    forms = Forms((await http.get(page)).text).found
    posts = (each for each in forms if each.method == "post" and each.action.startswith(page))
    return {f"{each.action} {each.fields.get('limit', '')}".strip(): each for each in posts}


async def test_what_pages_offer_is_accepted(http: httpx.AsyncClient, ledger: Ledger) -> None:
    """Each act is done once, on the page as those before it left it."""
    await _schedules(ledger)
    await _limits(ledger)
    await _hooks(ledger)
    graph = Graph("receipts")
    graph.add(send.options(limits=()), customer="acme")
    await ledger.graphs.put(graph, by="ann")
    done: dict[str, str] = {}
    for page in ("/schedules", "/queues", "/limits", "/webhooks", "/graphs"):
        while left := [(key, form) for key, form in (await _offered(http, page)).items() if key not in done]:
            key, form = left[0]
            done[key] = await _refusal(http, form)
    assert [each for each in done.values() if each] == []
    assert len(done) > 30
    of_hooks = {each for each in done if each.endswith(("/test", "/retry"))}
    assert of_hooks == {"/webhooks/url-on/test", "/webhooks/url-off/test", "/webhooks/in/kept/d-kept/retry"}
