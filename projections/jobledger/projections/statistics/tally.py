"""The sums that events add to the statistics, as integers in memory; `tables` writes them.

Pure: a delta comes from the job before an event, the event, and the job after it, both as `evolve` returned them.
Everything here adds up, so it does not matter how events are cut into transactions. Times are the server's
(`stored_at`), in microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import add
from typing import ClassVar, Final

import msgspec

from jobledger.ledger.model.aggregates import JOB
from jobledger.ledger.model.events import (
    Completed,
    DeadLettered,
    Discarded,
    Failed,
    Fenced,
    Held,
    JobEvent,
    Paused,
    Queued,
    Started,
)
from jobledger.ledger.model.job import FINAL_STATES, Job, JobState
from jobledger.ledger.model.lifecycle import CLAIMED, LIFECYCLE, ORDERS, OUTCOMES
from jobledger.ledger.model.limits.names import split
from jobledger.projections.statistics.spread import DURATION_US_MAX, Spread, merged, spread_of, to_text
from jobledger.projections.table import Column, Value, integer, text

#: Counters per minute, queue and task. A counter with the name of an event counts that event.
COUNTERS: Final = (
    "enqueued",  # jobs, at their first event
    "started",  # attempts
    "completed",
    "failed",  # attempts that failed
    "retried",  # dispatches after a failed attempt
    "lost",  # attempts whose worker died
    "interrupted",
    "snoozed",
    "paused",  # attempts that a pause ended, not jobs that a person paused while they waited
    "cancelled",  # jobs that ended by request
    "dead_lettered",
    "requeued",  # dead letters that a person dispatched again
    "discarded",
    "fenced",  # outcomes that were refused because their claim was stale
    "redispatched",  # dispatches of a job that nobody had taken, or whose worker died
    "admitted",  # jobs that their limits let go on
    "ungranted",  # admitted jobs that no worker took, and that wait for their limits again
)
_CAUSES: Final = frozenset({"requeued", "redispatched", "admitted", "ungranted"})  #: counted by these names
_COUNTED: Final = frozenset(tag for tag, cls in JOB.types.items() if LIFECYCLE[cls].counted)
assert set(COUNTERS) >= _COUNTED, "every event that is counted has its column: add it to COUNTERS"
#: `wait`: from becoming queued to the start. `run`: from the start to the outcome, lost attempts left out.
#: `total`: from the job's first event to a final state.
HISTOGRAMS: Final = ("wait", "run", "total")
_SPREAD: Final = "_spread"  #: end of the name of a column with a spread


def histogram_columns(name: str) -> tuple[str, str, str]:
    """Return the columns of a histogram, in the order of `histogram_values`."""
    return f"{name}_count", f"{name}_us", f"{name}{_SPREAD}"


HISTOGRAM_WIDTH: Final = len(histogram_columns(""))


def is_spread(column: str) -> bool:
    """Return whether a column holds a spread, and not a number."""
    return column.endswith(_SPREAD)


def declared(columns: Iterable[str], meaning: str) -> dict[str, Column]:
    """Declare columns that add up."""
    return {each: text(f"{meaning}, or NULL") if is_spread(each) else integer(meaning) for each in columns}


def merging(columns: Iterable[str]) -> list[str]:
    """Return the assignments that add to a row's spreads, for `Table.adding`."""
    return [
        f"{each} = iif(excluded.{each} IS NULL, {each}, merged_spread({each}, excluded.{each}))"
        for each in columns
        if is_spread(each)
    ]


def summed(column: str) -> str:
    """Return the SQL that adds up a column of several rows."""
    return f"sum_spread({column})" if is_spread(column) else f"sum({column})"


#: The columns of `totals` and `buckets` that add up.
STATISTICS: Final = (*COUNTERS, *(column for name in HISTOGRAMS for column in histogram_columns(name)))
#: For each state a column of its name, with the number of its jobs.
QUEUE_COUNTS: Final = tuple(state.value for state in JobState)

