"""Watch verbs: set, remove, list and show figures that are held against bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from jobledger.admin.events.changes import Change, state_and_changes
from jobledger.admin.verbs.kit import Place, Reason, Table, Told, Verb, option, told_changes, verb
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.commands import Remove
from jobledger.ledger.model.envelope import Moment
from jobledger.ledger.model.hooks import watch
from jobledger.ledger.model.hooks.errors import WatchNotFoundError
from jobledger.ledger.model.hooks.watch import FIGURES, WATCH, Figure, Watch, WatchDefinition, bound_words
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.webhooks.changes import all_watches, change_watch

Name = Annotated[str, option("The watch's name.", "NAME")]
_WRITES: Final = ("LEDGER_FULL", "LEDGER_BUSY")


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


class WatchVerb(Verb[WatchInfo], frozen=True, kw_only=True):
    """A change of one watch."""

    name: Name

    async def change(self, place: Place, command: watch.WatchCommand) -> WatchInfo:
        """Record it. Raises: as `change_watch`."""
        return info_of(await change_watch(place.ledger, self.name, command, by=place.by))

    def say(self, found: WatchInfo) -> Iterator[Told]:
        """Say what it looks at, and whether it fires or is removed."""
        yield _words(found)


@verb(
    "watches set",
    "PUT /v1/watches/{name}",
    permission="manage",
    summary="Have a watch look at something",
    problems=(*_WRITES, "JOB_INVALID_INPUT"),
    creates=True,
)
class SetWatch(WatchVerb, frozen=True, kw_only=True):
    """Have a figure watched: it fires while it is beyond a bound, and webhooks can deliver that. A gateway judges it.

    One that fires stops firing until its figure is found beyond the bound again.
    """

    figure: Annotated[Figure, option(f"What to look at: {', '.join(FIGURES)}.", "FIGURE")]
    above: Annotated[float | None, option("Fire while the figure is greater.", "X")] = None
    below: Annotated[float | None, option("Fire while the figure is less.", "X")] = None
    for_s: Annotated[float, option("How long it must be so before it fires.", "SPAN")] = 0.0
    window_s: Annotated[int, option("How far back rates and waits are looked at. (default: 5m)", "SPAN")] = (
        300
    )
    queue: Annotated[str, option("Only jobs of this queue.", "QUEUE")] = ""
    task: Annotated[str, option("Only jobs of this task.", "TASK")] = ""
    reason: Reason = ""

    async def do(self, place: Place) -> WatchInfo:
        """Set it. Raises: as `change_watch`."""
        definition = copied(WatchDefinition, self)
        return await self.change(place, watch.SetWatch(definition=definition, reason=self.reason))


@verb(
    "watches remove",
    "DELETE /v1/watches/{name}",
    permission="manage",
    summary="End a watch",
    problems=(*_WRITES, "NOT_FOUND"),
)
class RemoveWatch(WatchVerb, frozen=True, kw_only=True):
    """End a watch; its history stays."""

    reason: Reason = ""

    async def do(self, place: Place) -> WatchInfo:
        """End it. Raises: as `change_watch`."""
        return await self.change(place, Remove(reason=self.reason))


@verb(
    "watches list",
    "GET /v1/watches",
    permission="view",
    summary="List the watches",
    problems=("LEDGER_DAMAGED",),
    is_list=True,
)
class ListWatches(Verb[Watches], frozen=True, kw_only=True):
    """List the watches, those that fire first."""

    async def do(self, place: Place) -> Watches:
        """List them as the ledger says now. Raises: as `watches_now`."""
        return Watches(items=await watches_now(place.ledger))

    def say(self, found: Watches) -> Iterator[Told]:
        """Yield a table of them."""
        if not found.items:
            yield "there is no watch; make one with `jobledger watches set NAME --figure depth --above 1000`"
            return
        yield Table(
            ("watch!", "state!", "value>", "watches", "since!"),
            [
                (
                    each.watch,
                    _state(each),
                    None if each.value is None else f"{each.value:g}",
                    each.watches,
                    each.changed_at,
                )
                for each in found.items
            ],
        )


@verb(
    "watches show",
    "GET /v1/watches/{name}",
    permission="view",
    summary="Show a watch, and when it fired",
    problems=("NOT_FOUND", "LEDGER_DAMAGED"),
)
class ShowWatch(Verb[ShownWatch], frozen=True, kw_only=True):
    """Show a watch, and when it fired."""

    name: Name

    async def do(self, place: Place) -> ShownWatch:
        """Read its chain. Raises: WatchNotFoundError if nothing was ever said of it, InvalidTokenError, UnreachableError."""
        log, name = place.ledger.log, check_token("watch name", self.name)
        missing = WatchNotFoundError(name)
        state, history = await state_and_changes(log, WATCH, name, missing=missing)
        return ShownWatch(info=info_of(state), history=history)

    def say(self, found: ShownWatch) -> Iterator[Told]:
        """Say what it looks at, and tell its changes."""
        yield _words(found.info)
        yield from told_changes(found.history)


def _state(watch: WatchInfo) -> str:
    if watch.removed:
        return "removed"
    return "fires" if watch.firing else "quiet"


def _words(watch: WatchInfo) -> str:
    return f"watch {watch.watch}, {_state(watch)}: {watch.watches}"


async def watches_now(ledger: Ledger) -> list[WatchInfo]:
    """Return the watches that are set, those that fire first, then by name. Raises: CorruptLedgerError, UnreachableError."""
    found = [info_of(each) for each in await all_watches(ledger.log)]
    return sorted(found, key=lambda each: (not each.firing, each.watch))


def info_of(watch: Watch) -> WatchInfo:
    """Return a watch as a person sees it."""
    words = bound_words(watch.definition)
    return copied(WatchInfo, watch, watch=watch.name, watches=words, changed_at=watch.at, changed_by=watch.by)
