"""The overview: how much there is, how fast it moves, what fails, who works, and what waits for a person."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

import anyio.to_thread
import msgspec
from markupsafe import Markup

from jobledger.admin.diagnoses import Diagnosis, diagnose
from jobledger.admin.hooks.watches import WatchInfo, list_watches
from jobledger.admin.queues import fleet_queues, paused_now, together
from jobledger.admin.rows import View
from jobledger.admin.workers import list_workers
from jobledger.gateway.pages.charts.bars import bars
from jobledger.gateway.pages.charts.lines import lines
from jobledger.gateway.pages.charts.marks import Series, TimeAxis
from jobledger.gateway.pages.page import Looked, When
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.gateway.pages.views.queue_lines import (
    COLOURS,
    LATELY_S,
    LATER,
    QueueLine,
    queue_line,
    styles_of,
    uncounted,
)
from jobledger.gateway.pages.words import count, took
from jobledger.gateway.scoped import diagnoses_for, terms_for, workers_for
from jobledger.ledger.model.job import JobState
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.projections import DeadLetterFilter, DeadLetterGroup, Histogram, QueueRow
from jobledger.projections.filters import of_fleet
from jobledger.projections.statistics.history import (
    Happened,
    QueueHappened,
    Waited,
    by_queue,
    happened,
    waited,
)
from jobledger.projections.statistics.rates import Rates, rates
from jobledger.projections.tables.acts import ActRow

Span = Literal["1h", "6h", "24h", "7d"]
#: How long a span of each bar is, and how many there are.
_SPANS: Final[dict[Span, tuple[int, int]]] = {
    "1h": (60, 60),
    "6h": (300, 72),
    "24h": (900, 96),
    "7d": (7200, 84),
}
_BARS_MIN: Final = 20
_QUEUES_MAX: Final = 20
_CAUSES_MAX: Final = 6
_ACTS_MAX: Final = 6
_TASKS_MAX: Final = 12
_WORKERS_MAX: Final = 8
_WATCHES_FRESH_S: Final = 3.0
_CAUSES_FRESH_S: Final = 5.0


class Query(When, frozen=True, kw_only=True):
    """What of the overview is shown."""

    span: Span = "1h"


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    span: Span
    spans: tuple[Span, ...]
    counts: dict[str, int | None]  #: None for whoever is bound to tasks, here and below
    later: int | None
    rate: float
    wait50_s: float | None
    wait95_s: float | None
    failing: float | None
    legend: list[tuple[str, str]]  #: class and name
    done: Markup
    waits: Markup
    failed: Markup
    queues: list[QueueLine]
    queues_more: int
    causes: list[DeadLetterGroup]
    tasks: list[Rates]  #: of the last hour; those that fail most come first
    tasks_more: int
    acts: list[ActRow]
    workers: list[WorkerInfo]
    workers_more: int
    firing: list[WatchInfo]  #: watches whose figure is beyond its bound
    diagnoses: list[Diagnosis]  #: what hurts, of the present alone


class _History(NamedTuple):
    """What the charts are made of."""

    axis: TimeAxis
    done: list[Happened]
    waits: list[Waited]


class _Costly(NamedTuple):
    """What is kept for a while, since it grows with what happened and not with what is shown."""

    history: _History
    causes: list[DeadLetterGroup]
    tasks: list[Rates]


async def overview(looked: Looked, *, query: Query) -> Overview:
    """Return the overview as it is, or as of a past moment."""
    past = query.as_of()
    workers = [] if past is not None else await list_workers(looked.gateway.ledger)
    firing = [] if past is not None else await _firing(looked)
    async with looked.gateway.projection.opened(past) as view:
        shell = await surround(looked, view, past)
        costly = await _costly(looked, view, shell, query.span)
        hurts = [] if past is not None else await _diagnoses(looked, view)
        living = [each for each in workers_for(looked.principal, workers) if each.kind == "worker"]
        seen = await anyio.to_thread.run_sync(_seen, looked, view, shell, costly, living)
    return msgspec.structs.replace(seen, span=query.span, firing=firing, diagnoses=hurts)


async def _diagnoses(looked: Looked, view: View) -> list[Diagnosis]:
    """Return what hurts, as `GET /v1/diagnoses` has it, for whoever looks."""
    queues = looked.principal.scope.queues

    async def found() -> list[Diagnosis]:
        return await diagnose(looked.gateway.ledger, view, queues)

    known = await looked.kept.get(("diagnoses", queues), found, fresh_s=_CAUSES_FRESH_S)
    return diagnoses_for(looked.principal, known)


async def _costly(looked: Looked, view: View, shell: Shell, span: Span) -> _Costly:
    """Return charts and causes: those of the last hour as they are, longer ones as old as they can be without harm."""

    async def history() -> _History:
        return await anyio.to_thread.run_sync(_history, looked, view, span, shell.begin)

    async def causes() -> list[DeadLetterGroup]:
        return await anyio.to_thread.run_sync(_causes, looked, view)

    async def tasks() -> list[Rates]:
        return await anyio.to_thread.run_sync(_tasks, looked, view)

    if shell.past is not None:
        return _Costly(await history(), await causes(), await tasks())
    scope, kept = (looked.principal.queues, looked.principal.tasks), looked.kept
    fresh_s = 0.0 if span == "1h" else _SPANS[span][0] / 20
    return _Costly(
        await kept.get(("history", span, scope), history, fresh_s=fresh_s),
        await kept.get(("causes", scope), causes, fresh_s=_CAUSES_FRESH_S),
        await kept.get(("tasks", scope), tasks, fresh_s=_CAUSES_FRESH_S),
    )


def _history(looked: Looked, view: View, span: Span, begin: datetime) -> _History:
    select, now, terms = view.store.select, view.now, [*of_fleet(), *terms_for(looked.principal)]
    axis = _axis(span, now, begin)
    return _History(
        axis,
        happened(select, axis.begin, now, step_s=axis.step_s, terms=terms),
        waited(select, axis.begin, now, step_s=axis.step_s, terms=terms),
    )


def _causes(looked: Looked, view: View) -> list[DeadLetterGroup]:
    principal = looked.principal
    chosen = DeadLetterFilter(visible_queues=principal.queues, visible_tasks=principal.tasks)
    return view.store.dead_letter_groups(_CAUSES_MAX, chosen=chosen)


def _tasks(looked: Looked, view: View) -> list[Rates]:
    now, terms = view.now, [*of_fleet(), *terms_for(looked.principal)]
    found = rates(view.store.select, "task", now - timedelta(hours=1), now + timedelta(minutes=1), terms)
    return sorted(
        found, key=lambda each: (each.success_rate is None, each.success_rate or 0.0, -each.completed)
    )


async def _firing(looked: Looked) -> list[WatchInfo]:
    """Return the watches that fire, for who may see all queues: their figures are of all."""
    if not looked.principal.is_everywhere:
        return []
    found = await looked.kept.get(
        "watches", lambda: list_watches(looked.gateway.ledger), fresh_s=_WATCHES_FRESH_S
    )
    return [each for each in found if each.firing]


def _seen(
    looked: Looked, view: View, shell: Shell, costly: _Costly, workers: Sequence[WorkerInfo]
) -> Overview:
    with view.store.one_moment():
        return _page(looked, view, shell, costly, workers)


def _page(
    looked: Looked, view: View, shell: Shell, costly: _Costly, workers: Sequence[WorkerInfo]
) -> Overview:
    store, now, principal = view.store, view.now, looked.principal
    rows = [row for row in together(fleet_queues(store)) if principal.may("view", row.queue)]
    axis, done, waits = costly.history
    since, until = now - timedelta(seconds=LATELY_S), now + timedelta(minutes=1)
    lately = by_queue(store.select, since, until, [*of_fleet(), *terms_for(principal)])
    wait = Histogram.merged(each.wait for each in lately)
    styles = styles_of(done, rows)
    paused = paused_now(store, now)
    trends = _trends(done, axis)
    queue_lines = [
        queue_line(
            row, lately, now, styles.get(row.queue, "k7"), trends[row.queue], paused=row.queue in paused
        )
        for row in rows
    ]
    counts: dict[str, int | None] = dict(_counts(rows))
    later: int | None = sum(counts[state] or 0 for state in LATER)
    if not principal.is_of_all_tasks:
        queue_lines = list(map(uncounted, queue_lines))
        counts, later = {**dict.fromkeys(counts), "dead_lettered": shell.dead}, None
    queue_lines.sort(key=lambda each: (-_weight(each), each.queue))
    return Overview(
        shell=shell,
        span="1h",
        spans=tuple(_SPANS),
        counts=counts,
        later=later,
        rate=sum(each.completed for each in lately) * 60 / LATELY_S,
        wait50_s=wait.quantile_s(0.5),
        wait95_s=wait.quantile_s(0.95),
        failing=_failing(lately),
        legend=_legend(styles),
        done=bars(
            axis, _series(done, axis, styles, "completed"), label="Jobs completed, by queue", said=count
        ),
        waits=_waits(axis, waits),
        failed=bars(
            axis,
            _series(done, axis, styles, "failed"),
            label="Attempts that failed, by queue",
            said=count,
            height=120,
        ),
        queues=sorted(queue_lines[:_QUEUES_MAX], key=lambda each: each.queue),
        queues_more=max(0, len(queue_lines) - _QUEUES_MAX),
        causes=costly.causes,
        tasks=costly.tasks[:_TASKS_MAX],
        tasks_more=max(0, len(costly.tasks) - _TASKS_MAX),
        acts=[each for each in store.acts(_ACTS_MAX) if looked.principal.may("view", each.queue, each.task)],
        workers=list(workers[:_WORKERS_MAX]),
        firing=[],
        diagnoses=[],
        workers_more=max(0, len(workers) - _WORKERS_MAX),
    )


def _axis(span: Span, now: datetime, begin: datetime) -> TimeAxis:
    """Return the bars of a span; of a younger ledger only as many as it has lived, but never very few."""
    step_s, spans = _SPANS[span]
    spans = min(spans, max(_BARS_MIN, math.ceil((now - begin).total_seconds() / step_s) + 1))
    last = datetime.fromtimestamp(now.timestamp() // step_s * step_s, now.tzinfo)
    return TimeAxis(begin=last - timedelta(seconds=step_s * (spans - 1)), step_s=step_s, count=spans)


def _legend(styles: dict[str, str]) -> list[tuple[str, str]]:
    named = [(style, queue) for queue, style in styles.items()]
    return named if len(named) < COLOURS - 1 else [*named, ("k7", "others")]


def _series(
    done: Sequence[Happened],
    axis: TimeAxis,
    styles: dict[str, str],
    what: Literal["completed", "failed"],
) -> list[Series]:
    values: dict[str, list[float | None]] = {queue: [0.0] * axis.count for queue in styles}
    others: list[float | None] = [0.0] * axis.count
    for each in done:
        index = axis.index(each.begins_at)
        row = values.get(each.queue, others)
        row[index] = (row[index] or 0) + (each.completed if what == "completed" else each.failed)
    series = [Series(name=queue, values=values[queue], style=style) for queue, style in styles.items()]
    return [*series, Series(name="others", values=others, style="k7")] if any(others) else series


def _trends(done: Sequence[Happened], axis: TimeAxis) -> dict[str, list[float]]:
    trends: dict[str, list[float]] = defaultdict(lambda: [0.0] * axis.count)
    for each in done:
        trends[each.queue][axis.index(each.begins_at)] += each.completed
    return trends


def _waits(axis: TimeAxis, waits: Sequence[Waited]) -> Markup:
    half: list[float | None] = [None] * axis.count
    most: list[float | None] = [None] * axis.count
    for each in waits:
        index = axis.index(each.begins_at)
        half[index], most[index] = each.wait.quantile_s(0.5), each.wait.quantile_s(0.95)
    series = [Series(name="p50", values=half, style="k0"), Series(name="p95", values=most, style="k2")]
    return lines(axis, series, label="How long jobs waited for a worker", said=took)


def _weight(line: QueueLine) -> float:
    return line.rate + sum(line.counts[state] or 0 for state in ("queued", "running", "dead_lettered"))


def _counts(rows: Sequence[QueueRow]) -> dict[str, int]:
    return {state.value: sum(row.counts[state.value] for row in rows) for state in JobState}


def _failing(lately: Sequence[QueueHappened]) -> float | None:
    failed = sum(each.failed for each in lately)
    ended = failed + sum(each.completed for each in lately)
    return failed / ended if ended else None
