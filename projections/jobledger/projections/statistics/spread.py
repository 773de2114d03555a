"""Spreads of durations: the number in each bucket (at most a tenth wide), the smallest and the largest. Pure.

A bucket is named by its upper bound, so that counts can be read without a list of the bounds, and added to those of
another version. Spreads add up, in any order. Source: ADR 041.
"""

from __future__ import annotations

import math
import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

#: Upper bounds of the histograms of Prometheus, in seconds; `+Inf` is the count. Each bound ends a bucket.
HISTOGRAM_BOUNDS_S: Final = (
    *(0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 900.0, 3_600.0, 21_600.0, 86_400.0),
)
#: Longer than any real duration: keeps sums within 64 bits for any values of foreign clocks.
DURATION_US_MAX: Final = 10 * 365 * 86_400 * 1_000_000
_COARSE_US: Final = tuple(round(bound * 1e6) for bound in HISTOGRAM_BOUNDS_S)


def _bounds_us() -> Iterator[int]:
    """Yield the upper bounds: every microsecond up to 10, then steps of a tenth, among them every coarse bound."""
    stops = iter((*_COARSE_US, DURATION_US_MAX))
    bound, stop = 0, next(stops)
    while bound < DURATION_US_MAX:
        yield bound
        bound = min(max(bound + 1, bound * 11 // 10), stop)
        if bound == stop:
            stop = next(stops, DURATION_US_MAX)
    yield DURATION_US_MAX


BOUNDS_US: Final = tuple(_bounds_us())


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """The spread of at least one duration, in whole microseconds. As stored: `[1, 9, {"1": 3, "9": 1}]`."""

    smallest_us: int
    largest_us: int
    counts: dict[int, int]  #: number of durations by the upper bound of their bucket, ascending


_TEXT_END: Final = "}]"
_PATCHED_MAX: Final = 4  #: so few buckets are added faster one by one than by decoding the other spread
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Spread).decode


def spread_of(durations_us: Sequence[int]) -> Spread | None:
    """Return the spread of ascending durations of 0 to `DURATION_US_MAX`; None for no duration."""
    if not durations_us:
        return None
    counts: dict[int, int] = {}
    for each in durations_us:
        bound = BOUNDS_US[bisect_left(BOUNDS_US, each)]
        counts[bound] = counts.get(bound, 0) + 1
    return Spread(durations_us[0], durations_us[-1], counts)


def merged(one: Spread | None, other: Spread | None) -> Spread | None:
    """Add two spreads up."""
    if one is None or other is None:
        return one or other
    counts = _added(one.counts, other.counts)
    return Spread(min(one.smallest_us, other.smallest_us), max(one.largest_us, other.largest_us), counts)


def _added(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    counts = dict(one)
    for bound, count in other.items():
        counts[bound] = counts.get(bound, 0) + count
    return counts if len(counts) == len(one) else dict(sorted(counts.items()))


def without(whole: Spread | None, part: Spread | None) -> Spread | None:
    """Subtract a spread that was added; the smallest and largest are then known only to their buckets."""
    if whole is None or part is None:
        return whole
    left = {bound: count - part.counts.get(bound, 0) for bound, count in whole.counts.items()}
    return of_buckets({bound: count for bound, count in left.items() if count > 0})


def of_buckets(counts: Mapping[int, int]) -> Spread | None:
    """Return the spread of which only counts by bucket are known; None if these are empty."""
    ascending = dict(sorted(counts.items()))
    if not ascending:
        return None
    return Spread(lower_us(next(iter(ascending))), next(reversed(ascending)), ascending)


def lower_us(bound_us: int) -> int:
    """Return the smallest duration of the bucket that ends at `bound_us`."""
    place = bisect_left(BOUNDS_US, bound_us)
    return BOUNDS_US[place - 1] + 1 if place else 0


def cumulative(counts: Mapping[int, int], bounds_s: Sequence[float] = HISTOGRAM_BOUNDS_S) -> tuple[int, ...]:
    """Return for each bound (seconds, ascending) how many are not above it; exact if the bound ends a bucket."""
    found: list[int] = []
    below, left = 0, sorted(counts.items(), reverse=True)
    for bound_s in bounds_s:
        while left and left[-1][0] <= bound_s * 1e6:
            below += left.pop()[1]
        found.append(below)
    return tuple(found)


def quantile_us(spread: Spread, share: float) -> float:
    """Return the duration that a `share` (0 to 1) does not exceed, at most a twentieth from the exact one."""
    total = sum(spread.counts.values())
    rank = max(1, math.ceil(share * total))
    if rank == 1 or rank >= total:
        return spread.smallest_us if rank == 1 else spread.largest_us
    seen = 0
    for bound, count in spread.counts.items():
        seen += count
        if seen >= rank:
            # The geometric mean has the same relative distance from both ends of the bucket.
            middle = math.sqrt(lower_us(bound) * bound)
            return min(max(middle, spread.smallest_us), spread.largest_us)
    return spread.largest_us


def to_text(spread: Spread | None) -> str | None:
    """Return a spread as text for a column."""
    return None if spread is None else _encode(spread).decode()


def from_text(text: str | None) -> Spread | None:
    """Return the spread in a column."""
    return None if text is None else _decode(text)


def merged_text(one: str | None, other: str | None) -> str | None:
    """Add the spreads in two columns."""
    if one is None or other is None:
        return one or other
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    few = _decode(short)
    found = _patched(long, few) if len(few.counts) <= _PATCHED_MAX else None
    return to_text(merged(_decode(long), few)) if found is None else found


def _patched(text: str, few: Spread) -> str | None:
    """Return a spread's text plus `few`; None if it lacks one of their buckets. Needs a quarter of the time."""
    numbers, tail = text.split("{", 1)
    smallest, largest, _ = numbers[1:].split(",")
    for bound, count in few.counts.items():
        key = f'"{bound}":'
        at = tail.find(key)
        if at < 0:
            return None
        at += len(key)
        end = tail.find(",", at)
        end = end if end >= 0 else len(tail) - len(_TEXT_END)
        tail = f"{tail[:at]}{int(tail[at:end]) + count}{tail[end:]}"
    return f"[{min(int(smallest), few.smallest_us)},{max(int(largest), few.largest_us)},{{{tail}"


class _SumSpread:
    """The aggregate `sum_spread` of SQL."""

    def __init__(self) -> None:
        self._found: Spread | None = None

    def step(self, text: str | None) -> None:
        """Add a spread."""
        if text is not None:
            self._found = merged(self._found, _decode(text))

    def finalize(self) -> str | None:
        """Return the sum."""
        return to_text(self._found)


def install(connection: sqlite3.Connection) -> None:
    """Give SQL `merged_spread(a, b)` and the aggregate `sum_spread(a)`."""
    connection.create_function("merged_spread", 2, merged_text, deterministic=True)
    connection.create_aggregate("sum_spread", 1, _SumSpread)  # type: ignore[arg-type]


def all_merged(spreads: Iterable[Spread | None]) -> Spread | None:
    """Return the sum of spreads."""
    found: Spread | None = None
    for each in spreads:
        found = merged(found, each)
    return found
