"""What a person sees of watches: each as it stands, and its history."""

from __future__ import annotations

import msgspec

from jobledger.admin.events.changes import Change, state_and_changes
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.hooks.errors import WatchNotFoundError
from jobledger.ledger.model.hooks.watch import (
    WATCH,
    Watch,
    WatchDefinition,
    bound_words,
)
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.webhooks.changes import all_watches


class WatchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A watch as it stands."""

    watch: str  #: its name
    definition: WatchDefinition
    watches: str  #: the figure and its bounds, in words
    firing: bool  #: whether the figure was beyond a bound for long enough, when a gateway last compared them
    value: (
        float | None
    )  #: the figure when it began to fire, or to be within its bounds again; none: it never fired
    removed: bool
    changed_at: Moment  #: when its newest event was appended
    changed_by: str
    sequence: int  #: stream sequence of that event


class Watches(msgspec.Struct, frozen=True, kw_only=True):
    """The watches that are set, those that fire first."""

    items: list[WatchInfo]


class ShownWatch(msgspec.Struct, frozen=True, kw_only=True):
    """A watch, and how it became so."""

    info: WatchInfo
    history: tuple[Change, ...]  #: the newest first


async def list_watches(ledger: Ledger) -> list[WatchInfo]:
    """Return the watches that are set, those that fire first, then by name. Raises: CorruptLedgerError, UnreachableError."""
    found = [info_of(each) for each in await all_watches(ledger.log)]
    return sorted(found, key=lambda each: (not each.firing, each.watch))


async def show_watch(ledger: Ledger, name: str, *, history_max: int = 20) -> ShownWatch:
    """Return a watch as its chain says now, and its newest events.

    Raises: WatchNotFoundError where nothing was ever said of it, InvalidTokenError, UnreachableError.
    """
    check_token("watch name", name)
    missing = WatchNotFoundError(name)
    state, history = await state_and_changes(ledger.log, WATCH, name, most=history_max, missing=missing)
    return ShownWatch(info=info_of(state), history=history)


def info_of(watch: Watch) -> WatchInfo:
    """Return a watch as a person sees it."""
    return WatchInfo(
        watch=watch.name,
        definition=watch.definition,
        watches=bound_words(watch.definition),
        firing=watch.firing,
        value=watch.value,
        removed=watch.removed,
        changed_at=watch.at,
        changed_by=watch.by,
        sequence=watch.sequence,
    )
