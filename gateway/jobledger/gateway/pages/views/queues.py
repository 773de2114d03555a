"""Queues: numbers of jobs, speed and pauses; with a form to pause and resume each."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from markupsafe import Markup

from jobledger.admin.queues import listed, together
from jobledger.admin.rows import View
from jobledger.gateway.pages.charts.marks import TimeAxis
from jobledger.gateway.pages.charts.plot import share
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, opened
from jobledger.gateway.pages.views.fleet import trends
from jobledger.gateway.pages.views.queue_lines import LATELY_S, QueueLine, queue_line, uncounted
from jobledger.gateway.pages.words import style_of
from jobledger.gateway.visibility import terms_for
from jobledger.ledger.model.queue_pause import QueueState
from jobledger.ledger.model.state_words import state_title
from jobledger.projections import QueueRow
from jobledger.projections.statistics.history import by_queue


class QueueNow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue."""

    line: QueueLine
    states: Markup  #: a bar of its jobs by state
    pause: QueueState | None  #: None: it is not paused
    total: int | None  #: None for a viewer bound to tasks


class Queues(PageFacts, frozen=True, kw_only=True):
    """The page."""

    queues: list[QueueNow]


async def queues(looked: Viewer, *, query: When) -> Queues:
    """Return every queue that ever had a job or is paused."""
    past = query.as_of()
    async with opened(looked, past) as (view, shell):
        return Queues(shell=shell, queues=_queues(looked, view))


def _queues(looked: Viewer, view: View) -> list[QueueNow]:
    store, now, terms = view.store, view.now, terms_for(looked.principal)
    rows, paused = listed(store, None, now)
    lately = by_queue(store.select, now - timedelta(seconds=LATELY_S), now + timedelta(minutes=1), terms)
    hour = TimeAxis(begin=now - timedelta(minutes=60), step_s=60, count=60)
    done = trends(view, hour, terms, "completed", "queue")
    found = [
        _queue(
            row,
            queue_line(row, lately, now, done[row.queue], paused=row.queue in paused),
            paused.get(row.queue),
        )
        for row in together(rows)
        if looked.principal.may("view", row.queue)
    ]
    return found if looked.principal.is_of_all_tasks else list(map(_uncounted, found))


def _queue(row: QueueRow, line: QueueLine, pause: QueueState | None) -> QueueNow:
    parts = [(style_of(state), state_title(state), jobs) for state, jobs in row.counts.items()]
    return QueueNow(
        line=line,
        states=share(parts, label=f"States of the jobs of queue {row.queue}"),
        pause=pause,
        total=sum(row.counts.values()),
    )


def _uncounted(queue: QueueNow) -> QueueNow:
    return msgspec.structs.replace(queue, line=uncounted(queue.line), states=Markup(), total=None)
