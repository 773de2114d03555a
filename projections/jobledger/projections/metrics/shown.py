"""Rows of sums as a scrape shows them: the first ones of the ledger by name, and the others as one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Any

from jobledger.ledger.metrics.exposition import OTHER, Distribution
from jobledger.projections.statistics.tally import HISTOGRAM_BOUNDS_S

Labels = tuple[str, ...]


def shown(
    rows: Sequence[Sequence[Any]], labels: int, values_max: int
) -> tuple[dict[Labels, Sequence[int]], int]:
    """Return at most `values_max` rows by their labels, the others added up; and how many these others are.

    `labels`: how many columns in front of each row are labels.
    """
    found: dict[Labels, Sequence[int]] = {tuple(row[:labels]): row[labels:] for row in rows[:values_max]}
    others = rows[values_max:]
    for row in others:
        known = found.get((OTHER,) * labels)
        found[(OTHER,) * labels] = row[labels:] if known is None else tuple(map(add, known, row[labels:]))
    return found, len(others)


def distribution(columns: Sequence[int]) -> Distribution:
    """Return a histogram as its columns hold it."""
    *counts, count, sum_us = columns
    return Distribution(HISTOGRAM_BOUNDS_S, [*counts, count], sum_us / 1e6)
