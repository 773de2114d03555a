"""Changes between two moments: acts of people, new failures, numbers of jobs by state, and slower tasks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple

import anyio.to_thread
import msgspec

from jobledger.admin.rows import View
from jobledger.admin.workers import Deploy, deploys, list_workers
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, Shell, opened
from jobledger.gateway.pages.views.fleet import acts_between
from jobledger.gateway.pages.views.queue_lines import of_users
from jobledger.gateway.problems import ProblemError
from jobledger.gateway.visibility import terms_for
from jobledger.ledger.model.job import OPEN_STATES, JobState
from jobledger.ledger.model.written_times import read_time
from jobledger.projections import Histogram
from jobledger.projections.filters import joined
from jobledger.projections.statistics.tally import histogram_columns, summed

_ACTS_MAX: Final = 60
_CAUSES_MAX: Final = 12
_TASKS_MAX: Final = 14
#: A burst has at least this many jobs, and at least this many times the jobs of the equally long time before.
_BURST_LEAST: Final = 50
_BURST_TIMES: Final = 5
_BURSTS_MAX: Final = 8
_LOOKED_AT: Final = 5_000  #: newest jobs whose tenants are counted
_RUN, _WAIT = (", ".join(map(summed, histogram_columns(name))) for name in ("run", "wait"))
_WIDTH: Final = len(histogram_columns("run"))
_SUMS: Final = f"SELECT task, sum(enqueued), sum(completed), sum(failed), {_RUN}, {_WAIT} FROM buckets WHERE minute >= ? AND minute < ? AND ({{}}) GROUP BY task"  # noqa: S608 - columns
_CAUSES: Final = (
    "SELECT fingerprint, task, coalesce(nullif(error_type, ''), reason), pattern, min(dead_at), sum(dead_at >= ? AND dead_at < ?) AS n, sum(dead_at < ?) "
    "FROM dead_letters WHERE {} GROUP BY fingerprint HAVING n > 0 ORDER BY n DESC LIMIT ?"
)
_WORKERS: Final = (
    "SELECT worker, first_at FROM workers WHERE first_at >= ? AND first_at < ? ORDER BY first_at LIMIT 20"
)
_TENANTS: Final = (
    "SELECT tenant, count(*) FROM (SELECT tenant FROM jobs WHERE created_at >= ? AND created_at < ? AND ({}) "
    "ORDER BY created_at DESC LIMIT ?) GROUP BY tenant"
)

Text = Annotated[str, msgspec.Meta(max_length=60)]


class Query(When, frozen=True, kw_only=True):
    """The beginning of the time to compare; its end is the moment shown."""

    since: Text = "30m"


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """The number of jobs in a state at both moments."""

    state: str
    before: int
    after: int


class TaskChange(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a task: in the equally long time before, and in the time itself."""

    task: str
    completed: tuple[int, int]
    failed: tuple[int, int]
    run95_s: tuple[float | None, float | None]
    wait95_s: tuple[float | None, float | None]
    weight: float  #: size of the change, for the order


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """A task or a tenant whose jobs were many times those of the time before."""

    kind: str  #: `task` or `tenant`, the key of a search
    name: str
    enqueued: tuple[int, int]


class CauseChange(NamedTuple):
    """A cause of dead letters in the time."""

    fingerprint: str
    task: str
    error: str  #: type of the error, else the reason of the death
    pattern: str
    first: str
    died: int
    before: int  #: dead letters of the same cause before the time


class Changes(PageFacts, frozen=True, kw_only=True):
    """The page."""

    query: Query
    begin: datetime
    end: datetime
    acts: list[tuple[datetime, str, str]]
    states: list[StateChange]
    causes: list[CauseChange]
    tasks: list[TaskChange]
    workers: list[tuple[str, str]]
    deploys: list[Deploy]
    bursts: list[Burst]


async def changes(looked: Viewer, *, query: Query) -> Changes:
    """Return the changes, read from the present rows, which keep counts by minute. Raises: ProblemError."""
    past = query.as_of()
    async with opened(looked) as (view, shell):
        end = view.now
        if past is not None:
            end = (await past.moment(looked.gateway.ledger.log, looked.gateway.ledger.clock)).at or view.now
        try:
            begin = read_time(query.since, end)
        except OverflowError:
            begin = None
        if begin is None or begin >= end:
            raise ProblemError(
                "BAD_REQUEST",
                f"since is {query.since!r}: write a time before the moment shown, as 30m or 16:28",
            )
        timed = msgspec.structs.replace(shell, is_of_a_time=True)
        made = await anyio.to_thread.run_sync(_page, looked, view, timed, query, begin, end)
    if looked.principal.is_everywhere:
        told = deploys(await list_workers(looked.gateway.ledger), begin, end)
        made = msgspec.structs.replace(made, deploys=told)
    return made


