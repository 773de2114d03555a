"""Figures of the whole fleet for several pages: diagnoses, and counts over the range shown."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import anyio.to_thread
from markupsafe import Markup

from jobledger.admin.diagnoses import Diagnosis, diagnose, diagnose_past
from jobledger.admin.rows import View
from jobledger.gateway.pages.charts.marks import Series, TimeAxis
from jobledger.gateway.pages.charts.plot import Note, plot
from jobledger.gateway.pages.page import Viewer
from jobledger.gateway.pages.shell import RANGES, Shell
from jobledger.gateway.pages.words import count, took
from jobledger.gateway.visibility import diagnoses_for, terms_for
from jobledger.projections import Histogram
from jobledger.projections.filters import Term, of_fleet
from jobledger.projections.statistics.history import Counter, Point, series
from jobledger.projections.tables.limits import limit_rows

_BARS_MIN: Final = 24
_KEPT_S: Final = 4.0
_NOTES_MAX: Final = 40
#: Outcomes of attempts, from the bottom of a bar to its top: name and class.
OUTCOMES: Final = (
    ("completed", "t-completed"),
    ("cancelled", "t-ended"),
    ("failed, tried again", "t-waiting"),
    ("died", "t-dead"),
)
_ENDED: Final[tuple[Counter, ...]] = ("completed", "cancelled", "failed", "dead_lettered")
_DID: Final = {
    "pause": "paused",
    "resume": "resumed",
    "requeue": "requeued",
    "discard": "discarded",
    "cancel": "cancelled",
    "retry": "ran now",
}
_ACTS: Final = (
    "SELECT min(at), by, act, queue, CASE WHEN job = '' THEN '' ELSE task END, count(*), max(reason) FROM acts "
    "WHERE at >= ? AND at < ? AND unsure = 0 GROUP BY by, act, queue, substr(at, 1, 16), reason ORDER BY 1 DESC LIMIT ?"
)


class FleetCharts(NamedTuple):
    """Charts of the range shown, and their totals."""

    outcomes: Markup
    waits: Markup
    failures: Markup
    legend: list[tuple[str, str, int]]  #: class, name and number of each part
    failing: list[tuple[str, str, int]]
    wait50_s: float | None
    wait95_s: float | None
    per_minute: float
    share_failed: float | None


def axis_of(shell: Shell) -> TimeAxis:
    """Return the spans of the range that ends with the moment shown."""
    whole_s, step_s = RANGES[shell.range]
    last = datetime.fromtimestamp(shell.now.timestamp() // step_s * step_s, shell.now.tzinfo)
    lived = math.ceil((shell.now - shell.begin).total_seconds() / step_s) + 2
    # A young ledger shows only the time since its beginning.
    spans = max(1, min(math.ceil(whole_s / step_s), max(_BARS_MIN, lived)))
    return TimeAxis(begin=last - timedelta(seconds=step_s * (spans - 1)), step_s=step_s, count=spans)


def points(
    view: View, axis: TimeAxis, terms: Sequence[Term], *counts: Counter, took: Any = None, by: Any = None
) -> list[Point]:
    """Return the sums of `buckets` in the spans of an axis; see `history.series`."""
    until = axis.at(axis.count)
    select = view.store.select
    return series(select, axis.begin, until, step_s=axis.step_s, counts=counts, took=took, by=by, terms=terms)


def trends(
    view: View, axis: TimeAxis, terms: Sequence[Term], count: Counter, by: str
) -> dict[str, list[float]]:
    """Return counts span by span for the jobs of each queue or task."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * axis.count)
    for each in points(view, axis, terms, count, by=by):
        found[each.name][axis.index(each.begins_at)] += each.counts[0]
    return found


def outcomes(view: View, axis: TimeAxis, terms: Sequence[Term]) -> list[Series]:
    """Return the outcomes of attempts: one series for each of `OUTCOMES`."""
    rows = [[0.0] * axis.count for _ in OUTCOMES]
    for each in points(view, axis, terms, *_ENDED):
        completed, cancelled, failed, dead = each.counts
        for row, value in zip(rows, (completed, cancelled, max(0, failed - dead), dead), strict=True):
            row[axis.index(each.begins_at)] += value
    return [
        Series(name=name, values=row, style=style) for (name, style), row in zip(OUTCOMES, rows, strict=True)
    ]


