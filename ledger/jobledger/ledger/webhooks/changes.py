"""Who writes webhooks and watches, and how each of them and a route is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.hooks import watch, webhook
from jobledger.ledger.model.hooks.definition import check_webhook_name
from jobledger.ledger.model.hooks.errors import RouteNotFoundError, WebhookNotFoundError
from jobledger.ledger.model.hooks.route import ROUTE, Route, RouteDefinition
from jobledger.ledger.model.hooks.watch import WATCH, Watch, WatchCommand
from jobledger.ledger.model.hooks.webhook import WEBHOOK, Webhook, WebhookCommand, WebhookEvent
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.named_chain import look, newest
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.named_values import Writer, change
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.webhooks.terms import make_place


class WebhookClient(Writer, Protocol):
    """A client of a server, where the consumers of webhooks are."""

    @property
    def inbox(self) -> Inbox:
        """Where the server answers."""
        ...


async def change_webhook(
    client: WebhookClient, name: str, command: WebhookCommand, *, by: str = ""
) -> Webhook:
    """Record what follows from a command on a webhook; return the webhook after that.

    Raises: what `webhook.decide` raises, InvalidInputError, LedgerFullError, UnreachableError, after which doing the
        same again is safe.
    """
    return await update_webhook(client, name, lambda _: command, by=by)


async def update_webhook(
    client: WebhookClient, name: str, wish: Callable[[Webhook | None], WebhookCommand], *, by: str = ""
) -> Webhook:
    """Do as `change_webhook`, with the command that `wish` returns for the webhook as it is now (None: not set)."""
    check_webhook_name(name)

    def decided(state: Webhook | None, stamp: Stamp) -> WebhookEvent | None:
        is_set = state is not None and state.status != "removed"
        return webhook.decide(name, state, wish(state if is_set else None), stamp)

    async def prepare(state: Webhook | None, event: WebhookEvent) -> None:
        if state is not None and state.is_active and event.since != state.since:
            await make_place(client.inbox, client.log.names, state)  # its term is about to end

    return (await change(client, WEBHOOK, name, decided, by=by, prepare=prepare)).state


async def change_watch(client: Writer, name: str, command: WatchCommand, *, by: str = "") -> Watch:
    """Record what follows from a command on a watch; return the watch after that. Raises: as `change_webhook`."""
    check_token("watch name", name)
    done = await change(
        client, WATCH, name, lambda before, stamp: watch.decide(name, before, command, stamp), by=by
    )
    return done.state


async def find_webhook(log: Log, name: str) -> Webhook:
    """Return a webhook as it is now. Raises: WebhookNotFoundError, InvalidInputError, UnreachableError."""
    check_webhook_name(name)
    found = (await look(log, WEBHOOK, name)).state
    if found is None or found.status == "removed":
        raise WebhookNotFoundError(name)
    return found


async def route_named(log: Log, name: str) -> tuple[Route, RouteDefinition]:
    """Return a route that is set, and what it does. Raises: as `look`; RouteNotFoundError."""
    route = (await look(log, ROUTE, name)).state
    if route is None or route.definition is None:
        raise RouteNotFoundError(name)
    return route, route.definition


async def all_watches(log: Log) -> list[Watch]:
    """Return every watch that is set, by name. Raises: CorruptLedgerError, UnreachableError."""
    return [each for _, each in sorted((await newest(log, WATCH)).items()) if not each.removed]
