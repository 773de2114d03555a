"""Runs: numbers of waiting runs by reason, the newest runs with their progress, and their workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio.to_thread
import msgspec
from markupsafe import Markup

from jobledger.admin.rows import View
from jobledger.admin.runs import DeadChildren, dead_children
from jobledger.admin.workflows.versions import WorkflowVersion
from jobledger.gateway.pages.charts.plot import share
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, Shell, opened
from jobledger.gateway.visibility import terms_for, workflows_for
from jobledger.projections.filters import joined

_SHOWN: Final = 40
#: The number of newest jobs that are searched for runs.
LOOKED_AT: Final = 5_000
_WAITING: Final = (
    "SELECT j.task, j.awaiting, coalesce(s.target, ''), count(*), min(j.updated_at), min(s.until) "
    "FROM (SELECT * FROM jobs WHERE awaiting IS NOT NULL AND status IN ('waiting', 'paused') AND {}) AS j "
    "LEFT JOIN steps AS s ON s.job_id = j.id AND s.queue = j.queue AND s.kind = 'wait' AND s.status = 'started' "
    "GROUP BY 1, 2, 3 ORDER BY 4 DESC LIMIT ?"
)
_COLUMNS: Final = "queue, id, task, version, status, awaiting, tenant, created_at, completed_at, error_type"
_NEWEST: Final = (
    f"SELECT {_COLUMNS}, (SELECT count(*) || ' ' || sum(status = 'completed') || ' ' || sum(status = 'failed') FROM steps "  # noqa: S608
    f"WHERE steps.job_id = j.id AND steps.queue = j.queue) FROM (SELECT {_COLUMNS} FROM jobs WHERE {{}} ORDER BY created_at DESC LIMIT {LOOKED_AT}) AS j "
    "WHERE EXISTS (SELECT 1 FROM steps WHERE steps.job_id = j.id AND steps.queue = j.queue) LIMIT ?"
)


class WaitingRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one workflow that wait for the same thing."""

    task: str
    awaiting: str
    target: str  #: name of the signal
    runs: int
    oldest: str
    next_until: str | None  #: earliest time at which one of their waits ends by itself


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are ISO-8601 text in UTC."""

    queue: str
    id: str
    task: str
    version: str | None
    status: str
    awaiting: str | None  #: reason of its wait, in a few words
    tenant: str
    created_at: str
    completed_at: str | None
    error_type: str | None
    steps: int
    done: int
    bar: Markup
    dead: int = 0  #: dead letters among its children, which need a person before the run goes on


class Runs(PageFacts, frozen=True, kw_only=True):
    """The page."""

    for_person: list[DeadChildren]  #: empty for a viewer bound to tasks
    waiting: list[WaitingRuns]
    newest: list[RunLine]
    looked_at: int
    workflows: list[WorkflowVersion]


async def runs(looked: Viewer, *, query: When) -> Runs:
    """Return runs as they are, or as of a past moment, for which the code of the workers is not known."""
    past = query.as_of()
    workflows = [] if past is not None else await workflows_for(looked.principal, looked.gateway.rows)
    async with opened(looked, past) as (view, shell):
        return await anyio.to_thread.run_sync(_page, looked, view, shell, workflows)


def _page(looked: Viewer, view: View, shell: Shell, workflows: list[WorkflowVersion]) -> Runs:
    where, values = joined(terms_for(looked.principal))
    with view.store.one_moment():
        waiting, newest = (
            view.store.select(sql.format(where), (*values, _SHOWN)) for sql in (_WAITING, _NEWEST)
        )
        stuck = dead_children(view.store)
    dead = {(each.queue, each.run): each.count for each in stuck}
    principal, names = looked.principal, WaitingRuns.__struct_fields__
    return Runs(
        shell=shell,
        for_person=[
            each for each in stuck if principal.is_of_all_tasks and principal.may("view", each.queue)
        ][:_SHOWN],
        waiting=[WaitingRuns(**dict(zip(names, row, strict=True))) for row in waiting],
        newest=[_line(row, dead) for row in newest],
        looked_at=LOOKED_AT,
        workflows=workflows,
    )


def _line(row: Sequence[Any], dead: Mapping[tuple[str, str], int]) -> RunLine:
    *known, counts = row
    steps, done, failed = map(int, counts.split())
    parts = [
        ("t-completed", "completed", float(done)),
        ("t-dead", "failed", float(failed)),
        ("free", "open", float(steps - done - failed)),
    ]
    line = RunLine(
        **dict(zip(RunLine.__struct_fields__, known, strict=False)),
        steps=steps,
        done=done,
        bar=share(parts, label=f"{done} of {steps} steps"),
    )
    return msgspec.structs.replace(line, dead=dead.get((line.queue, line.id), 0))
