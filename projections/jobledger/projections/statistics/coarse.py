"""Histograms as archive runs stored them before there were spreads: cumulative counts by sixteen bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from jobledger.projections.statistics.spread import BOUNDS_US, HISTOGRAM_BOUNDS_S, Spread, of_buckets

#: The ends of column names, by bound; durations above the last bound are only in the count.
_LABELS: Final = (
    *("5ms", "25ms", "100ms", "250ms", "500ms", "1s", "2500ms", "5s", "10s", "30s"),
    *("1m", "5m", "15m", "1h", "6h", "1d"),
)
_STOPS_US: Final = (-1, *(round(bound * 1e6) for bound in HISTOGRAM_BOUNDS_S))


def coarse_spread(name: str, numbers: Mapping[str, int]) -> Spread | None:
    """Return the spread of a histogram by its old columns; None where they counted nothing.

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
    """Lay `count` durations above `lower_us` and up to `upper_us` into their buckets, by the width of each."""
    laid = 0
    for bound in BOUNDS_US:
        if lower_us < bound <= upper_us:
            through = count * (bound - lower_us) // (upper_us - lower_us)
            if through > laid:
                counts[bound] = through - laid
                laid = through
