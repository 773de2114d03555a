"""The tasks that workers ever had, and a form for each to add a job."""

from __future__ import annotations

from bisect import bisect_left
from datetime import timedelta
from typing import Any

import anyio.to_thread
import msgspec
from markupsafe import Markup

from jobledger.admin.amounts import duration
from jobledger.admin.lists.stats import stats
from jobledger.admin.rows import View
from jobledger.admin.views import job_details
from jobledger.gateway.pages.charts.plot import histogram, spark
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.schema_fields import Field, fields_of, filled
from jobledger.gateway.pages.shell import RANGES, PageFacts, Shell, opened
from jobledger.gateway.pages.views.fleet import FleetCharts, axis_of, happened, points, trends
from jobledger.gateway.pages.views.job import editable
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.visibility import terms_for
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.model.limits.names import UNNAMED, split
from jobledger.ledger.model.rights.marks import hidden_from
from jobledger.ledger.model.subjects import JobRef, check_token, is_own_queue
from jobledger.ledger.nats.task_book import TaskEntry, find_task, read_tasks
from jobledger.projections import FailureRow, Histogram, JobFilter, JobRow
from jobledger.projections.filters import Term
from jobledger.projections.statistics.rates import Rates
from jobledger.projections.statistics.spread import BOUNDS_US
from jobledger.projections.tables.schedules import ScheduleRow, read_schedules

_BARS = 40


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """One task."""

    entry: TaskEntry
    workers: int  #: number of living workers that have it
    rates: Rates | None  #: rates of its jobs in the range; None: no job changed
    trend: Markup
    schedules: list[str]


class Tasks(PageFacts, frozen=True, kw_only=True):
    """The page."""

    tasks: list[TaskLine]


class TaskQuery(When, frozen=True, kw_only=True):
    """The query of the form."""

    like: str = ""  #: `<queue>/<job id>` of a job whose values fill the form


