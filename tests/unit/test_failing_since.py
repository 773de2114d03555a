"""Since when a task fails unusually often, by the minutes in which its attempts ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from tests.support.tables import each_row

from jobledger.admin.diagnoses import failing_since
from jobledger.projections.statistics.rates import Minute

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@each_row(
    "shares, since",
    [
        ({}, None),
        ({0: 0.1}, None),
        ({0: 0.5}, 0),
        ({0: 0.2}, 0),
        ({0: 0.9, 1: 0.3, 2: 0.5}, 2),
        ({0: 0.0, 1: 0.5, 4: 0.1, 6: 0.4, 7: 0.0}, 6),  # a calm minute, or five of them, end nothing
        ({0: 0.5, 6: 0.9}, 0),  # what failed before is another time
        ({0: 0.5, **dict.fromkeys(range(1, 9), 0.0), 9: 0.9}, 0),
        (dict.fromkeys(range(1_400), 0.5), 1_399),
    ],
)
def test_failures_began_with_the_first_minute_behind_calm_ones(
    shares: Mapping[int, float], since: int | None
) -> None:
    """`shares`: of attempts that failed, by how many minutes ago."""
    minutes = [Minute(NOON - timedelta(minutes=ago), share) for ago, share in sorted(shares.items())]
    expected = None if since is None else NOON - timedelta(minutes=since)
    assert failing_since(minutes, 0.2) == expected