def happened(
    looked: Viewer, view: View, shell: Shell, *terms: Term, notes: bool = True, height: int = 150
) -> FleetCharts:
    """Return the charts of the range for all that the viewer may see; `terms`: limited to a task or a queue."""
    axis = axis_of(shell)
    seen = [*terms_for(looked.principal), *(terms or of_fleet())]
    ends = outcomes(view, axis, seen)
    waits: list[Histogram | None] = [None] * axis.count
    for each in points(view, axis, seen, took="wait"):
        waits[axis.index(each.begins_at)] = each.took
    low, high = ([None if each is None else each.quantile_s(part) for each in waits] for part in (0.5, 0.95))
    lines = [Series(name="p50", values=low, style="k0"), Series(name="p95", values=high, style="k2")]
    failed = _failures(view, axis, seen)
    told = notes_of(view, axis) if notes and looked.principal.is_everywhere else []
    ended = [int(sum(value or 0 for value in each.values)) for each in ends]
    merged = Histogram.merged(each for each in waits if each is not None)
    lately = max(1.0, min(axis.count * axis.step_s, (shell.now - shell.begin).total_seconds() or 1) / 60)
    return FleetCharts(
        outcomes=plot(
            axis, stack=ends, notes=told, label="What became of attempts", said=count, height=height
        ),
        waits=plot(
            axis, lines=lines, band=True, label="How long jobs waited for a worker", said=took, height=110
        ),
        failures=plot(axis, stack=failed, label="Attempts that failed, by task", said=count, height=110),
        legend=[(each.style, each.name, total) for each, total in zip(ends, ended, strict=True)],
        failing=[(each.style, each.name, int(sum(value or 0 for value in each.values))) for each in failed],
        wait50_s=merged.quantile_s(0.5),
        wait95_s=merged.quantile_s(0.95),
        per_minute=ended[0] / lately,
        share_failed=(ended[2] + ended[3]) / sum(ended) if sum(ended) else None,
    )


def _failures(view: View, axis: TimeAxis, terms: Sequence[Term]) -> list[Series]:
    found = trends(view, axis, [*terms, Term("", "failed > 0")], "failed", "task")
    most = sorted(found, key=lambda task: -sum(found[task]))
    shown = most[:5] if len(most) > 6 else most  # noqa: PLR2004
    named = [Series(name=task, values=found[task], style=style_of_name(task, shown)) for task in shown]
    rest = [sum(each) for each in zip(*(found[task] for task in most[len(shown) :]), strict=True)]
    return (
        [*named, Series(name=f"{len(most) - len(shown)} others", values=rest, style="k7")] if rest else named
    )


def style_of_name(name: str, among: Sequence[str]) -> str:
    """Return the colour of a name: the same on every page, unless two names on a page collide."""
    wanted = sum(name.encode()) % 7
    taken: dict[str, int] = {}
    for each in sorted(among):
        place = sum(each.encode()) % 7
        while place in taken.values() and len(taken) < 7:  # noqa: PLR2004
            place = (place + 1) % 7
        taken[each] = place
    return f"k{taken.get(name, wanted)}"


def acts_between(view: View, begin: datetime, end: datetime, limit: int) -> list[tuple[datetime, str, str]]:
    """Return acts between two moments, an act on many jobs as one: time, actor, and a description."""
    rows = view.store.select(_ACTS, (f"{begin:%Y-%m-%dT%H:%M:%S}", f"{end:%Y-%m-%dT%H:%M:%S}Z", limit))
    found: list[tuple[datetime, str, str]] = [
        (
            datetime.fromisoformat(row.set_at),
            row.set_by,
            f"set limit {row.name}{':' + row.key if row.key else ''} to {row.slots} slots"
            + (f": {row.reason}" if row.reason else ""),
        )
        for row in limit_rows(view.store.select)
        if row.source == "operator" and begin <= datetime.fromisoformat(row.set_at) < end
    ]
    for at, by, act, queue, task, jobs, reason in rows:
        if by.count("-") >= 2 and any(each.isdigit() for each in by.split("-")):  # noqa: PLR2004 - a program
            continue
        what = f"queue {queue}" if not task else f"{jobs:,} {task} job{'' if jobs == 1 else 's'} in {queue}"
        why = f": {reason}" if reason else ""
        found.append((datetime.fromisoformat(at), by, f"{_DID.get(act, act)} {what}{why}"))
    return sorted(found, reverse=True)[:limit]


def notes_of(view: View, axis: TimeAxis) -> list[Note]:
    """Return acts of people as notes of a chart."""
    return [
        Note(at=at, words=f"{by} {what}")
        for at, by, what in acts_between(view, axis.begin, axis.at(axis.count), _NOTES_MAX)
    ]


async def calls(looked: Viewer, view: View, shell: Shell) -> list[Diagnosis]:
    """Return the diagnoses at the moment shown, for the viewer. Raises: UnreachableError, ProjectionError."""
    queues = looked.principal.scope.queues

    async def found() -> list[Diagnosis]:
        return await diagnose(looked.gateway.ledger, view, queues)

    if shell.past is not None:
        known = await anyio.to_thread.run_sync(diagnose_past, view, queues)
    else:
        known = await looked.kept.get(("diagnoses", queues), found, fresh_s=_KEPT_S)
    return diagnoses_for(looked.principal, known)