class Like(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a job that fill the form."""

    job: JobRef
    tenant: str
    priority: str
    limits: str  #: limits that a person may name, with spaces between them
    input: str  #: input as JSON


class TaskForm(PageFacts, frozen=True, kw_only=True):
    """The page of one task."""

    entry: TaskEntry
    fields: tuple[Field, ...] | None  #: None: its input is typed as JSON
    like: Like | None  #: None: the form is empty
    workers: int
    happened: FleetCharts
    durations: Markup
    run: Histogram
    failures: list[FailureRow]
    newest: list[JobRow]
    schedules: list[ScheduleRow]
    counts: dict[str, int]


async def tasks(looked: Viewer, *, query: When) -> Tasks:
    """Return the tasks by name, without those of the ledger's own jobs, which nobody adds here."""
    ledger, may = looked.gateway.ledger, looked.principal.may
    entries = await read_tasks(ledger.connection, ledger.inbox, ledger.names)
    living = [each for each in await ledger.leases.all() if not each.stopped]
    principal, whole_s = looked.principal, RANGES[query.range][0]
    async with opened(looked) as (view, shell):
        since, until = view.now - timedelta(seconds=whole_s), view.now + timedelta(minutes=1)
        seen, its = principal.scope.queues, principal.scope.tasks
        found = await stats(view, since, until, visible_queues=seen, visible_tasks=its)
        done = trends(view, axis_of(shell), terms_for(principal), "completed", "task")
        ticked = _schedules(looked, view)
    rates = {each.name: each for each in found.tasks}
    return Tasks(
        shell=shell,
        tasks=[
            TaskLine(
                entry=each,
                workers=sum(each.name in (worker.tasks or ()) for worker in living),
                rates=rates.get(each.name),
                trend=spark(done[each.name], style="k0"),
                schedules=[row.name for row in ticked if row.task == each.name],
            )
            for each in entries
            if not is_own_queue(each.queue) and may("view", each.queue, each.name)
        ],
    )


async def task_form(looked: Viewer, task: str, *, query: TaskQuery) -> TaskForm:
    """Return the figures of one task, and a form to add a job of it.

    Raises: ProblemError (TASK_NOT_FOUND); AccessDeniedError, JobNotFoundError for the job whose values fill the form.
    """
    ledger = looked.gateway.ledger
    found = await find_task(ledger.inbox, ledger.names, check_token("task name", task))
    missing = ProblemError("TASK_NOT_FOUND", f"no worker ever had a task {task}")
    if found is None:
        raise missing
    looked.principal.require_about("view", found.queue, found.name, missing)
    like = await _like(looked, task, query.like) if query.like else None
    fields = fields_of(found.input)
    living = [each for each in await ledger.leases.all() if not each.stopped]
    async with opened(looked) as (view, shell):
        told = await anyio.to_thread.run_sync(_told, looked, view, shell, found)
    return TaskForm(
        shell=shell,
        entry=found,
        fields=fields if like is None else filled(fields, like.input),
        like=like,
        workers=sum(found.name in (each.tasks or ()) for each in living),
        **told,
    )


async def _like(looked: Viewer, task: str, name: str) -> Like:
    """Return the values of a job that fill the form. Raises: as `task_form`."""
    queue, _, job_id = name.partition("/")
    ref = JobRef(queue=check_token("queue", queue), job_id=check_token("job id", job_id))
    principal, missing = looked.principal, JobNotFoundError(job_id)
    for permission in ("view", "payloads", "queue"):
        principal.require_about(permission, queue, task, missing)
    handle = looked.gateway.ledger.handle_of(ref)
    job = await handle.snapshot()
    details = await job_details(
        looked.gateway.ledger, job, await handle.history(), hidden=hidden_from(principal)
    )
    text = editable(details)
    if job.task != task or text is None:
        raise missing
    return Like(
        job=ref,
        tenant=job.order.tenant,
        priority=job.order.priority,
        limits=" ".join(each for each in job.order.limits if split(each)[0] not in UNNAMED),
        input=text,
    )


def _told(looked: Viewer, view: View, shell: Shell, entry: TaskEntry) -> dict[str, Any]:
    of_task, principal = Term("task", "task = ?", (entry.name,)), looked.principal
    seen = JobFilter(task=entry.name, visible_queues=principal.queues, visible_tasks=principal.tasks)
    with view.store.one_moment():
        ran = points(view, axis_of(shell), [of_task], took="run")
        run = Histogram.merged(each.took for each in ran if each.took is not None)
        failures = view.store.failures(task=entry.name)
        return {
            "happened": happened(looked, view, shell, of_task, notes=False, height=120),
            "durations": _durations(run),
            "run": run,
            "failures": [each for each in failures if principal.may("view", each.queue, each.task)][:8],
            "newest": view.store.job_page(seen, limit=8).items,
            "schedules": [row for row in _schedules(looked, view) if row.task == entry.name],
            "counts": view.store.job_counts(seen).by_state,
        }


def _schedules(looked: Viewer, view: View) -> list[ScheduleRow]:
    """Return the schedules that the viewer may see."""
    return [
        row
        for row in read_schedules(view.store.select)
        if row.status != "removed" and looked.principal.may("view", row.queue, row.task)
    ]


def _durations(run: Histogram) -> Markup:
    """Return a histogram of how long attempts took; a bar is one bucket or several."""
    if not run.spread_us:
        return Markup("")
    first, last = (bisect_left(BOUNDS_US, bound) for bound in (min(run.spread_us), max(run.spread_us)))
    several = max(1, -(-(last - first + 1) // _BARS))  # buckets of a bar
    counts = [0] * ((last - first) // several + 1)
    for bound, jobs in run.spread_us.items():
        counts[(bisect_left(BOUNDS_US, bound) - first) // several] += jobs
    ends = [BOUNDS_US[min(last, first + place * several + several - 1)] / 1e6 for place in range(len(counts))]
    marked = [
        (_place(seconds, first) / several, f"{name} {duration(seconds)}")
        for share, name in ((0.5, "p50"), (0.95, "p95"))
        if (seconds := run.quantile_s(share)) is not None
    ]
    bars = [(duration(end), jobs) for end, jobs in zip(ends, counts, strict=True)]
    return histogram(bars, label="How long attempts ran", marked=marked)


def _place(seconds: float, first: int) -> float:
    """Return the place of a duration, in buckets after the `first`; the fraction is its place within its bucket."""
    at = bisect_left(BOUNDS_US, seconds * 1e6)
    low, high = BOUNDS_US[max(0, at - 1)], BOUNDS_US[at]
    return at - first + ((seconds * 1e6 - low) / (high - low) if high > low else 0.0)
