"""Metrics of schedules from the tables: a bounded number by name, in the order of their first declaration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec
from prometheus_client.core import Metric

from jobledger.ledger.metrics.exposition import OTHER, values
from jobledger.projections.metrics import names
from jobledger.projections.queries.store import Store

_SHOWN: Final = (
    "SELECT name, tick_count, run_count, missed_count, skipped_count, CASE WHEN status = 'active' THEN next_run_at END, "
    "status = 'paused' FROM schedules ORDER BY rowid LIMIT ?"
)
_OTHERS: Final = (
    "SELECT count(*), coalesce(sum(tick_count), 0), coalesce(sum(run_count), 0), coalesce(sum(missed_count), 0), "
    "coalesce(sum(skipped_count), 0), "
    "min(CASE WHEN status = 'active' THEN next_run_at END), coalesce(max(status = 'paused'), 0) "
    "FROM (SELECT * FROM schedules ORDER BY rowid LIMIT -1 OFFSET ?)"
)


class TickingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, or the sum of several."""

    schedule: str  #: its name, or `(other)`
    ticks: int
    runs: int  #: jobs that it made
    missed: int  #: ticks that were missed and not caught up
    skipped: int  #: ticks that made no job because the last one had not ended
    due: str | None  #: time of the next tick, ISO-8601 text in UTC; None without one
    paused: int  #: 1 if the schedule, or one of several, is paused


def read_ticking(store: Store, values_max: int) -> tuple[list[TickingRow], int]:
    """Return at most `values_max` schedules by name and the sum of the others, and the number of these others."""
    rows = store.select(_SHOWN, (values_max,))
    ((others, *summed),) = store.select(_OTHERS, (values_max,))
    if others:
        rows.append((OTHER, *summed))
    return [TickingRow(**dict(zip(TickingRow.__struct_fields__, row, strict=True))) for row in rows], others


def ticking_metrics(rows: Sequence[TickingRow], now: datetime) -> Iterator[Metric]:
    """Return the metrics of schedules; `now`: for late ones."""
    yield values(names.TICKS, [((row.schedule,), row.ticks) for row in rows])
    yield values(names.TICKED_JOBS, [((row.schedule,), row.runs) for row in rows])
    yield values(names.TICKS_MISSED, [((row.schedule,), row.missed) for row in rows])
    yield values(names.TICKS_SKIPPED, [((row.schedule,), row.skipped) for row in rows])
    yield values(names.TICK_LATE, [((row.schedule,), seconds_since(row.due, now)) for row in rows])
    yield values(names.SCHEDULE_PAUSED, [((row.schedule,), row.paused) for row in rows])


def seconds_since(due: str | None, now: datetime) -> float:
    """Return the age in seconds of a moment in the tables (ISO-8601 text); 0 without one, or for a future one."""
    return 0.0 if due is None else max(0.0, (now - datetime.fromisoformat(due)).total_seconds())
