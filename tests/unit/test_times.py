"""Times as text: one form to write, and what nats-server writes to read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from jobledger.ledger.model.times import server_time, time_text

TIMES = {
    "whole second": (datetime(2025, 1, 1, tzinfo=UTC), "2025-01-01T00:00:00.000000Z"),
    "foreign zone": (
        datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
        "2024-12-31T23:00:00.000000Z",
    ),
    "without zone": (datetime(2025, 1, 1), "2025-01-01T00:00:00.000000Z"),  # noqa: DTZ001 - what a foreign appender may write
}


@pytest.mark.parametrize(("time", "text"), TIMES.values(), ids=TIMES.keys())
def test_times_are_sortable_text_in_utc(time: datetime, text: str) -> None:
    assert time_text(time) == text


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        ("2025-01-31T08:00:00Z", 0),
        ("2025-01-31T08:00:00.5Z", 500_000),
        ("2025-01-31T08:00:00.123456999Z", 123_456),
    ],
)
def test_the_servers_nanoseconds_are_cut_and_its_missing_zeros_restored(text: str, microsecond: int) -> None:
    assert server_time(text) == datetime(2025, 1, 31, 8, microsecond=microsecond, tzinfo=UTC)


def test_what_is_no_time_is_said_to_be_none() -> None:
    with pytest.raises(ValueError, match="Invalid isoformat"):
        server_time("soon")
