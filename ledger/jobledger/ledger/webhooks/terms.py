"""Terms of webhooks: the range of events that a webhook matches, and the durable consumer that hands them out.

A `set` and a `resumed` begin a term; the next `set`, `paused`, `disabled` or `removed` ends it. Start and end never
change, so a process that learns of them late only reads once more. A term has its consumer before it ends: so nothing
is missed of one that began and ended while no gateway ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from jobledger.ledger.model.hooks.definition import WebhookDefinition
from jobledger.ledger.model.hooks.webhook import Webhook
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.nats.durables import make_consumer, reactor_consumer
from jobledger.ledger.nats.inbox import Inbox
from jobledger.ledger.nats.infos import ConsumerInfo
from jobledger.ledger.webhooks.deliveries import subjects

CONSUMER_PREFIX: Final = "webhooks_"
ACK_WAIT_S: Final = 10.0


class TermName(NamedTuple):
    """The name of a term: its webhook and where it begins."""

    webhook: str
    since: int  #: the stream sequence after which its events match

    @property
    def consumer(self) -> str:
        """The durable consumer that hands out what matches."""
        return f"{CONSUMER_PREFIX}{self.webhook}_{self.since}"


class End(NamedTuple):
    """Where a term ended."""

    sequence: int  #: of the event that ended it: what is stored behind it does not match any more
    at: datetime


class Term(NamedTuple):
    """A term as the webhook's chain tells it."""

    name: TermName
    definition: WebhookDefinition
    end: End | None  #: None: it lasts


def named_by(consumer: str) -> TermName | None:
    """Return the term whose consumer has this name, None for any other consumer."""
    webhook, _, since = consumer.removeprefix(CONSUMER_PREFIX).rpartition("_")
    is_ours = consumer.startswith(CONSUMER_PREFIX) and bool(webhook) and since.isdecimal()
    return TermName(webhook, int(since)) if is_ours else None


def current(histories: Mapping[str, Sequence[Webhook]]) -> dict[TermName, Term]:
    """Return the terms that last, by name, of webhooks as `histories` returns them."""
    newest = [states[-1] for states in histories.values()]
    active = [TermName(each.name, each.since) for each in newest if each.is_active]
    return {name: term_of(name, histories[name.webhook]) for name in active}


def term_of(name: TermName, states: Sequence[Webhook]) -> Term:
    """Return a term as the states of its webhook tell it, the oldest first, at least one.

    If a term began before the oldest remaining state, that state has its definition: an archive run repeats it.
    """
    own = [each for each in states if each.since == name.since] or [
        each for each in states if each.sequence > name.since
    ]
    after = [each for each in states if each.sequence > name.since and each.since != name.since]
    end = End(after[0].sequence, after[0].at) if after else None
    return Term(name, (own or [states[-1]])[0].definition, end)


def is_drained(info: ConsumerInfo, end: End) -> bool:
    """Return whether all events that matched before the end of a term are settled."""
    return not info.unsettled or info.ack_floor.stream_sequence >= end.sequence


def settings_of(name: TermName, filters: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of the consumer of a term, which begins where the term does."""
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": name.since + 1}
    return {**reactor_consumer(filters, ack_wait_s=ACK_WAIT_S), **start}


async def make_place(inbox: Inbox, names: Names, webhook: Webhook) -> None:
    """Make the consumer for the term of an active webhook unless it exists. Raises: LedgerError, UnreachableError."""
    name = TermName(webhook.name, webhook.since)
    settings = settings_of(name, subjects(names, webhook.definition))
    await make_consumer(inbox, names.ledger_stream, name.consumer, settings)
