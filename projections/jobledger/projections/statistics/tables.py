"""The tables of the statistics, and the writing of a tally into their rows: one statement for each touched key.

The caller owns the transaction. Every row is added to, never replaced, so the sum of all transactions counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final

from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.times import time_text
from jobledger.projections.statistics.tally import (
    ERROR_TYPES_MAX,
    FAILURE_COUNTERS,
    OTHER,
    QUEUE_COUNTS,
    STATISTICS,
    WORKER_COUNTERS,
    Sums,
    Tally,
    added,
    as_stored,
    cell_values,
    declared,
    histogram_columns,
    histogram_values,
    merging,
    moment,
)
from jobledger.projections.table import Index, Row, Table, integer, text, timestamp

_STATES: Final = tuple(JobState)
#: The columns of `limit_waits` that add up.
LIMIT_STATISTICS: Final = histogram_columns("wait")
_STATISTICS: Final = declared(STATISTICS, "as in [Statistics](#statistics)")
_COUNTED_QUEUE: Final = text("the queue")
_COUNTED_TASK: Final = text("the task's name")

QUEUES: Final = Table(
    name="queues",
    row="queue and priority: how many of its jobs are in each state",
    columns={
        "queue": _COUNTED_QUEUE,
        "priority": text("`high`, `normal` or `low`"),
        **dict.fromkeys(QUEUE_COUNTS, integer("jobs that are in this state")),
    },
    key=("queue", "priority"),
)
TOTALS: Final = Table(
    name="totals",
    row="queue and task: all that ever happened, and how long it took",
    columns={"queue": _COUNTED_QUEUE, "task": _COUNTED_TASK, **_STATISTICS},
    key=("queue", "task"),
)
#: The sums of all tasks of a queue, and in the row "" of all queues, so that an exporter need not read every row.
SUMS: Final = Table(
    name="sums",
    row='queue: the sum of its rows in `totals`; `""` is the sum of all queues',
    columns={"queue": text('the queue; "": all of them'), **_STATISTICS},
    key=("queue",),
)
BUCKETS: Final = Table(
    name="buckets",
    row="minute, queue and task: the same columns",
    columns={
        "minute": integer("since 1970, by the server's time"),
        "queue": _COUNTED_QUEUE,
        "task": _COUNTED_TASK,
        **_STATISTICS,
    },
    key=("minute", "queue", "task"),
)
FAILURES: Final = Table(
    name="failures",
    row="queue, task and type of error: failed attempts and dead letters",
    columns={
        "queue": _COUNTED_QUEUE,
        "task": _COUNTED_TASK,
        "error_type": text("the exception's class name, or `(other)`"),
        **dict.fromkeys(FAILURE_COUNTERS, integer("attempts that failed, dead letters")),
    },
    key=("queue", "task", "error_type"),
)
WORKERS: Final = Table(
    name="workers",
    row="worker that ever started an attempt",
    columns={
        "worker": text("`<host>-<pid>-<random>`"),
        "first_at": timestamp("the server's time of its first event"),
        "last_at": timestamp("the server's time of its newest event"),
        **dict.fromkeys(WORKER_COUNTERS, integer("attempts that it began, and how they ended")),
    },
    key=("worker",),
    indexes=(Index(("last_at",)),),
)
#: How long jobs were held before their limits admitted them; events before those in the rows are not counted.
LIMIT_WAITS: Final = Table(
    name="limit_waits",
    row="[limit](#statistics-of-limits) that ever let a job go on: how long such jobs were held",
    columns={
        "name": text("the limit's name, without a key"),
        **declared(LIMIT_STATISTICS, "as in [Statistics of limits](#statistics-of-limits)"),
    },
    key=("name",),
)
#: The beginnings of carried jobs, as an archive run recorded them; emptied once the rows reach `counted_through`.
ORIGINS: Final = Table(
    name="origins",
    row="carried job, until `totals` counts on from an archive run; else empty",
    columns={
        "job_id": text("the job's id"),
        "queue": text("the job's queue"),
        "first_us": integer("as in `jobs`", is_internal=True),
        "since_us": integer("as in `jobs`", is_internal=True),
    },
    key=("job_id", "queue"),
)
#: The jobs of each tenant by state, and their ends hour by hour, so that a page of tenants reads no jobs.
TENANTS: Final = Table(
    name="tenants",
    row="tenant: how many of its jobs are in each state",
    columns={
        "tenant": text("whom the jobs belong to"),
        **dict.fromkeys(QUEUE_COUNTS, integer("jobs that are in this state")),
    },
    key=("tenant",),
)
TENANT_HOURS: Final = Table(
    name="tenant_hours",
    row="hour and tenant: jobs that completed and died, attempts that failed",
    columns={
        "hour": integer("since 1970, by the server's time"),
        "tenant": text("whom the jobs belong to"),
        "completed": integer("jobs"),
        "failed": integer("attempts"),
        "dead_lettered": integer("jobs"),
    },
    key=("hour", "tenant"),
)
STATISTICS_TABLES: Final = (
    QUEUES,
    TOTALS,
    SUMS,
    BUCKETS,
    FAILURES,
    WORKERS,
    LIMIT_WAITS,
    ORIGINS,
    TENANTS,
    TENANT_HOURS,
)

ADD_QUEUE: Final = QUEUES.adding(QUEUE_COUNTS)
_ADD_TENANT: Final = TENANTS.adding(QUEUE_COUNTS)
_ADD_TENANT_HOUR: Final = TENANT_HOURS.adding(("completed", "failed", "dead_lettered"))
ADD_FAILURES: Final = FAILURES.adding(FAILURE_COUNTERS)
_ADD_TOTALS: Final = TOTALS.adding(STATISTICS, *merging(STATISTICS))
_ADD_SUMS: Final = SUMS.adding(STATISTICS, *merging(STATISTICS))
_ADD_BUCKET: Final = BUCKETS.adding(STATISTICS, *merging(STATISTICS))
_ADD_WORKER: Final = WORKERS.adding(
    ("first_at", "last_at", *WORKER_COUNTERS),
    "first_at = min(first_at, excluded.first_at)",
    "last_at = max(last_at, excluded.last_at)",
)
_ADD_LIMIT_WAITS: Final = LIMIT_WAITS.adding(LIMIT_STATISTICS, *merging(LIMIT_STATISTICS))
_SELECT_ERROR_TYPES: Final = "SELECT error_type FROM failures WHERE queue = ? AND task = ?"


def add_tally(connection: sqlite3.Connection, tally: Tally, *, totals: bool = True) -> None:
    """Add the sums of a transaction's events; without `totals` if these counted the events already."""
    connection.executemany(ADD_QUEUE, _queue_rows(tally))
    buckets = {key: cell_values(cell) for key, cell in tally.cells.items()}
    connection.executemany(_ADD_BUCKET, ((*key, *as_stored(values)) for key, values in buckets.items()))
    connection.executemany(_ADD_WORKER, _worker_rows(tally))
    connection.executemany(_ADD_TENANT, _tenant_rows(tally))
    connection.executemany(_ADD_TENANT_HOUR, ((*key, *counts) for key, counts in tally.tenant_hours.items()))
    limits = ((name, *as_stored(histogram_values(waits))) for name, waits in tally.limit_waits_us.items())
    connection.executemany(_ADD_LIMIT_WAITS, limits)
    if not totals:
        return
    add_totals(connection, list(_total_rows(buckets)))
    connection.executemany(ADD_FAILURES, _failure_rows(connection, tally))


