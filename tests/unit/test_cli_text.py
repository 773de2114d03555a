"""What comes from a job can neither steer a terminal nor hide on it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobledger.cli.text import age, duration, iso, json_safe, plain, plain_lines, shortened, size

NOW = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("grüße 東京 🙂", "grüße 東京 🙂"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("half \ud800", "half \\ud800"),
        ("tag \U000e0041", "tag \\U000e0041"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize("text", ['{"a":"x"}', '{"a":"\u202e\x7f\x9b\U000e0041 grüße"}'])
def test_safe_json_has_the_same_value_and_no_unsafe_character(text: str) -> None:
    safe = json_safe(text)
    assert json.loads(safe) == json.loads(text)
    assert plain(safe) == safe


def test_lines_of_a_traceback_stay_lines() -> None:
    assert plain_lines("a\n\tb\x1b\r\nc") == ["a", "        b\\x1b", "c"]


def test_a_long_text_is_cut_to_the_length_asked_for() -> None:
    assert shortened("x" * 100, 10) == "xxxxxxxxx…"
    assert shortened("\x1b" * 3, 12) == "\\x1b\\x1b\\x1b"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0123, "12 ms"), (3.44, "3.4 s"), (59.4, "59 s"), (300, "5 min"), (7300, "2 h"), (259_200, "3 d")],
)
def test_durations_have_the_unit_that_fits(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_ages_look_both_ways() -> None:
    assert age(NOW - timedelta(minutes=3), NOW) == "3 min ago"
    assert age(NOW + timedelta(seconds=5), NOW) == "in 5.0 s"


def test_times_in_json_are_utc_with_microseconds() -> None:
    assert iso(NOW.astimezone()) == "2026-01-02T03:04:05.600000Z"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (8 << 30, "8.0 GiB")]
)
def test_sizes_have_the_unit_that_fits(count: int, shown: str) -> None:
    assert size(count) == shown
