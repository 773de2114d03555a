"""The overview: how much there is, how fast it moves, what fails, who works, and what waits for a person."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
from markupsafe import Markup

from jobledger.admin.queues import paused_now, together
from jobledger.admin.rows import View
from jobledger.admin.workers import list_workers
from jobledger.gateway.pages.charts.bars import bars
from jobledger.gateway.pages.charts.lines import lines, spark
from jobledger.gateway.pages.charts.marks import Series, TimeAxis
from jobledger.gateway.pages.page import Looked, When
from jobledger.gateway.pages.shell import Shell, life, surround
from jobledger.gateway.pages.words import count, took
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.projections import DeadLetterFilter, DeadLetterGroup, QueueRow, Store
from jobledger.projections.statistics.history import (
    Happened,
    QueueHappened,
    by_queue,
    happened,
    merged,
    waited,
)
from jobledger.projections.tables.acts import ActRow

Span = Literal["1h", "6h", "24h", "7d"]
#: How long a span of each bar is, and how many there are.
_SPANS: Final[dict[Span, tuple[int, int]]] = {
    "1h": (60, 60),
    "6h": (300, 72),
    "24h": (900, 96),
    "7d": (7200, 84),
}
_LATELY_S: Final = 300  #: what tiles and queues say of rates
_BARS_MIN: Final = 20
_COLOURS: Final = 8
_QUEUES_MAX: Final = 20
_CAUSES_MAX: Final = 6
_ACTS_MAX: Final = 6
_WORKERS_MAX: Final = 8
_LATER: Final = ("scheduled", "retry_wait", "held", "paused")


class Query(When, frozen=True, kw_only=True):
    """What of the overview is shown."""

    span: Span = "1h"


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """One queue."""

    queue: str
    style: str
    counts: dict[str, int]
    later: int  #: jobs that wait for their time, their limits, a step or a person
    waits_s: float | None  #: how long the oldest one has waited for a worker
    rate: float  #: completed a minute
    wait95_s: float | None
    run50_s: float | None
    failing: float | None  #: share of the attempts
    trend: Markup
    paused: bool


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    span: Span
    spans: tuple[Span, ...]
    strip: Markup
    counts: dict[str, int]
    later: int
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
    acts: list[ActRow]
    workers: list[WorkerInfo]
    workers_more: int


async def overview(looked: Looked, *, query: Query) -> Overview:
    """Return the overview as it is, or as of a past moment."""
    past = query.as_of()
    workers = [] if past is not None else await list_workers(looked.gateway.ledger)
    async with looked.gateway.projection.opened(past) as view:
        shell = await surround(looked, view, past)
        with view.store.one_moment():
            return _seen(looked, view, shell, query.span, [each for each in workers if each.kind == "worker"])


def _seen(looked: Looked, view: View, shell: Shell, span: Span, workers: Sequence[WorkerInfo]) -> Overview:
    def visible(queue: str) -> bool:
        return looked.principal.may("view", queue)

    store, now = view.store, view.now
    rows = [row for row in together(store.queues()) if visible(row.queue)]
    axis = _axis(span, now, shell.begin)
    done = [
        each for each in happened(store.select, axis.begin, now, step_s=axis.step_s) if visible(each.queue)
    ]
    lately = [
        each
        for each in by_queue(store.select, now - timedelta(seconds=_LATELY_S), now + timedelta(minutes=1))
        if visible(each.queue)
    ]
    wait = merged(each.wait for each in lately)
    styles = _styles(done, rows)
    paused = paused_now(store, now)
    trends = _trends(done, axis)
    queue_lines = [
        _line(row, lately, now, styles.get(row.queue, "k7"), trends[row.queue], paused=row.queue in paused)
        for row in rows
    ]
    queue_lines.sort(key=lambda each: (-_weight(each), each.queue))
    return Overview(
        shell=shell,
        span=span,
        spans=tuple(_SPANS),
        strip=life(looked, view, shell.begin, shell.today),
        counts=_counts(rows),
        later=sum(each.later for each in queue_lines),
        rate=sum(each.completed for each in lately) * 60 / _LATELY_S,
        wait50_s=wait.quantile_s(0.5),
        wait95_s=wait.quantile_s(0.95),
        failing=_failing(lately),
        legend=_legend(styles),
        done=bars(
            axis, _series(done, axis, styles, "completed"), label="Jobs completed, by queue", said=count
        ),
        waits=_waits(view.store, axis, now),
        failed=bars(
            axis,
            _series(done, axis, styles, "failed"),
            label="Attempts that failed, by queue",
            said=count,
            height=120,
        ),
        queues=sorted(queue_lines[:_QUEUES_MAX], key=lambda each: each.queue),
        queues_more=max(0, len(queue_lines) - _QUEUES_MAX),
        causes=[
            each
            for each in store.dead_letter_groups(_CAUSES_MAX, chosen=DeadLetterFilter())
            if looked.principal.may("view", each.queue, each.task)
        ],
        acts=[each for each in store.acts(_ACTS_MAX) if looked.principal.may("view", each.queue, each.task)],
        workers=list(workers[:_WORKERS_MAX]),
        workers_more=max(0, len(workers) - _WORKERS_MAX),
    )


def _axis(span: Span, now: datetime, begin: datetime) -> TimeAxis:
    """Return the bars of a span; of a younger ledger only as many as it has lived, but never very few."""
    step_s, spans = _SPANS[span]
    spans = min(spans, max(_BARS_MIN, math.ceil((now - begin).total_seconds() / step_s) + 1))
    last = datetime.fromtimestamp(now.timestamp() // step_s * step_s, now.tzinfo)
    return TimeAxis(begin=last - timedelta(seconds=step_s * (spans - 1)), step_s=step_s, count=spans)


def _styles(done: Sequence[Happened], rows: Sequence[QueueRow]) -> dict[str, str]:
    """Return the classes of the busiest queues, in the order of their names; the others share the last colour."""
    busy: dict[str, int] = {row.queue: 0 for row in rows}
    for each in done:
        busy[each.queue] = busy.get(each.queue, 0) + each.completed + each.failed
    most = sorted(busy, key=lambda queue: (-busy[queue], queue))
    own = most if len(most) <= _COLOURS else most[: _COLOURS - 1]
    return {queue: f"k{index}" for index, queue in enumerate(sorted(own))}


def _legend(styles: dict[str, str]) -> list[tuple[str, str]]:
    named = [(style, queue) for queue, style in styles.items()]
    return named if len(named) < _COLOURS - 1 else [*named, ("k7", "others")]


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


def _waits(store: Store, axis: TimeAxis, now: datetime) -> Markup:
    half: list[float | None] = [None] * axis.count
    most: list[float | None] = [None] * axis.count
    for each in waited(store.select, axis.begin, now, step_s=axis.step_s):
        index = axis.index(each.begins_at)
        half[index], most[index] = each.wait.quantile_s(0.5), each.wait.quantile_s(0.95)
    series = [Series(name="p50", values=half, style="k0"), Series(name="p95", values=most, style="k2")]
    return lines(axis, series, label="How long jobs waited for a worker", said=took)


def _line(
    row: QueueRow,
    lately: Sequence[QueueHappened],
    now: datetime,
    style: str,
    trend: Sequence[float],
    *,
    paused: bool,
) -> QueueLine:
    found = next((each for each in lately if each.queue == row.queue), None)
    oldest = None if row.oldest_waiting is None else datetime.fromisoformat(row.oldest_waiting)
    ended = 0 if found is None else found.completed + found.failed
    return QueueLine(
        queue=row.queue,
        style=style,
        counts=row.counts,
        later=sum(row.counts[state] for state in _LATER),
        waits_s=None if oldest is None else max(0.0, (now - oldest).total_seconds()),
        rate=0.0 if found is None else found.completed * 60 / _LATELY_S,
        wait95_s=None if found is None else found.wait.quantile_s(0.95),
        run50_s=None if found is None else found.run.quantile_s(0.5),
        failing=None if found is None or not ended else found.failed / ended,
        trend=spark(trend, style=style),
        paused=paused,
    )


def _weight(line: QueueLine) -> float:
    return line.rate + sum(line.counts[state] for state in ("queued", "running", "dead_lettered"))


def _counts(rows: Sequence[QueueRow]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        for state, jobs in row.counts.items():
            counts[state] += jobs
    return counts


def _failing(lately: Sequence[QueueHappened]) -> float | None:
    failed = sum(each.failed for each in lately)
    ended = failed + sum(each.completed for each in lately)
    return failed / ended if ended else None
