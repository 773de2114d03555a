"""How many jobs there were at each minute, for the slider while it moves; letting go of it shows the exact past."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import anyio.to_thread
import msgspec

from jobledger.admin.rows import View
from jobledger.gateway.pages.page import Looked
from jobledger.projections.queries.levels import Level

#: What the figures of the overview are called, and the states they add up.
FIGURES: Final = {
    "running": ("running",),
    "queued": ("queued",),
    "later": ("scheduled", "retry_wait", "held", "paused"),
    "dead_lettered": ("dead_lettered",),
}
_QUEUES_MAX: Final = 100


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """Figures from each minute on, until the next one tells otherwise."""

    minutes: list[int]  #: since 1970
    states: dict[str, list[int]]  #: by figure, one value a minute


async def levels(looked: Looked) -> Levels:
    """Return the figures of what somebody may see, as far back as they are kept."""
    ledger = looked.gateway.ledger
    head = await ledger.log.head()
    first = await ledger.log.get(head.first_sequence)
    now = ledger.clock.now()
    async with looked.gateway.projection.opened() as view:
        return await anyio.to_thread.run_sync(
            _levels, looked, view, now if first is None else first.stored_at, now
        )


def _levels(looked: Looked, view: View, since: datetime, until: datetime) -> Levels:
    store = view.store
    with store.one_moment():
        if looked.principal.is_everywhere:
            return added([store.levels(since, until)])
        names = sorted({row.queue for row in store.queues()})
        seen = [name for name in names if looked.principal.may("view", name)][:_QUEUES_MAX]
        return added([store.levels(since, until, queue=name) for name in seen])


def added(each: Sequence[Iterable[Level]]) -> Levels:
    """Return several rows of levels as one, in order of time. Pure."""
    changes = sorted(
        ((_minute(level.at), number, level.counts) for number, row in enumerate(each) for level in row),
        key=lambda change: change[:2],
    )
    newest: dict[int, dict[str, int]] = {}
    minutes: list[int] = []
    states: dict[str, list[int]] = {figure: [] for figure in FIGURES}
    for minute, number, counts in changes:
        newest[number] = counts
        if minutes and minutes[-1] == minute:
            for values in states.values():
                values.pop()
        else:
            minutes.append(minute)
        for figure, names in FIGURES.items():
            states[figure].append(sum(known[name] for known in newest.values() for name in names))
    return Levels(minutes=minutes, states=states)


def _minute(at: str) -> int:
    return int(datetime.fromisoformat(at).timestamp() // 60)
