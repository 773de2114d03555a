"""Metrics of runs from the tables: a bounded number of queues and targets by name, in the order of the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from prometheus_client.core import Metric

from jobledger.ledger.metrics.exposition import histograms, values
from jobledger.ledger.model.runs.wait_words import AWAITED
from jobledger.projections.metrics import names
from jobledger.projections.metrics.row_sums import Labels, distribution, shown
from jobledger.projections.queries.store import Store
from jobledger.projections.statistics.runs import (
    RUN_COUNTERS,
    RUN_STATISTICS,
    STEP_OUTCOMES,
    STEP_STATISTICS,
)

_STEPS: Final = f"SELECT queue, target, {', '.join(STEP_STATISTICS)} FROM step_totals ORDER BY rowid"  # noqa: S608
_RUNS: Final = f"SELECT queue, {', '.join(RUN_STATISTICS)} FROM run_totals ORDER BY rowid"  # noqa: S608
_AWAITING: Final = "SELECT awaiting, count(*) FROM jobs WHERE awaiting IS NOT NULL GROUP BY awaiting"


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of runs for a scrape: values of the columns, counters first, then a histogram."""

    steps: dict[Labels, Sequence[Any]]  #: by queue and target
    steps_folded: int  #: pairs without a name of their own
    runs: dict[Labels, Sequence[Any]]  #: by queue
    waiting: dict[str, int]  #: number of waiting runs by reason


def read_running(store: Store, values_max: int) -> RunFigures:
    """Return at most `values_max` queues and targets by name, and the sum of the others."""
    steps, folded = shown(store.select(_STEPS), 2, values_max)
    runs, _ = shown(store.select(_RUNS), 1, values_max)
    waiting: dict[str, int] = dict.fromkeys(AWAITED, 0)
    for awaiting, count in store.select(_AWAITING):
        for each in awaiting.split():
            waiting[each] = waiting.get(each, 0) + count
    return RunFigures(steps=steps, steps_folded=folded, runs=runs, waiting=waiting)


def running_metrics(running: RunFigures) -> Iterator[Metric]:
    """Return the metrics of steps, ends and waits of runs."""
    steps, runs, outcomes = running.steps, running.runs, len(STEP_OUTCOMES)
    yield values(
        names.STEPS,
        (
            ((*key, outcome), row[place])
            for key, row in steps.items()
            for place, outcome in enumerate(STEP_OUTCOMES)
        ),
    )
    yield histograms(names.STEP_RUN, [(key, distribution(row[outcomes:])) for key, row in steps.items()])
    counted = {name: place for place, name in enumerate(RUN_COUNTERS)}
    yield values(names.JOINS, [(key, row[counted["joins"]]) for key, row in runs.items()])
    yield values(
        names.JOINED,
        (
            ((*key, outcome), row[counted[f"children_{outcome}"]])
            for key, row in runs.items()
            for outcome in ("completed", "failed")
        ),
    )
    yield histograms(names.JOIN_LAG, [(key, distribution(row[len(counted) :])) for key, row in runs.items()])
    yield values(names.RUNS_WAITING, [((kind,), count) for kind, count in running.waiting.items()])
    yield values(names.RUNS_DIVERGED, [(key, row[counted["diverged"]]) for key, row in runs.items()])