def _page(looked: Viewer, view: View, shell: Shell, query: Query, begin: datetime, end: datetime) -> Changes:  # noqa: PLR0917
    store, terms = view.store, terms_for(looked.principal)
    where, values = joined(terms)
    text = [_text(each) for each in (begin, end)]
    with store.one_moment():
        causes = store.select(_CAUSES.format(where), (*text, text[0], *values, _CAUSES_MAX))
        everything = looked.principal.is_everywhere
        sides = _sides(view, begin, end, where, values)
        return Changes(
            shell=shell,
            query=query,
            begin=begin,
            end=end,
            acts=acts_between(view, begin, end, _ACTS_MAX) if everything else [],
            states=_states(view, begin, end) if everything else [],
            causes=[CauseChange(*each) for each in causes],
            tasks=_tasks(sides),
            deploys=[],
            bursts=[
                *_bursts("task", *({task: row[0] for task, row in side.items()} for side in sides)),
                *_bursts("tenant", *_tenants(view, begin, end, where, values)),
            ],
            workers=store.select(_WORKERS, tuple(text)) if everything else [],
        )


def _states(view: View, begin: datetime, end: datetime) -> list[StateChange]:
    """Return the states at both moments; those at the end are the present ones if it is now or not kept."""
    now = of_users({row.queue: row.counts for row in view.store.queues()})
    then, at_end = (view.store.levels_at(each) for each in (begin, end))
    before = of_users({} if then is None else then.queues)
    is_now = at_end is None or view.now - end < timedelta(minutes=1)
    after = now if is_now or at_end is None else of_users(at_end.queues)
    return [
        StateChange(state=state, before=before[state], after=after[state])
        for state in (*OPEN_STATES, JobState.DEAD_LETTERED)
        if before[state] or after[state]
    ]


def _sides(
    view: View, begin: datetime, end: datetime, where: str, values: list[object]
) -> list[dict[str, tuple[Any, ...]]]:
    """Return the sums of each task: in the equally long time before, and in the time."""
    first, last = int(begin.timestamp() // 60), int(end.timestamp() // 60) + 1
    return [
        {row[0]: row[1:] for row in view.store.select(_SUMS.format(where), (*minutes, *values))}
        for minutes in ((2 * first - last, first), (first, last))
    ]


def _tenants(
    view: View, begin: datetime, end: datetime, where: str, values: list[object]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the jobs of each tenant in the equally long time before, and in the time; {} for both above the limit."""
    sides = [
        dict(view.store.select(_TENANTS.format(where), (*map(_text, moments), *values, _LOOKED_AT)))
        for moments in ((begin - (end - begin), begin), (begin, end))
    ]
    if any(sum(side.values()) >= _LOOKED_AT for side in sides):
        return {}, {}
    before, after = ({name: count for name, count in side.items() if name} for side in sides)
    return before, after


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}"


def _bursts(kind: str, before: dict[str, int], after: dict[str, int]) -> list[Burst]:
    found = [
        Burst(kind=kind, name=name, enqueued=(before.get(name, 0), count))
        for name, count in after.items()
        if count >= max(_BURST_LEAST, _BURST_TIMES * before.get(name, 0))
    ]
    return sorted(found, key=lambda each: -each.enqueued[1])[:_BURSTS_MAX]


def _tasks(sides: list[dict[str, tuple[Any, ...]]]) -> list[TaskChange]:
    found = [_task(task, sides[0].get(task), sides[1].get(task)) for task in {*sides[0], *sides[1]}]
    return sorted(found, key=lambda each: -each.weight)[:_TASKS_MAX]


def _task(task: str, before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> TaskChange:
    counts = [(0, 0) if side is None else (side[1], side[2]) for side in (before, after)]
    completed, failed = ((counts[0][at], counts[1][at]) for at in (0, 1))
    runs, waits = ((_p95(before, at), _p95(after, at)) for at in (3, 3 + _WIDTH))
    ratio = max(_ratio(*each) for each in (completed, failed, runs, waits))
    return TaskChange(
        task=task,
        completed=completed,
        failed=failed,
        run95_s=runs,
        wait95_s=waits,
        weight=ratio * (1 + sum(completed) + 5 * sum(failed)) ** 0.5,
    )


def _p95(sums: tuple[Any, ...] | None, at: int) -> float | None:
    return None if sums is None else Histogram.of_columns(sums[at : at + _WIDTH]).quantile_s(0.95)


def _ratio(before: float | None, after: float | None) -> float:
    """Return the size of a change: 0 for none, 1 where a figure doubled, halved, began or ended."""
    low, high = sorted((before or 0.0, after or 0.0))
    return 0.0 if high == low else min(4.0, high / low - 1 if low else 1.0)
