"""Watch verbs: set, remove, list and show figures that are held against bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from jobledger.admin.hooks.watches import (
    ShownWatch,
    Watches,
    WatchInfo,
    info_of,
    list_watches,
    show_watch,
)
from jobledger.admin.verbs.kit import Place, Reason, Table, Told, Verb, option, told_changes, verb
from jobledger.ledger.model.hooks import watch
from jobledger.ledger.model.hooks.watch import FIGURES, Figure, WatchDefinition
from jobledger.ledger.webhooks.changes import change_watch

Name = Annotated[str, option("The watch's name.", "NAME")]
_WRITES: Final = ("LEDGER_FULL", "LEDGER_BUSY")


@verb(
    "watches set",
    "PUT /v1/watches/{name}",
    permission="manage",
    summary="Have a watch look at something",
    problems=(*_WRITES, "JOB_INVALID_INPUT"),
    creates=True,
)
class SetWatch(Verb[WatchInfo], frozen=True, kw_only=True):
    """Have a figure watched: it fires while it is beyond a bound, and webhooks can deliver that. A gateway judges it.

    One that fires stops firing until its figure is found beyond the bound again.
    """

    name: Name
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
        given = {name: getattr(self, name) for name in WatchDefinition.__struct_fields__}
        command = watch.SetWatch(definition=WatchDefinition(**given), reason=self.reason)
        return info_of(await change_watch(place.ledger, self.name, command, by=place.by))

    def say(self, found: WatchInfo) -> Iterator[Told]:
        """Say what it looks at."""
        yield _words(found)


@verb(
    "watches remove",
    "DELETE /v1/watches/{name}",
    permission="manage",
    summary="End a watch",
    problems=(*_WRITES, "NOT_FOUND"),
)
class RemoveWatch(Verb[WatchInfo], frozen=True, kw_only=True):
    """End a watch; its history stays."""

    name: Name
    reason: Reason = ""

    async def do(self, place: Place) -> WatchInfo:
        """End it. Raises: as `change_watch`."""
        command = watch.RemoveWatch(reason=self.reason)
        return info_of(await change_watch(place.ledger, self.name, command, by=place.by))

    def say(self, found: WatchInfo) -> Iterator[Told]:
        """Say that it is removed."""
        yield _words(found)


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
        """List them as the ledger says now. Raises: as `list_watches`."""
        return Watches(items=await list_watches(place.ledger))

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
        """Read its chain. Raises: as `show_watch`."""
        return await show_watch(place.ledger, self.name)

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
