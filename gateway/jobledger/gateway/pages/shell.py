"""What surrounds every page: the position of its lists, the moment it shows, what calls for a person."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec
from markupsafe import Markup

from jobledger.admin.past import AsOf
from jobledger.admin.rows import View
from jobledger.gateway.access.permissions import Permission
from jobledger.gateway.pages.charts.bars import Happened, strip
from jobledger.gateway.pages.page import Looked
from jobledger.projections.statistics.history import happened

#: A page says that it is behind from this lag on.
BEHIND_S: Final = 5.0
_STRIP_SPANS: Final = 120
_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 604800)


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far the lists of a page are."""

    stream_sequence: int
    behind_events: int
    behind_s: float

    @property
    def is_behind(self) -> bool:
        """Whether a person should know."""
        return self.behind_s >= BEHIND_S


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The past moment that a page shows."""

    at: datetime
    stream_sequence: int
    named: tuple[str, str]  #: the parameter of the address that names it, and its value


class Shell(msgspec.Struct, frozen=True, kw_only=True):
    """What surrounds a page."""

    path: str
    now: datetime  #: the moment shown
    today: datetime  #: the present
    position: Position
    may: frozenset[Permission]
    past: Shown | None = None
    begin: datetime  #: when the ledger's first event was stored
    dead: int = 0  #: dead letters, for the navigation

    @property
    def place(self) -> str:
        """The first word of the address."""
        return self.path.split("/")[1]

    @property
    def thousandth(self) -> int:
        """Where the moment shown lies on the slider, from 0 to 1000."""
        whole = (self.today - self.begin).total_seconds()
        if self.past is None or whole <= 0:
            return 1000
        return max(0, min(999, round(1000 * (self.now - self.begin).total_seconds() / whole)))


async def surround(looked: Looked, view: View, past: AsOf | None) -> Shell:
    """Return what surrounds a page whose rows are open. Raises: UnreachableError, ProjectionError."""
    ledger = looked.gateway.ledger
    today = ledger.clock.now()
    position = view.store.position()
    shown = None
    if past is not None:
        sequence = position.stream_sequence
        named = ("sequence", str(sequence)) if past.at is None else ("at", f"{past.at:%Y-%m-%dT%H:%M:%S.%fZ}")
        shown = Shown(at=past.at or view.now, stream_sequence=sequence, named=named)
    return Shell(
        path=looked.path,
        now=view.now,
        today=today,
        position=Position(stream_sequence=position.stream_sequence, behind_events=0, behind_s=0.0)
        if past is not None
        else await _position(looked, position.stream_sequence, today),
        may=looked.principal.permissions,
        past=shown,
        begin=await _begin(looked, today),
        dead=_dead(looked, view),
    )


async def _position(looked: Looked, at: int, today: datetime) -> Position:
    log = looked.gateway.ledger.log
    head = await log.head()
    if at >= head.last_sequence:
        return Position(stream_sequence=at, behind_events=0, behind_s=0.0)
    unread = await log.get(max(at + 1, head.first_sequence))
    lag_s = 0.0 if unread is None else max(0.0, (today - unread.stored_at).total_seconds())
    return Position(stream_sequence=at, behind_events=head.last_sequence - at, behind_s=lag_s)


async def _begin(looked: Looked, today: datetime) -> datetime:
    log = looked.gateway.ledger.log
    first = await log.get((await log.head()).first_sequence)
    return today if first is None else first.stored_at


def _dead(looked: Looked, view: View) -> int:
    rows = view.store.queues()
    return sum(row.counts["dead_lettered"] for row in rows if looked.principal.may("view", row.queue))


def life(looked: Looked, view: View, begin: datetime, end: datetime) -> Markup:
    """Return the strip under the slider: what happened from the beginning of the ledger on."""
    whole_s = max(60.0, (end - begin).total_seconds())
    step_s = next((each for each in _STEPS_S if whole_s / each <= _STRIP_SPANS), _STEPS_S[-1])
    spans = [Happened()] * (int(whole_s // step_s) + 2)
    first = begin.timestamp() // step_s
    for row in happened(view.store.select, begin, end + timedelta(minutes=1), step_s=step_s):
        index = int(row.begins_at.timestamp() // step_s - first)
        if 0 <= index < len(spans) and looked.principal.may("view", row.queue):
            spans[index] = Happened(
                completed=spans[index].completed + row.completed,
                failed=spans[index].failed + row.failed,
                dead=spans[index].dead + row.dead_lettered,
            )
    return strip(spans)
