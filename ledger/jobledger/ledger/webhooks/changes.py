"""Who writes webhooks and watches: every append is conditional on the newest event of the chain, and decided on it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from jobledger.ledger.model.aggregate import Aggregate
from jobledger.ledger.model.chain import retry_raced
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import Envelope
from jobledger.ledger.model.hooks import watch, webhook
from jobledger.ledger.model.hooks.definition import check_webhook_name
from jobledger.ledger.model.hooks.errors import WatchNotFoundError, WebhookNotFoundError
from jobledger.ledger.model.hooks.watch import WATCH, Watch, WatchCommand
from jobledger.ledger.model.hooks.webhook import WEBHOOK, Webhook, WebhookCommand
from jobledger.ledger.model.log import Log, end_of_chain, events_among
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.parts import Client
from jobledger.ledger.webhooks.terms import make_place

E = TypeVar("E", bound=Envelope)
S = TypeVar("S")


class WebhookClient(Client, Protocol):
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

    async def decided(state: Webhook | None, stamp: Stamp) -> webhook.WebhookEvent | None:
        is_set = state is not None and state.status != "removed"
        event = webhook.decide(name, state, wish(state if is_set else None), stamp)
        if state is not None and state.is_active and event is not None and event.since != state.since:
            await make_place(client.inbox, client.log.names, state)  # its term is about to end
        return event

    return await _change(client, WEBHOOK, name, decided, by)


async def change_watch(client: Client, name: str, command: WatchCommand, *, by: str = "") -> Watch:
    """Record what follows from a command on a watch; return the watch after that. Raises: as `change_webhook`."""
    check_token("watch name", name)

    async def decided(state: Watch | None, stamp: Stamp) -> watch.WatchEvent | None:
        return watch.decide(name, state, command, stamp)

    return await _change(client, WATCH, name, decided, by)


async def _change(
    client: Client,
    of: Aggregate[E, S],
    name: str,
    decided: Callable[[S | None, Stamp], Awaitable[E | None]],
    by: str,
) -> S:
    log = client.log

    async def attempt() -> S:
        view = of.view(*await end_of_chain(log, of.chain(log.names, name)))
        event = await decided(view.state, client.stamp(by))
        if event is None:
            assert view.state is not None, "what does not exist cannot be as it should be"
            return view.state
        sequence = await log.append(of.link(log.names, [event], view))
        return of.evolve(view.state, event, sequence)

    return await client.patience.read(lambda: retry_raced(attempt))


async def find_webhook(log: Log, name: str) -> Webhook:
    """Return a webhook as it is now. Raises: WebhookNotFoundError, InvalidInputError, UnreachableError."""
    check_webhook_name(name)
    found = WEBHOOK.view(*await end_of_chain(log, WEBHOOK.chain(log.names, name))).state
    if found is None or found.status == "removed":
        raise WebhookNotFoundError(name)
    return found


async def find_watch(log: Log, name: str) -> Watch:
    """Return a watch as it is now. Raises: WatchNotFoundError, InvalidTokenError, UnreachableError."""
    check_token("watch name", name)
    found = WATCH.view(*await end_of_chain(log, WATCH.chain(log.names, name))).state
    if found is None or found.removed:
        raise WatchNotFoundError(name)
    return found


async def histories(log: Log, of: Aggregate[E, S], name: str = "") -> dict[str, list[S]]:
    """Return the states that each webhook or watch had, the oldest first; with a name those of that one alone.

    Raises: CorruptLedgerError, UnreachableError.
    """
    found: dict[str, list[S]] = {}
    subject = of.chain(log.names, name) if name else of.everything(log.names)
    async with contextlib.aclosing(log.read_messages(subject=subject)) as batches:
        async for batch in batches:
            for message in events_among(batch):
                states = found.setdefault(of.key_in(message.subject)[0], [])
                states.append(of.evolve(None, of.decode(message), message.stream_sequence))
    return found


async def events_of(log: Log, of: Aggregate[E, S], name: str) -> list[Message]:
    """Return the events of one webhook or watch, the oldest first; none where nothing was ever said of it.

    Raises: InvalidTokenError, UnreachableError.
    """
    check_token(f"{of.name} name", name)
    found: list[Message] = []
    async with contextlib.aclosing(log.read_messages(subject=of.chain(log.names, name))) as batches:
        async for batch in batches:
            found += events_among(batch)
    return found


async def all_watches(log: Log) -> list[Watch]:
    """Return every watch that is set, by name. Raises: CorruptLedgerError, UnreachableError."""
    newest = [states[-1] for states in (await histories(log, WATCH)).values()]
    return sorted((each for each in newest if not each.removed), key=lambda each: each.name)