def add_totals(connection: sqlite3.Connection, rows: Sequence[tuple[str, str, Sums]]) -> None:
    """Add to `totals` and to `sums`, in the order of the stream, which both tables keep."""
    sums: dict[str, Sums] = {}
    for queue, _, values in rows:
        for key in ("", queue):
            known = sums.get(key)
            sums[key] = values if known is None else added(known, values)
    connection.executemany(_ADD_TOTALS, ((queue, task, *as_stored(values)) for queue, task, values in rows))
    connection.executemany(_ADD_SUMS, ((queue, *as_stored(values)) for queue, values in sums.items()))


def _queue_rows(tally: Tally) -> Iterator[Row]:
    for key, gauge in tally.gauges.items():
        yield (*key, *(gauge.get(state, 0) for state in _STATES))


def _tenant_rows(tally: Tally) -> Iterator[Row]:
    for tenant, gauge in tally.tenants.items():
        yield (tenant, *(gauge.get(state, 0) for state in _STATES))


def _total_rows(
    buckets: dict[tuple[int, str, str], Sums],
) -> Iterator[tuple[str, str, Sums]]:
    minutes: dict[tuple[str, str], list[Sums]] = {}
    for (_, queue, task), values in buckets.items():
        minutes.setdefault((queue, task), []).append(values)
    for key, found in minutes.items():
        yield (*key, reduce(added, found))


def _worker_rows(tally: Tally) -> Iterator[Row]:
    for name, (first_us, last_us, *counts) in tally.workers.items():
        yield (name, time_text(moment(first_us)), time_text(moment(last_us)), *counts)


def _failure_rows(connection: sqlite3.Connection, tally: Tally) -> list[Row]:
    """Return the rows of failures: the first error types of a queue and task get own rows, the rest share one.

    The order of types is that of the stream, so that rows do not depend on how events are cut into batches.
    """
    known: dict[tuple[str, str], set[str]] = {}
    found: list[Row] = []
    for (queue, task, kind), counts in tally.failures.items():
        kinds = known.get((queue, task))
        if kinds is None:
            rows = connection.execute(_SELECT_ERROR_TYPES, (queue, task))
            kinds = known[queue, task] = {row[0] for row in rows} - {OTHER}
        if kind not in kinds and len(kinds) < ERROR_TYPES_MAX and kind != OTHER:
            kinds.add(kind)
        found.append((queue, task, kind if kind in kinds else OTHER, *counts))
    return found
