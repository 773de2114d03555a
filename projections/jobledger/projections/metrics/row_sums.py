"""Rows of sums for a scrape: the first ones of the ledger by name, the others as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobledger.ledger.metrics.exposition import OTHER, Distribution
from jobledger.projections.statistics.spread import (
    HISTOGRAM_BOUNDS_S,
    cumulative,
    from_text,
    merged_text,
    to_text,
    without,
)

Labels = tuple[str, ...]


def shown(
    rows: Sequence[Sequence[Any]], labels: int, values_max: int
) -> tuple[dict[Labels, Sequence[Any]], int]:
    """Return at most `values_max` rows by their labels, and the sum of the others; also the number of these.

    `labels`: how many columns in front of each row are labels.
    """
    found: dict[Labels, Sequence[Any]] = {tuple(row[:labels]): row[labels:] for row in rows[:values_max]}
    others = rows[values_max:]
    for row in others:
        known = found.get((OTHER,) * labels)
        found[(OTHER,) * labels] = row[labels:] if known is None else tuple(map(plus, known, row[labels:]))
    return found, len(others)


def plus(one: Any, other: Any) -> Any:
    """Add the values of a column in two rows, which are numbers or spreads."""
    return one + other if isinstance(one, int) else merged_text(one, other)


def minus(whole: Any, part: Any) -> Any:
    """Subtract a value that `plus` added."""
    return whole - part if isinstance(whole, int) else to_text(without(from_text(whole), from_text(part)))


def distribution(columns: Sequence[Any]) -> Distribution:
    """Return the histogram in the columns of a row."""
    count, sum_us, text = columns
    spread = from_text(text)
    counts = cumulative({} if spread is None else spread.counts)
    return Distribution(HISTOGRAM_BOUNDS_S, [*counts, count], sum_us / 1e6)
