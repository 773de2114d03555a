"""The frame of every page: the position of its lists, the moment it shows, and the count of dead letters."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Final

import msgspec

from jobledger.admin.past import AsOf
from jobledger.admin.queues import fleet_queues
from jobledger.admin.rows import AnswerPosition, View
from jobledger.gateway.pages.page import Range, Viewer
from jobledger.ledger.model.rights.grants import Permission
from jobledger.projections import DeadLetterFilter

#: A page with at least this lag says that it is behind.
BEHIND_S: Final = 5.0
#: The ranges of charts in seconds, and the length of a bar in each.
RANGES: Final[dict[Range, tuple[int, int]]] = {
    "15m": (900, 60),
    "1h": (3_600, 60),
    "6h": (21_600, 300),
    "24h": (86_400, 900),
    "7d": (604_800, 7_200),
}
RANGE_WORDS: Final[dict[Range, str]] = {
    "15m": "15 minutes",
    "1h": "hour",
    "6h": "6 hours",
    "24h": "24 hours",
    "7d": "7 days",
}


class PastMoment(msgspec.Struct, frozen=True, kw_only=True):
    """The past moment that a page shows."""

    at: datetime
    stream_sequence: int


class Shell(msgspec.Struct, frozen=True, kw_only=True):
    """The facts for the frame of a page."""

    path: str
    now: datetime  #: the moment shown
    today: datetime  #: the present
    position: AnswerPosition
    may: frozenset[Permission]
    past: PastMoment | None = None
    carried: tuple[tuple[str, str], ...] = ()  #: the parameters of time that each link repeats
    range: Range = "1h"
    asked: tuple[tuple[str, str], ...] = ()  #: other parameters of the address, without the place in a list
    is_of_a_time: bool = False  #: True if the page itself shows which time it covers
    begin: datetime  #: when the ledger's first event was stored
    dead: int = 0  #: number of dead letters, for the navigation

    @property
    def is_behind(self) -> bool:
        """Whether the lists lag so much that the page says so."""
        return self.position.behind_s >= BEHIND_S

    @property
    def place(self) -> str:
        """The first word of the address."""
        return self.path.split("/")[1]

    @property
    def has_no_past(self) -> bool:
        """Whether the address names a past moment although the page can show only the present."""
        return (
            self.past is None
            and not self.is_of_a_time
            and any(name in {"at", "sequence"} for name, _ in self.carried)
        )

    @property
    def range_words(self) -> str:
        """The range as a person says it."""
        return RANGE_WORDS[self.range]


class PageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that every page has."""

    shell: Shell


@contextlib.asynccontextmanager
async def opened(looked: Viewer, past: AsOf | None = None) -> AsyncGenerator[tuple[View, Shell]]:
    """Open the rows of the present or of a past moment, and give the frame of a page that shows them.

    Raises: UnreachableError, ProjectionError.
    """
    async with looked.gateway.projection.opened(past) as view:
        yield view, await _surround(looked, view, past)


async def shell_of(looked: Viewer) -> Shell:
    """Return the frame of a page that reads no rows. Raises: as `opened`."""
    async with opened(looked) as (_, shell):
        return shell


async def _surround(looked: Viewer, view: View, past: AsOf | None) -> Shell:
    today = looked.gateway.ledger.clock.now()
    position = view.position()
    return Shell(
        path=looked.path,
        now=view.now,
        today=today,
        position=position,
        may=looked.principal.permissions,
        past=None if past is None else PastMoment(at=past.at or view.now, stream_sequence=position.sequence),
        carried=looked.when.named(),
        range=looked.when.range,
        asked=looked.asked,
        begin=await _begin(looked, today),
        dead=_dead(looked, view),
    )


async def _begin(looked: Viewer, today: datetime) -> datetime:
    log = looked.gateway.ledger.log
    first = await log.get((await log.head()).first_sequence)
    return today if first is None else first.stored_at


def _dead(looked: Viewer, view: View) -> int:
    principal = looked.principal
    if principal.is_of_all_tasks:
        rows = fleet_queues(view.store)
        return sum(row.counts["dead_lettered"] for row in rows if principal.may("view", row.queue))
    chosen = DeadLetterFilter(visible_queues=principal.queues, visible_tasks=principal.tasks)
    return view.store.dead_letter_count(chosen)
