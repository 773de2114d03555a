"""The tables of webhooks and of watches: the state after the newest event of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from jobledger.ledger.model.hooks.definition import filter_words, target_words
from jobledger.ledger.model.hooks.watch import WATCH, Watch, bound_words
from jobledger.ledger.model.hooks.webhook import WEBHOOK, Webhook
from jobledger.ledger.model.times import time_text
from jobledger.projections.table import (
    Row,
    Table,
    integer,
    named_tables,
    real,
    text,
    timestamp,
)

WEBHOOKS: Final = Table(
    name="webhooks",
    row="[webhook](webhooks.md#out) that is set",
    columns={
        "webhook": text("its name"),
        "status": text("`active`, `paused` or `disabled`; one that was removed has no row"),
        "events": text("which events match, in words"),
        "target": text("where they go, in words; without what a URL asks for"),
        "failing_since": timestamp(
            "since when nothing but failures came of its deliveries; NULL: they arrive"
        ),
        "changed_by": text("who appended its newest event"),
        "changed_at": timestamp("when, by the server's time"),
        "reason": text("why, as that person or the gateway said; or empty"),
        "last_sequence": integer("of that event"),
    },
    key=("webhook",),
    sequence="last_sequence",
)
WATCHES: Final = Table(
    name="watches",
    row="[watch](webhooks.md#watches) that is set: the figure and its bounds, whether it fires",
    columns={
        "watch": text("its name; one that was removed has no row"),
        "watches": text("the figure and its bounds, in words"),
        "firing": integer("1: the figure was beyond a bound for long enough; 0: it was not"),
        "value": real(
            "the figure when it began to fire or was within its bounds again; NULL: it never fired"
        ),
        "changed_by": text("who appended its newest event"),
        "changed_at": timestamp("when, by the server's time"),
        "last_sequence": integer("of that event"),
    },
    key=("watch",),
    sequence="last_sequence",
)
_STATES: Final = (
    "SELECT 'webhook', webhook, status = 'disabled' FROM webhooks "
    "UNION ALL SELECT 'watch', watch, firing FROM watches ORDER BY 1, 2"
)


class HookStates(msgspec.Struct, frozen=True, kw_only=True):
    """States for alerts, by name: 1 for a disabled webhook or a firing watch, 0 for the others."""

    webhooks: dict[str, int]
    watches: dict[str, int]


def read_hooks(select: Callable[[str], Sequence[Sequence[Any]]], values_max: int, other: str) -> HookStates:
    """Return the state of every webhook and watch; `select` runs a statement on a projection's file.

    The first `values_max` of each kind are by name; the others share the name `other`, which is 1 if one of them is.
    """
    found: dict[str, dict[str, int]] = {"webhook": {}, "watch": {}}
    for kind, name, state in select(_STATES):
        states = found[kind]
        label = name if len(states) < values_max else other
        states[label] = max(states.get(label, 0), int(state))
    return HookStates(webhooks=found["webhook"], watches=found["watch"])


def _webhook_values(webhook: Webhook, at: str) -> Row | None:
    if webhook.status == "removed":
        return None
    failing = None if webhook.failing_since is None else time_text(webhook.failing_since)
    terms = webhook.definition
    said = (webhook.status, filter_words(terms), target_words(terms.target), failing)
    return (*said, webhook.by, at, webhook.reason, webhook.sequence)


def _watch_values(watch: Watch, at: str) -> Row | None:
    if watch.removed:
        return None
    said = (bound_words(watch.definition), int(watch.firing), watch.value)
    return (*said, watch.by, at, watch.sequence)


WEBHOOK_TABLES: Final = named_tables(WEBHOOK, 1, WEBHOOKS, _webhook_values)
WATCH_TABLES: Final = named_tables(WATCH, 1, WATCHES, _watch_values)
