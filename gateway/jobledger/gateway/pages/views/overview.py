"""The overview: problems that need a person, figures of the fleet, and the queues."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import anyio.to_thread

from jobledger.admin.diagnoses import Diagnosis
from jobledger.admin.queues import paused_now, together
from jobledger.admin.rows import View
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import RANGES, PageFacts, Shell, opened
from jobledger.gateway.pages.views.fleet import FleetCharts, axis_of, calls, happened, trends
from jobledger.gateway.pages.views.queue_lines import LATELY_S, QueueLine, of_users, queue_line, uncounted
from jobledger.gateway.visibility import terms_for
from jobledger.ledger.model.job import OPEN_STATES
from jobledger.ledger.model.subjects import is_own_queue
from jobledger.projections.statistics.history import by_queue

_QUEUES_MAX: Final = 40
_SHOWN: Final = 10
_FRESH_S: Final = 3.0
#: States of jobs that have not ended, as the line of the fleet shows them.


class Overview(PageFacts, frozen=True, kw_only=True):
    """The page."""

    calls: list[Diagnosis]
    calls_more: list[Diagnosis]
    counts: dict[str, int | None]  #: by state; None for a viewer bound to tasks
    open: tuple[str, ...]
    happened: FleetCharts
    queues: list[QueueLine]
    internal: list[QueueLine]  #: queues of the ledger's own jobs
    last_death: str | None  #: time of the newest death of a job
    workers: int | None  #: None: not known for the past


async def overview(looked: Viewer, *, query: When) -> Overview:
    """Return the overview as it is, or as of a past moment."""
    past = query.as_of()
    async with opened(looked, past) as (view, shell):
        called = await calls(looked, view, shell)
        leases = [] if past is not None else await looked.gateway.ledger.leases.all()
        alive = sum(not each.stopped and each.kind == "worker" for each in leases)
        charts = await _charts(looked, view, shell)
        return await anyio.to_thread.run_sync(
            _page, looked, view, shell, called, charts, None if past else alive
        )


async def _charts(looked: Viewer, view: View, shell: Shell) -> FleetCharts:
    """Return the charts; those of the present are kept for a while and shared by viewers with the same rights."""

    async def make() -> FleetCharts:
        return await anyio.to_thread.run_sync(happened, looked, view, shell)

    if shell.past is not None:
        return await make()
    key = ("happened", shell.range, looked.principal.queues, looked.principal.tasks)
    return await looked.kept.get(key, make, fresh_s=max(_FRESH_S, RANGES[shell.range][1] / 20))


def _page(  # noqa: PLR0917 - all facts that were read
    looked: Viewer, view: View, shell: Shell, called: list[Diagnosis], charts: FleetCharts, alive: int | None
) -> Overview:
    store, now, principal = view.store, view.now, looked.principal
    with store.one_moment():
        rows = [row for row in together(store.queues()) if principal.may("view", row.queue)]
        since, until = now - timedelta(seconds=LATELY_S), now + timedelta(minutes=1)
        lately = by_queue(store.select, since, until, terms_for(principal))
        done = trends(view, axis_of(shell), terms_for(principal), "completed", "queue")
        paused = paused_now(store, now)
        lines = [queue_line(row, lately, now, done[row.queue], paused=row.queue in paused) for row in rows]
        users = of_users({row.queue: row.counts for row in rows})
        counts: dict[str, int | None] = {state: users[state] for state in (*OPEN_STATES, "dead_lettered")}
        if not principal.is_of_all_tasks:
            lines = list(map(uncounted, lines))
            counts = {**dict.fromkeys(counts), "dead_lettered": shell.dead}
        return Overview(
            shell=shell,
            calls=called[:_SHOWN],
            calls_more=called[_SHOWN:],
            counts=counts,
            open=OPEN_STATES,
            happened=charts,
            queues=[each for each in lines if not is_own_queue(each.queue)][:_QUEUES_MAX],
            internal=[each for each in lines if is_own_queue(each.queue)],
            last_death=store.select("SELECT max(dead_at) FROM dead_letters")[0][0]
            if principal.is_everywhere
            else None,
            workers=alive,
        )
