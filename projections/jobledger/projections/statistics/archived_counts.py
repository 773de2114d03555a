"""Rows of `totals` and `failures` as an archive run stores them, and projections that go on from them. Source: ADR 012.

The caller owns the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from jobledger.audit.counts import Counts
from jobledger.ledger.model.job import CLOSED_STATES
from jobledger.ledger.model.reactor import CountedFailure, CountedJob, CountedSpread, CountedTask
from jobledger.projections.position import ALL_COUNTED, COUNTED, Position
from jobledger.projections.statistics.spread import (
    BOUNDS_US,
    HISTOGRAM_BOUNDS_S,
    Spread,
    from_text,
    of_buckets,
)
from jobledger.projections.statistics.tables import ADD_FAILURES, ORIGINS, add_totals
from jobledger.projections.statistics.tally import FAILURE_COUNTERS, STATISTICS, Sums, is_spread
from jobledger.projections.table import Row

# Histograms as archive runs stored them before there were spreads: cumulative counts by sixteen bounds. Pure.

#: The ends of column names for each bound; only the count includes durations above the last bound.
_LABELS: Final = (
    *("5ms", "25ms", "100ms", "250ms", "500ms", "1s", "2500ms", "5s", "10s", "30s"),
    *("1m", "5m", "15m", "1h", "6h", "1d"),
)
_STOPS_US: Final = (-1, *(round(bound * 1e6) for bound in HISTOGRAM_BOUNDS_S))


def coarse_spread(name: str, numbers: Mapping[str, int]) -> Spread | None:
    """Return the spread of a histogram from its old columns; None if they counted nothing.

    Durations are spread evenly between two bounds; those beyond the last bound go into the next bucket.
    """
    below = [0, *(numbers.get(f"{name}_le_{label}", 0) for label in _LABELS)]
    counts: dict[int, int] = {}
    for (lower, upper), (before, through) in zip(pairwise(_STOPS_US), pairwise(below), strict=True):
        _lay_evenly(counts, lower, upper, through - before)
    longer = numbers.get(f"{name}_count", 0) - below[-1]
    if longer > 0:
        counts[next(each for each in BOUNDS_US if each > _STOPS_US[-1])] = longer
    return of_buckets(counts)


def _lay_evenly(counts: dict[int, int], lower_us: int, upper_us: int, count: int) -> None:
    """Distribute `count` durations above `lower_us` and up to `upper_us` over their buckets, by the width of each."""
    laid = 0
    for bound in BOUNDS_US:
        if lower_us < bound <= upper_us:
            through = count * (bound - lower_us) // (upper_us - lower_us)
            if through > laid:
                counts[bound] = through - laid
                laid = through


_IN_ORDER: Final = "ORDER BY rowid"  # in the order of first events, which decides about own series and rows
_SPREADS: Final = tuple(filter(is_spread, STATISTICS))
_NUMBERS: Final = tuple(each for each in STATISTICS if each not in _SPREADS)
_TOTALS: Final = f"SELECT queue, task, {', '.join((*_NUMBERS, *_SPREADS))} FROM totals {_IN_ORDER}"  # noqa: S608 - constants
_FAILURES: Final = f"SELECT queue, task, error_type, {', '.join(FAILURE_COUNTERS)} FROM failures {_IN_ORDER}"  # noqa: S608
_CLOSED: Final = ", ".join(f"'{state.value}'" for state in sorted(CLOSED_STATES))
#: Jobs whose first event for a projection that begins after the archive is `carried`.
_JOBS: Final = (
    f"SELECT queue, id, first_us, since_us FROM jobs WHERE status NOT IN ({_CLOSED}) "  # noqa: S608
    "AND json_extract(CAST(fold AS TEXT), '$.carried_sequence') > 0 ORDER BY rowid"
)

_PUT_ORIGIN: Final = ORIGINS.putting()
_SELECT_ORIGINS: Final = "SELECT first_us, since_us, job_id, queue FROM origins"
_DROP_ORIGINS: Final = "DELETE FROM origins"
_UPDATE_TIMES: Final = "UPDATE jobs SET first_us = ?, since_us = ? WHERE id = ? AND queue = ?"


def read_counts(connection: sqlite3.Connection, position: Position) -> Counts:
    """Return the counts in the rows; `position` is the position of the rows."""
    execute = connection.execute
    return Counts(
        through_sequence=position.stream_sequence,
        begins_at=position.counts_begin_at,
        columns=_NUMBERS,
        spread_columns=_SPREADS,
        totals=tuple(_counted_task(*row) for row in execute(_TOTALS)),
        failure_columns=FAILURE_COUNTERS,
        failures=tuple(
            CountedFailure(queue=row[0], task=row[1], error_type=row[2], counts=row[3:])
            for row in execute(_FAILURES)
        ),
        jobs=tuple(
            CountedJob(queue=row[0], job=row[1], first_us=row[2], since_us=row[3]) for row in execute(_JOBS)
        ),
    )


def begin_with(connection: sqlite3.Connection, counts: Counts) -> None:
    """Write the counts and their end; first delete the counts of an earlier archive run."""
    for table in ("totals", "sums", "failures", "origins"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608 - constants
    add_totals(connection, [(row.queue, row.task, _sums(counts, row)) for row in counts.totals])
    failures = _placed(FAILURE_COUNTERS, counts.failure_columns)
    rows: Iterator[Row] = (
        (row.queue, row.task, row.error_type, *_values(failures, row.counts)) for row in counts.failures
    )
    connection.executemany(ADD_FAILURES, rows)
    connection.executemany(
        _PUT_ORIGIN, ((row.job, row.queue, row.first_us, row.since_us) for row in counts.jobs)
    )
    connection.execute(COUNTED, (counts.begins_at, counts.through_sequence))


def end_with(connection: sqlite3.Connection) -> None:
    """Give carried jobs the times that the archive run recorded; from now on this projection counts all itself."""
    connection.executemany(_UPDATE_TIMES, connection.execute(_SELECT_ORIGINS).fetchall())
    connection.execute(_DROP_ORIGINS)
    connection.execute(ALL_COUNTED)


def _counted_task(queue: str, task: str, *values: int | str | None) -> CountedTask:
    numbers, texts = values[: len(_NUMBERS)], values[len(_NUMBERS) :]
    return CountedTask(
        queue=queue,
        task=task,
        counts=tuple(each for each in numbers if isinstance(each, int)),
        spreads=tuple(_counted_spread(from_text(each if isinstance(each, str) else None)) for each in texts),
    )


def _counted_spread(spread: Spread | None) -> CountedSpread | None:
    if spread is None:
        return None
    return CountedSpread(
        smallest_us=spread.smallest_us, largest_us=spread.largest_us, counts=dict(spread.counts)
    )


def _sums(counts: Counts, row: CountedTask) -> Sums:
    """Return a row's columns; an older version had counts by fewer bounds instead of spreads."""
    numbers = dict(zip(counts.columns, row.counts, strict=True))
    spreads = dict(zip(counts.spread_columns, row.spreads, strict=True))
    return [
        _spread(each, spreads, numbers) if is_spread(each) else numbers.get(each, 0) for each in STATISTICS
    ]


def _spread(
    column: str, spreads: Mapping[str, CountedSpread | None], numbers: Mapping[str, int]
) -> Spread | None:
    if column not in spreads:
        return coarse_spread(column.removesuffix("_spread"), numbers)
    found = spreads[column]
    return None if found is None else Spread(found.smallest_us, found.largest_us, found.counts)


def _placed(wanted: Sequence[str], stored: Sequence[str]) -> list[int | None]:
    """Return the place of each column in the stored row, None for a column that was not counted then."""
    places = {name: place for place, name in enumerate(stored)}
    return [places.get(name) for name in wanted]


def _values(places: Sequence[int | None], counts: Sequence[int]) -> tuple[int, ...]:
    return tuple(0 if place is None else counts[place] for place in places)
