"""Rates: the time of the next start that a key of a limit allows. Pure; GCRA, one number a key.

Times are whole nanoseconds since 1970. For each key one moment is kept: when it may use its whole burst again. A moment
in the past is the same as none. Times are those of `granted`, which never go back, so every reader of the grants counts
the same. Source: ITU-T I.371, the virtual scheduling algorithm.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from jobledger.ledger.model.limits.definition import Terms

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_PRUNE_AT: Final = 1_024


def nanoseconds(moment: datetime) -> int:
    """Return a moment as nanoseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND * 1_000


def moment_of(ns: int) -> datetime:
    """Return the first moment, in whole microseconds, that is not before `ns` since 1970."""
    return _EPOCH + timedelta(microseconds=-(-ns // 1_000))


def period_ns(terms: Terms) -> int:
    """Return the average nanoseconds between two starts that a rate allows, at least 1; 0 without a rate."""
    return 0 if terms.rate is None else max(1, round(terms.per_s / terms.rate * 1e9))


class Rates:
    """The next whole moment of each key that has a rate."""

    def __init__(self, whole_at: dict[str, int] | None = None) -> None:
        """Begin with an earlier `whole_at`; by default nothing was used."""
        self.whole_at: dict[str, int] = {} if whole_at is None else dict(whole_at)
        self._prune_at = _PRUNE_AT

    def free_at(self, key: str, terms: Terms) -> int:
        """Return the time from which the key allows another start; 0: always."""
        whole_at = self.whole_at.get(key)
        return 0 if whole_at is None else whole_at - period_ns(terms) * (terms.burst - 1)

    def take(self, key: str, terms: Terms, at: int) -> None:
        """Count a start at `at`, whether or not it was allowed."""
        whole_at = self.whole_at.get(key, 0)
        self.whole_at[key] = (max(whole_at, at)) + period_ns(terms)
        if len(self.whole_at) > self._prune_at:
            self.whole_at = {each: moment for each, moment in self.whole_at.items() if moment > at}
            self._prune_at = max(_PRUNE_AT, 2 * len(self.whole_at))

    def redefine(self, key: str, terms: Terms, at: int) -> None:
        """Keep no more debt than the present definition allows, so that a raised rate counts at once."""
        whole_at, period = self.whole_at.get(key), period_ns(terms)
        if whole_at is not None:
            self.whole_at[key] = min(whole_at, at + period * terms.burst)
