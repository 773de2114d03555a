"""The panel of the clock, where a viewer chooses a past moment. A part of a page, made when opened."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import anyio.to_thread
from markupsafe import Markup

from jobledger.admin.rows import View
from jobledger.gateway.pages.charts.marks import TimeAxis
from jobledger.gateway.pages.charts.plot import Note, plot
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, Shell, opened
from jobledger.gateway.pages.views.fleet import notes_of, outcomes
from jobledger.gateway.pages.words import count, moment
from jobledger.gateway.visibility import terms_for
from jobledger.projections import DeadLetterFilter, DeadLetterRow

_SPANS: Final = 90
_LABEL: Final = "What happened over the life of the ledger"
_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 604800)


class Query(When, frozen=True, kw_only=True):
    """The time to show, and the page that will show the chosen moment."""

    path: str = "/"


class Clock(PageFacts, frozen=True, kw_only=True):
    """The panel."""

    path: str
    begin: datetime
    end: datetime
    density: Markup
    place: int  #: place of the moment shown, from 0 to 1000
    jumps: list[tuple[str, datetime]]


async def clock(looked: Viewer, *, query: Query) -> Clock:
    """Return the panel: the whole life of the ledger, at most 90 bars of a week."""
    async with opened(looked) as (view, shell):
        return await anyio.to_thread.run_sync(_panel, looked, view, shell, query)


def _panel(looked: Viewer, view: View, shell: Shell, query: Query) -> Clock:
    whole_s = max(600.0, (shell.today - shell.begin).total_seconds())
    step_s = next((each for each in _STEPS_S if whole_s / each <= _SPANS), _STEPS_S[-1])
    first = shell.begin.timestamp() // step_s * step_s
    axis = TimeAxis(
        begin=datetime.fromtimestamp(first, shell.today.tzinfo),
        step_s=step_s,
        count=int((shell.today.timestamp() - first) // step_s) + 1,
    )
    with view.store.one_moment():
        series = outcomes(view, axis, terms_for(looked.principal))
        notes = notes_of(view, axis) if looked.principal.is_everywhere else []
        seen = DeadLetterFilter(visible_queues=looked.principal.queues, visible_tasks=looked.principal.tasks)
        deaths = view.store.dead_letters(1, order="oldest", chosen=seen)
    end = axis.at(axis.count)
    at = query.as_of()
    place = 1000
    if at is not None and at.at is not None:
        part = (at.at - axis.begin) / (end - axis.begin)
        place = max(0, min(999, round(1000 * part)))
    return Clock(
        shell=shell,
        path=query.path if query.path.startswith("/") and not query.path.startswith("//") else "/",
        begin=axis.begin,
        end=end,
        density=plot(axis, stack=series, notes=notes, label=_LABEL, said=count, height=54),
        place=place,
        jumps=[each for each in _jumps(shell, notes, deaths) if each[1] > shell.begin],
    )


def _jumps(shell: Shell, notes: list[Note], deaths: list[DeadLetterRow]) -> Iterator[tuple[str, datetime]]:
    """Yield moments that people often want: some time ago, and just before an incident."""
    for name, minutes in (("5 min ago", 5), ("1 h ago", 60), ("yesterday, this time", 24 * 60)):
        yield name, shell.today - timedelta(minutes=minutes)
    just_before = timedelta(seconds=1)
    for each in notes[:2]:
        yield f"before {' '.join(each.words.split(' ')[:4])}", each.at - just_before
    for death in deaths:
        yield "before the oldest dead letter", moment(death.dead_at) - just_before