#: Most characters of an error's type, and most types per queue and task; further types count as `OTHER`.
ERROR_TYPE_CHARACTERS_MAX: Final = 200
ERROR_TYPES_MAX: Final = 100
OTHER: Final = "(other)"
NO_ERROR: Final = "(none)"  # error type of a dead letter without an error

MINUTE_US: Final = 60_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_AT: Final = {name: place for place, name in enumerate(COUNTERS)}
_ENQUEUED, _STARTED = _AT["enqueued"], _AT["started"]
_QUEUED, _RUNNING = JobState.QUEUED, JobState.RUNNING

#: Counters of a worker, after the times of its first and newest event.
WORKER_COUNTERS: Final = ("attempts", "completed", "failed", "lost", "interrupted", "fenced")
_WORKER_AT: Final = {name: place for place, name in enumerate(WORKER_COUNTERS, start=2)}
#: Counters per queue, task and type of error: failed attempts, and dead letters.
FAILURE_COUNTERS: Final = ("failed", "dead_lettered")

#: Events that end an attempt, a job, or both: place of the counter, and of the worker's counter.
_ENDS: Final[dict[type[JobEvent], tuple[int, int | None]]] = {
    cls: (_AT[tag], _WORKER_AT.get(tag))
    for tag, cls in JOB.types.items()
    if LIFECYCLE[cls].ends is not None and LIFECYCLE[cls].counted
}
#: Counters by tenant and hour.
_TENANT_AT: Final[dict[type[JobEvent], int]] = {Completed: 0, Failed: 1, DeadLettered: 2}
_ATTEMPTS: Final = _WORKER_AT["attempts"]


class SeenJob(msgspec.Struct, frozen=True, gc=False):
    """A job and two server times of it, kept beside the fold because events carry only their appenders' times."""

    job: Job
    first_us: int  #: time of its first event
    since_us: int  #: time of the event that began its present state or attempt


def microseconds(at: datetime) -> int:
    """Return a time as microseconds since 1970; one without a zone counts as UTC."""
    since = (at.replace(tzinfo=UTC) if at.tzinfo is None else at) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment(time_us: int) -> datetime:
    """Return microseconds since 1970 as a time in UTC."""
    return _EPOCH + timedelta(microseconds=time_us)


Sums = Sequence[int | Spread | None]  #: values of columns that add up; spreads are not yet text


def cell_values(cell: Cell) -> Sums:
    """Return a cell as values of its columns: the counters, then the histograms."""
    values: list[int | Spread | None] = [*cell.counts]
    for durations_us in (cell.waits_us, cell.runs_us, cell.totals_us):
        values += histogram_values(durations_us)
    return values


def histogram_values(durations_us: list[int]) -> tuple[int, int, Spread | None]:
    """Return durations as values of a histogram's columns: count, sum and spread."""
    if not durations_us:
        return 0, 0, None
    bounded = sorted(durations_us)
    if bounded[0] < 0 or bounded[-1] > DURATION_US_MAX:  # because a clock was set
        bounded = [min(max(each, 0), DURATION_US_MAX) for each in bounded]
    return len(bounded), sum(bounded), spread_of(bounded)


def added(one: Sums, other: Sums) -> Sums:
    """Add up the values of columns, one by one."""
    return [
        add(mine, its) if isinstance(mine, int) and isinstance(its, int) else _merged(mine, its)
        for mine, its in zip(one, other, strict=True)
    ]


def _merged(one: int | Spread | None, other: int | Spread | None) -> Spread | None:
    assert not isinstance(one, int), "a number and a spread are not of one column"
    assert not isinstance(other, int), "a number and a spread are not of one column"
    return merged(one, other)


def as_stored(values: Sums) -> tuple[Value, ...]:
    """Return values in the form for SQLite."""
    return tuple([each if isinstance(each, int) else to_text(each) for each in values])


class Cell:
    """The counts of one minute for the jobs of a task in a queue; durations are collected, and counted in the end."""

    __slots__ = ("counts", "runs_us", "totals_us", "waits_us")

    def __init__(self) -> None:
        self.counts = [0] * len(COUNTERS)
        self.waits_us: list[int] = []
        self.runs_us: list[int] = []
        self.totals_us: list[int] = []


