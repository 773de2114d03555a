"""Numbers of jobs at each minute, for the slider while it moves; the page of its final place shows the exact past."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import add, sub
from typing import Final

import anyio.to_thread
import msgspec

from jobledger.admin.rows import View
from jobledger.gateway.pages.page import Viewer
from jobledger.ledger.model.job import LATER_STATES
from jobledger.projections.queries.levels import levels_by_minute
from jobledger.projections.statistics.levels import NOTHING, Counts
from jobledger.projections.statistics.tally import QUEUE_COUNTS

#: The figures of the overview: name, and the states that it adds up.
FIGURES: Final = {
    "running": ("running",),
    "queued": ("queued",),
    "later": LATER_STATES,
    "dead_lettered": ("dead_lettered",),
}
_PLACES: Final = {figure: tuple(map(QUEUE_COUNTS.index, names)) for figure, names in FIGURES.items()}
_QUEUES_MAX: Final = 100
_EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)  #: a time before all levels


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """Figures by minute; each holds until the next one."""

    minutes: list[int]  #: minutes since 1970
    states: dict[str, list[int]]  #: by figure, a value for each of `minutes`


async def levels(looked: Viewer) -> Levels:
    """Return the figures of the jobs that the viewer may see, as far back as they are kept."""
    now = looked.gateway.ledger.clock.now()
    async with looked.gateway.projection.opened() as view:
        return await anyio.to_thread.run_sync(_levels, looked, view, now)


def _levels(looked: Viewer, view: View, until: datetime) -> Levels:
    store = view.store
    if not looked.principal.is_of_all_tasks:  # the figures of a queue include all its tasks
        return Levels(minutes=[], states={})
    with store.one_moment():
        if looked.principal.is_everywhere:
            return added([levels_by_minute(store.select, _EVER, until, None)])
        names = sorted({row.queue for row in store.queues()})
        seen = [name for name in names if looked.principal.may("view", name)][:_QUEUES_MAX]
        return added([levels_by_minute(store.select, _EVER, until, name) for name in seen])


def added(each: Sequence[Iterable[tuple[int, Counts]]]) -> Levels:
    """Return several rows of levels as one, in order of time. Pure."""
    changes = sorted(
        (minute + 1, number, counts) for number, row in enumerate(each) for minute, counts in row
    )
    newest: list[Counts] = [NOTHING] * len(each)
    total = NOTHING
    known: dict[int, Counts] = {}
    for minute, number, counts in changes:
        total = tuple(map(add, total, map(sub, counts, newest[number])))
        newest[number] = counts
        known[minute] = total
    return Levels(
        minutes=list(known),
        states={
            figure: [sum(counts[place] for place in places) for counts in known.values()]
            for figure, places in _PLACES.items()
        },
    )
