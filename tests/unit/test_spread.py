"""Spreads of durations: percentiles within a twentieth of the exact ones, sums that do not depend on their order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from jobledger.ledger.model.reactor import CountedSpread, CountedTask
from jobledger.projections import HISTOGRAM_BOUNDS_S, Histogram
from jobledger.projections.metrics.recent import RecentTimes, recent_metrics
from jobledger.projections.statistics.archived_counts import coarse_spread
from jobledger.projections.statistics.spread import (
    BOUNDS_US,
    DURATION_US_MAX,
    Spread,
    cumulative,
    from_text,
    merged,
    merged_text,
    quantile_us,
    spread_of,
    to_text,
    without,
)

SECOND = 1_000_000
Shape = Callable[[random.Random], float]  # a duration in seconds

SHAPES: dict[str, Shape] = {
    "uniform": lambda chance: chance.uniform(0.001, 10),
    "normal": lambda chance: abs(chance.gauss(30, 3)),
    "exponential": lambda chance: chance.expovariate(5),
    "lognormal": lambda chance: chance.lognormvariate(0, 2),
    "pareto": lambda chance: 0.01 * chance.paretovariate(0.8),
    "weibull": lambda chance: chance.weibullvariate(3, 0.5),
    "constant": lambda _: 301.0,
    "two clusters": lambda chance: (
        chance.gauss(0.02, 0.001) if chance.random() < 0.6 else chance.gauss(90, 5)
    ),
    "few values": lambda chance: chance.choice((0.000_003, 0.7, 1.2, 1.3, 45.0)),
    "microseconds": lambda chance: chance.expovariate(20_000),
}


def exact_us(ascending: list[int], share: float) -> int:
    return ascending[max(1, math.ceil(share * len(ascending))) - 1]


def worst_of(shape: Shape, count: int, seed: int) -> float:
    """Return by which part of the exact ones p50, p95 and p99 are off at most, of parts that were added up as texts."""
    chance = random.Random(seed)
    durations = [max(0, round(shape(chance) * SECOND)) for _ in range(count)]
    text: str | None = None
    for first in range(0, count, max(1, count // 7)):
        part = spread_of(sorted(durations[first : first + max(1, count // 7)]))
        text = merged_text(text, to_text(part))
    spread = from_text(text)
    assert spread is not None
    durations.sort()
    assert (spread.smallest_us, spread.largest_us) == (durations[0], durations[-1])
    return max(
        abs(quantile_us(spread, share) - exact) / max(1, exact)
        for share in (0.5, 0.95, 0.99)
        for exact in (exact_us(durations, share),)
    )


def test_percentiles_are_within_a_twentieth_of_the_exact_ones() -> None:
    for seed, (name, shape) in enumerate(SHAPES.items()):
        assert worst_of(shape, 5_000, seed) <= 0.05, name
        assert worst_of(shape, 3, seed) <= 0.05, name


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_percentiles_of_a_million_durations_are_within_a_twentieth_of_the_exact_ones() -> None:
    for seed, (name, shape) in enumerate(SHAPES.items()):
        worst = worst_of(shape, 1_000_000, seed)
        assert worst <= 0.05, f"{name}: {worst:.2%} beside the exact ones"


def histogram(*seconds: float) -> Histogram:
    durations = sorted(round(each * SECOND) for each in seconds)
    return Histogram.of_columns((len(durations), sum(durations), to_text(spread_of(durations))))


def test_few_durations_are_told_as_they_were() -> None:
    assert [histogram(301, 301, 301).quantile_s(share) for share in (0.0, 0.5, 0.99)] == [301.0] * 3
    assert histogram(1.2).quantile_s(0.5) == 1.2
    two = histogram(0.004, 70)
    assert (two.quantile_s(0.5), two.quantile_s(0.95)) == (0.004, 70.0)
    assert (two.count, two.smallest_s, two.largest_s) == (2, 0.004, 70.0)
    both = Histogram.merged([two, Histogram.merged([]), histogram(301)])
    assert (both.count, both.largest_s, both.quantile_s(1.0)) == (3, 301.0, 301.0)
    assert both.counts == tuple(
        sum(each <= bound for each in (0.004, 70, 301)) for bound in HISTOGRAM_BOUNDS_S
    )


def test_metrics_tell_quantiles_as_they_were() -> None:
    """301 s each would be between 5 and 10 minutes by the bounds of Prometheus' histograms."""
    recent: RecentTimes = {("mail", "send"): (histogram(301, 301, 301), histogram(1.2), Histogram.merged([]))}
    told = {each.name: [one.value for one in each.samples] for each in recent_metrics(recent)}
    assert told == {
        "jobledger_job_wait_recent_seconds": [301.0] * 3,
        "jobledger_attempt_run_recent_seconds": [1.2] * 3,
        "jobledger_job_total_recent_seconds": [],
    }


def test_every_bucket_is_at_most_a_tenth_wide_and_ends_where_one_of_prometheus_does() -> None:
    assert all(upper - (lower + 1) <= (lower + 1) / 10 for lower, upper in pairwise(BOUNDS_US))
    assert {round(bound * 1e6) for bound in HISTOGRAM_BOUNDS_S} <= set(BOUNDS_US)
    assert BOUNDS_US[-1] == DURATION_US_MAX


def test_a_sum_is_the_same_text_in_every_order() -> None:
    chance = random.Random(4)
    durations = [round(chance.lognormvariate(12, 3)) for _ in range(300)]
    whole = to_text(spread_of(sorted(durations)))
    for _ in range(5):
        chance.shuffle(durations)
        text = None
        for each in durations:  # one bucket at a time, most of them there already
            text = merged_text(text, to_text(spread_of([each])))
        assert text == whole
    assert from_text(whole) == spread_of(sorted(durations))
    some = spread_of([5, 5, 900])
    assert merged(some, None) == merged(None, some) == some
    left = without(merged(some, spread_of([5, 7_000])), spread_of([5, 900]))
    assert left is not None
    assert left.counts == Spread(0, 0, {5: 2, next(each for each in BOUNDS_US if each >= 7_000): 1}).counts
    assert without(some, some) is None


def test_histograms_of_an_older_archive_run_keep_their_counts() -> None:
    """Their cumulative counts stay, and each duration lies between the two bounds that are known of it."""
    labels = [
        "5ms",
        "25ms",
        "100ms",
        "250ms",
        "500ms",
        "1s",
        "2500ms",
        "5s",
        "10s",
        "30s",
        "1m",
        "5m",
        "15m",
        "1h",
        "6h",
        "1d",
    ]
    counts = [3, 3, 10, 10, 10, 17, 400, 401, 401, 401, 401, 401, 401, 401, 401, 402]
    numbers = {f"run_le_{label}": count for label, count in zip(labels, counts, strict=True)}
    spread = coarse_spread("run", numbers | {"run_count": 405, "run_us": 7})
    assert spread is not None
    assert cumulative(spread.counts) == tuple(counts)
    assert sum(spread.counts.values()) == 405
    assert 1.0 < quantile_us(spread, 0.5) / SECOND <= 2.5
    assert coarse_spread("wait", numbers) is None
    assert CountedTask(queue="q", task="t", counts=()).spreads == ()
    assert CountedSpread(smallest_us=1, largest_us=1, counts={1: 1}).counts == {1: 1}
