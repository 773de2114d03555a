"""What surrounds every page: the position of its lists, the moment it shows, what calls for a person."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import anyio.to_thread
import msgspec
from markupsafe import Markup

from jobledger.admin.past import AsOf
from jobledger.admin.queues import fleet_queues
from jobledger.admin.rows import AnswerPosition, View
from jobledger.gateway.pages.charts.bars import Happened, strip
from jobledger.gateway.pages.page import Looked
from jobledger.gateway.scoped import terms_for
from jobledger.ledger.model.rights.grants import Permission
from jobledger.projections import DeadLetterFilter
from jobledger.projections.statistics.history import happened

#: A page says that it is behind from this lag on.
BEHIND_S: Final = 5.0
_STRIP_SPANS: Final = 120
_STRIP_FRESH_S: Final = 5.0
_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 604800)


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
    position: AnswerPosition
    may: frozenset[Permission]
    past: Shown | None = None
    begin: datetime  #: when the ledger's first event was stored
    dead: int = 0  #: dead letters, for the navigation
    strip: Markup = Markup()  #: what happened over time, under the slider of the fleet

    @property
    def is_behind(self) -> bool:
        """Whether a person should know that the lists lag."""
        return self.position.behind_s >= BEHIND_S

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


async def surround(looked: Looked, view: View, past: AsOf | None, *, fleet: bool = True) -> Shell:
    """Return what surrounds a page whose rows are open; `fleet`: it has the slider of the fleet.

    Raises: UnreachableError, ProjectionError.
    """
    ledger = looked.gateway.ledger
    today = ledger.clock.now()
    position = view.position()
    shown = None
    if past is not None:
        named = (
            ("sequence", str(position.sequence))
            if past.at is None
            else ("at", f"{past.at:%Y-%m-%dT%H:%M:%S.%fZ}")
        )
        shown = Shown(at=past.at or view.now, stream_sequence=position.sequence, named=named)
    shell = Shell(
        path=looked.path,
        now=view.now,
        today=today,
        position=position,
        may=looked.principal.permissions,
        past=shown,
        begin=await _begin(looked, today),
        dead=_dead(looked, view),
    )
    return msgspec.structs.replace(shell, strip=await _life(looked, view, shell)) if fleet else shell


async def _begin(looked: Looked, today: datetime) -> datetime:
    log = looked.gateway.ledger.log
    first = await log.get((await log.head()).first_sequence)
    return today if first is None else first.stored_at


def _dead(looked: Looked, view: View) -> int:
    principal = looked.principal
    if principal.is_of_all_tasks:
        rows = fleet_queues(view.store)
        return sum(row.counts["dead_lettered"] for row in rows if principal.may("view", row.queue))
    chosen = DeadLetterFilter(visible_queues=principal.queues, visible_tasks=principal.tasks)
    return view.store.dead_letter_count(chosen)


async def _life(looked: Looked, view: View, shell: Shell) -> Markup:
    """Return the strip under the slider: what happened from the beginning of the ledger until now.

    Raises: ProjectionError, UnreachableError.
    """
    whole_s = max(60.0, (shell.today - shell.begin).total_seconds())
    step_s = next((each for each in _STEPS_S if whole_s / each <= _STRIP_SPANS), _STEPS_S[-1])

    async def make() -> Markup:
        if shell.past is None:
            return await anyio.to_thread.run_sync(_strip, looked, view, shell, step_s)
        async with looked.gateway.projection.opened() as now:  # the rows of the past end at the moment shown
            return await anyio.to_thread.run_sync(_strip, looked, now, shell, step_s)

    key = ("strip", looked.principal.queues, looked.principal.tasks)
    return await looked.kept.get(key, make, fresh_s=max(_STRIP_FRESH_S, step_s / 20))


def _strip(looked: Looked, view: View, shell: Shell, step_s: int) -> Markup:
    begin, end = shell.begin, shell.today
    first = begin.timestamp() // step_s
    spans = [Happened()] * (int((end - begin).total_seconds() // step_s) + 2)
    terms = terms_for(looked.principal)
    for row in happened(view.store.select, begin, end + timedelta(minutes=1), step_s=step_s, terms=terms):
        index = int(row.begins_at.timestamp() // step_s - first)
        if 0 <= index < len(spans):
            spans[index] = Happened(
                completed=spans[index].completed + row.completed,
                failed=spans[index].failed + row.failed,
                dead=spans[index].dead + row.dead_lettered,
            )
    return strip(spans)
