"""The panel of the clock: what happened when, as one goes back in it. A part of a page, made when somebody opens it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import anyio.to_thread
from markupsafe import Markup

from jobledger.admin.rows import View
from jobledger.gateway.pages.charts.marks import TimeAxis
from jobledger.gateway.pages.charts.plot import plot
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, Shell, opened
from jobledger.gateway.pages.views.fleet import notes_of, outcomes
from jobledger.gateway.pages.words import count
from jobledger.gateway.scoped import terms_for
from jobledger.projections import DeadLetterFilter

_SPANS: Final = 90
_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 604800)


class Query(When, frozen=True, kw_only=True):
    """What is to be shown, and the page that is to show the moment chosen."""

    path: str = "/"


class Clock(PageFacts, frozen=True, kw_only=True):
    """The panel."""

    path: str
    begin: datetime
    end: datetime
    density: Markup
    place: int  #: of the moment shown, from 0 to 1000
    jumps: list[tuple[str, datetime]]


async def clock(looked: Viewer, *, query: Query) -> Clock:
    """Return the panel: the whole life of the ledger, or as much of it as 90 bars of a week show."""
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
        deaths = view.store.dead_letters(
            1,
            order="oldest",
            chosen=DeadLetterFilter(
                visible_queues=looked.principal.queues, visible_tasks=looked.principal.tasks
            ),
        )
    end = axis.at(axis.count)
    at = query.as_of()
    shown = at.at if at is not None and at.at is not None else None
    jumps = [("5 min ago", shell.today - timedelta(minutes=5)), ("1 h ago", shell.today - timedelta(hours=1))]
    jumps += [("yesterday, this time", shell.today - timedelta(days=1))]
    jumps += [
        (
            f"before {each.words.split(' ')[0]} {' '.join(each.words.split(' ')[1:4])}",
            each.at - timedelta(seconds=1),
        )
        for each in notes[:2]
    ]
    if deaths:
        jumps.append(
            (
                "before the oldest dead letter",
                datetime.fromisoformat(deaths[0].dead_at) - timedelta(seconds=1),
            )
        )
    return Clock(
        shell=shell,
        path=query.path if query.path.startswith("/") and not query.path.startswith("//") else "/",
        begin=axis.begin,
        end=end,
        density=plot(
            axis,
            stack=series,
            notes=notes,
            label="What happened over the life of the ledger",
            said=count,
            height=54,
        ),
        place=1000
        if shown is None
        else max(
            0,
            min(999, round(1000 * (shown - axis.begin).total_seconds() / (end - axis.begin).total_seconds())),
        ),
        jumps=[(name, moment) for name, moment in jumps if moment > shell.begin],
    )
