"""Times and spans as a person writes them on a command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer
from tests.support.tables import each_row

from jobledger.cli.errors import UsageError
from jobledger.cli.times import parse_range, parse_span, parse_time, seconds

NOW = datetime(2025, 1, 31, 12, 0, tzinfo=UTC)

#: The text; the time that it means in the past, and the one that it means for what is still to come.
TIMES = [
    ("2025-01-31T08:00:00Z", datetime(2025, 1, 31, 8, tzinfo=UTC), datetime(2025, 1, 31, 8, tzinfo=UTC)),
    ("2025-01-31 08:00", datetime(2025, 1, 31, 8, tzinfo=UTC), datetime(2025, 1, 31, 8, tzinfo=UTC)),
    ("2025-01-31T08:00:00+02:00", datetime(2025, 1, 31, 6, tzinfo=UTC), datetime(2025, 1, 31, 6, tzinfo=UTC)),
    ("2025-01-31", datetime(2025, 1, 31, tzinfo=UTC), datetime(2025, 1, 31, tzinfo=UTC)),
    ("now", NOW, NOW),
    ("10:30", datetime(2025, 1, 31, 10, 30, tzinfo=UTC), datetime(2025, 2, 1, 10, 30, tzinfo=UTC)),
    (
        "13:30:15",
        datetime(2025, 1, 30, 13, 30, 15, tzinfo=UTC),
        datetime(2025, 1, 31, 13, 30, 15, tzinfo=UTC),
    ),
    ("2m", NOW - timedelta(minutes=2), NOW + timedelta(minutes=2)),
    ("2 min ago", NOW - timedelta(minutes=2), NOW - timedelta(minutes=2)),
    ("in 1h30m", NOW + timedelta(minutes=90), NOW + timedelta(minutes=90)),
    ("1 day, 2 hours ago", NOW - timedelta(hours=26), NOW - timedelta(hours=26)),
]


@each_row(("text", "past", "future"), TIMES)
def test_times(text: str, past: datetime, future: datetime) -> None:
    assert parse_time("--since", text, now=NOW) == past
    assert parse_time("--at", text, ahead=True, now=NOW) == future


@each_row(
    "text",
    [
        "",
        "soon",
        "25:00",
        "10:60",
        "2 apples",
        "2m3",
        "ago",
        "5",
        "1e3s",
        "999999999w ago",
        "1960-01-01",
        "٢m",
    ],
)
def test_what_is_no_time_is_told_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match=r"--since .* is not a time (such as|from 1970)"):
        parse_time("--since", text, now=NOW)


@each_row(
    ("text", "wanted_s"),
    [
        ("90s", 90.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("2 weeks", 1_209_600.0),
        ("3 Min", 180.0),
        ("250ms", 0.25),
    ],
)
def test_spans(text: str, wanted_s: float) -> None:
    assert parse_span("--older-than", text).total_seconds() == wanted_s
    assert seconds()(text) == wanted_s


@each_row("text", ["", "5", "m", "-5m", "5m ago", "5 parsecs", "999999999w 999999999w 999999999w"])
def test_what_is_no_span_is_told_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match=r"--older-than .* is (not a time span such as 90s|longer)"):
        parse_span("--older-than", text)


def test_an_option_in_seconds_takes_numbers_too() -> None:
    assert (seconds()("30"), seconds()("0.5"), seconds()(15.0)) == (30.0, 0.5, 15.0)
    for text in ("-1", "inf", "nan", "1e9", "soon"):
        with pytest.raises(typer.BadParameter, match="neither a number of seconds nor a time span such as"):
            seconds()(text)
    with pytest.raises(typer.BadParameter, match=r"'50ms' is less than 0\.1 s"):
        seconds(0.1)("50ms")
    ten_days = seconds(maximum=864_000.0)
    assert ten_days("10d") == 864_000.0
    with pytest.raises(typer.BadParameter, match="'10d 1s' is more than 10 days"):
        ten_days("10d 1s")


@each_row(
    ("text", "begin", "end"),
    [
        ("last friday 09:00/10:00", "2025-01-03T09:00", "2025-01-03T10:00"),
        ("friday 23:00/01:00", "2025-01-03T23:00", "2025-01-04T01:00"),
        ("last wednesday 09:00/10:00", "2025-01-01T09:00", "2025-01-01T10:00"),
        ("yesterday 9:00/12:00", "2025-01-07T09:00", "2025-01-07T12:00"),
        ("2025-01-02T08:00/2025-01-03", "2025-01-02T08:00", "2025-01-03T00:00"),
        ("2h/30m", "2025-01-08T10:00", "2025-01-08T11:30"),
        ("09:00/10:00", "2025-01-08T09:00", "2025-01-08T10:00"),
    ],
)
def test_a_range_is_two_times(text: str, begin: str, end: str) -> None:
    now = datetime(2025, 1, 8, 12, tzinfo=UTC)  # a Wednesday
    wanted = tuple(datetime.fromisoformat(f"{each}+00:00") for each in (begin, end))
    assert parse_range("--at", text, now=now) == wanted


@each_row("text", ["", "09:00", "last someday 09:00/10:00", "friday/10:00", "09:00/"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--at"):
        parse_range("--at", text)