class Tally:
    """The sums of the events of one transaction."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, str, str], Cell] = {}  #: by (minute since 1970, queue, task)
        self.workers: dict[str, list[int]] = {}  #: first and newest time, then `WORKER_COUNTERS`
        #: By (queue, task, type of error), in the order of the stream: `FAILURE_COUNTERS`.
        self.failures: dict[tuple[str, str, str], list[int]] = {}
        self.gauges: dict[tuple[str, str], dict[JobState, int]] = {}  #: by (queue, priority)
        self.tenants: dict[str, dict[JobState, int]] = {}  #: jobs by state, by tenant
        self.tenant_hours: dict[
            tuple[int, str], list[int]
        ] = {}  #: by (hour since 1970, tenant): counts at the places of `_TENANT_AT`
        self.limit_waits_us: dict[str, list[int]] = {}  #: by limit: how long each admitted job was held

    def add(self, event: JobEvent, before: SeenJob | None, after: Job, now_us: int) -> SeenJob:
        """Count an event stored at `now_us`, by the job before and after it; return `after` with its times."""
        kind = type(event)
        count = self._COUNTING.get(kind)
        if count is not None:
            count(self, event, before, after, now_us)
        if before is None:
            return _first_seen(event, after, now_us)
        if kind is Started or after.state is not before.job.state:
            return SeenJob(after, before.first_us, now_us)
        return SeenJob(after, before.first_us, before.since_us)

    def move(self, before: Job | None, after: Job) -> None:
        """Count a job out of the state it was in and into the one it is in."""
        if before is not None:
            a, b = before.order, after.order
            # The id of an archived job may be that of a job of another tenant now.
            if before.state is after.state and a.priority == b.priority and a.tenant == b.tenant:
                return
            self._shift(before, -1)
        self._shift(after, 1)

    def _shift(self, job: Job, by: int) -> None:
        key = (job.queue, job.order.priority)
        gauge = self.gauges.get(key)
        if gauge is None:
            gauge = self.gauges[key] = {}
        gauge[job.state] = gauge.get(job.state, 0) + by
        if job.order.tenant:
            gauge = self.tenants.get(job.order.tenant)
            if gauge is None:
                gauge = self.tenants[job.order.tenant] = {}
            gauge[job.state] = gauge.get(job.state, 0) + by

    def _cell(self, job: Job, now_us: int) -> Cell:
        key = (now_us // MINUTE_US, job.queue, job.task)
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell()
        return cell

    def _worker(self, name: str, now_us: int) -> list[int]:
        worker = self.workers.get(name)
        if worker is None:
            worker = self.workers[name] = [now_us, now_us, *([0] * len(WORKER_COUNTERS))]
        elif now_us > worker[1]:
            worker[1] = now_us
        elif now_us < worker[0]:
            worker[0] = now_us
        return worker

    def _ordered(self, event: JobEvent, before: SeenJob | None, after: Job, now_us: int) -> None:
        """`scheduled`, `held` and `queued`: a new job, or one that waits again."""
        if not event.prev:
            self._cell(after, now_us).counts[_ENQUEUED] += 1
            return
        if before is not None and before.job.state is _RUNNING and after.state is not _RUNNING:
            self._lost(self._cell(after, now_us), before)
        if not isinstance(event, Queued | Held):
            return
        if event.cause in _CAUSES:
            self._cell(after, now_us).counts[_AT[event.cause]] += 1
            if event.cause == "admitted" and before is not None:
                for limit in dict.fromkeys(split(each)[0] for each in after.order.limits):
                    self.limit_waits_us.setdefault(limit, []).append(now_us - before.since_us)
        elif before is not None and _has_failed(before.job):
            self._cell(after, now_us).counts[_AT["retried"]] += 1

    def _started(self, event: Started, before: SeenJob | None, after: Job, now_us: int) -> None:
        cell = self._cell(after, now_us)
        cell.counts[_STARTED] += 1
        self._worker(event.worker, now_us)[_ATTEMPTS] += 1
        if before is None:
            return
        if before.job.state is _QUEUED:
            cell.waits_us.append(now_us - before.since_us)
        elif before.job.state is _RUNNING:
            self._lost(cell, before)

    def _ended(self, event: JobEvent, before: SeenJob | None, after: Job, now_us: int) -> None:
        """An attempt's outcome, a job's final state, or both."""
        kind = type(event)
        if kind is Paused and before is not None and before.job.state is not _RUNNING:
            return  # a person paused a waiting job: no attempt ended
        place, worker_place = _ENDS[kind]
        cell = self._cell(after, now_us)
        cell.counts[place] += 1
        of_tenant = _TENANT_AT.get(kind)
        if of_tenant is not None and after.order.tenant:
            hour = (now_us // (60 * MINUTE_US), after.order.tenant)
            self.tenant_hours.setdefault(hour, [0, 0, 0])[of_tenant] += 1
        if kind is Failed or kind is DeadLettered:
            self._failure(after, COUNTERS[place])
            if after.state is _QUEUED:  # its work item will be delivered again
                cell.counts[_AT["retried"]] += 1
        if before is None:
            return
        job = before.job
        if job.state is _RUNNING:
            if kind is DeadLettered or kind is Discarded:
                self._lost(cell, before)
            else:
                cell.runs_us.append(now_us - before.since_us)
                worker = self._worker(job.attempts[-1].worker, now_us)
                if worker_place is not None:
                    worker[worker_place] += 1
        if after.state in FINAL_STATES and job.state not in FINAL_STATES:
            cell.totals_us.append(now_us - before.first_us)

    def _failure(self, job: Job, name: str) -> None:
        """Count under the type of the job's newest error, which is the event's own error if it has one."""
        error = job.error
        kind = error.type[:ERROR_TYPE_CHARACTERS_MAX] if error is not None else NO_ERROR
        counts = self.failures.setdefault((job.queue, job.task, kind), [0] * len(FAILURE_COUNTERS))
        counts[FAILURE_COUNTERS.index(name)] += 1

    def _lost(self, cell: Cell, before: SeenJob) -> None:
        """Count the running attempt as lost. Its worker appended nothing, so the worker's newest time stays."""
        running = before.job.running_attempt
        if running is not None:
            cell.counts[_AT["lost"]] += 1
            self._worker(running.worker, before.since_us)[_WORKER_AT["lost"]] += 1

    def _fenced(self, event: Fenced, _before: SeenJob | None, after: Job, now_us: int) -> None:
        self._cell(after, now_us).counts[_AT["fenced"]] += 1
        self._worker(event.worker, now_us)[_WORKER_AT["fenced"]] += 1

    def _noted(self, _event: JobEvent, before: SeenJob | None, _after: Job, now_us: int) -> None:
        """A checkpoint or progress: nothing to count, but its worker lives."""
        if before is not None and before.job.state is _RUNNING:
            self._worker(before.job.attempts[-1].worker, now_us)

    #: Other events are not counted: requests to a job, and `carried`, which an archive run stores before a purge.
    _COUNTING: ClassVar[dict[type[JobEvent], Callable[..., None]]] = {
        **dict.fromkeys(ORDERS, _ordered),
        Started: _started,
        **dict.fromkeys(_ENDS, _ended),
        Fenced: _fenced,
        **dict.fromkeys(CLAIMED - OUTCOMES, _noted),
    }


def _has_failed(job: Job) -> bool:
    return job.state is JobState.RETRY_WAIT and bool(job.attempts) and job.attempts[-1].state == "failed"


def _first_seen(event: JobEvent, job: Job, now_us: int) -> SeenJob:
    if type(event) in ORDERS:
        return SeenJob(job, now_us, now_us)
    # Its first events were archived, so the times in `carried` are the best known.
    running = job.running_attempt
    since = job.updated_at if running is None else running.started_at
    return SeenJob(job, microseconds(job.created_at), microseconds(since))
