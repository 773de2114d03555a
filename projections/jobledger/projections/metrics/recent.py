"""Quantiles of durations in the last minutes, by queue and task, within a twentieth of the exact ones.

They are gauges, since the few bounds of Prometheus' histograms are far apart: 301 s may be shown as 10 minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from prometheus_client.core import Metric

from jobledger.ledger.metrics.exposition import values
from jobledger.projections.metrics import names
from jobledger.projections.metrics.row_sums import Labels
from jobledger.projections.queries.store import Store
from jobledger.projections.statistics.answers import Histogram, bucket_values
from jobledger.projections.statistics.tally import HISTOGRAM_WIDTH, histogram_columns, summed

_LATELY: Final = timedelta(minutes=5)
_SHARES: Final = (0.5, 0.95, 0.99)
_SUMS: Final = ", ".join(summed(each) for name in names.QUANTILES for each in histogram_columns(name))
_RECENT: Final = (
    f"SELECT queue, task, {_SUMS} FROM buckets WHERE minute >= ? AND (queue, task) IN "  # noqa: S608 - columns
    "(SELECT queue, task FROM totals ORDER BY rowid LIMIT ?) GROUP BY queue, task"
)

#: By queue and task, the histograms of `names.QUANTILES` in their order.
RecentTimes = Mapping[Labels, tuple[Histogram, ...]]


def read_recent(store: Store, values_max: int, now: datetime) -> RecentTimes:
    """Read the minutes up to `now` of the tasks that have series of their own."""
    since = bucket_values(now - _LATELY, None, 60)["since"]
    return {
        (row[0], row[1]): tuple(
            Histogram.of_columns(row[at : at + HISTOGRAM_WIDTH]) for at in range(2, len(row), HISTOGRAM_WIDTH)
        )
        for row in store.select(_RECENT, (since, values_max))
    }


def recent_metrics(recent: RecentTimes) -> Iterator[Metric]:
    """Return a gauge for each histogram; without recent durations it has no sample."""
    for place, measure in enumerate(names.QUANTILES.values()):
        samples = (
            ((*labels, str(share)), seconds)
            for labels, histograms in recent.items()
            for share in _SHARES
            if (seconds := histograms[place].quantile_s(share)) is not None
        )
        yield values(measure, samples)
