"""Times and spans of time in a person's form: `2025-01-31T08:00:00Z`, `10:30`, `2 min ago`, `1h30m`. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The server counts nanoseconds since 1970 in 64 bits.
SERVER_TIME_END: Final = datetime(2262, 1, 1, tzinfo=UTC)
DAY: Final = timedelta(days=1)
_PART: Final = r"\d{1,9}(?:\.\d{1,6})?\s*[a-z]+"
_SPAN: Final = re.compile(rf"{_PART}(?:[\s,]*{_PART})*", flags=re.ASCII | re.IGNORECASE)
_PARTS: Final = re.compile(r"(?P<count>[\d.]+)\s*(?P<unit>[a-z]+)", flags=re.ASCII | re.IGNORECASE)
_UNITS_S: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 604_800),
    **dict.fromkeys(("y", "year", "years"), 31_536_000),
}


def read_time(text: str, now: datetime, *, ahead: bool = False) -> datetime | None:
    """Read a time: ISO 8601 (UTC without a zone), a time of day in UTC, or a span from now; None for anything else.

    A time of day, and a span without `in` or `ago`, stand for the newest past moment; with `ahead` for the next future
    one.

    Raises: OverflowError for a time that the server's clock cannot show.
    """
    text = text.strip()
    found = read_relative_time(text, now, ahead=ahead)
    if found is None:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            return None
        found = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    if not EPOCH <= found < SERVER_TIME_END:
        raise OverflowError
    return found


def read_relative_time(text: str, now: datetime, *, ahead: bool = False) -> datetime | None:
    """Read a time that depends on `now`, such as `2h` or `10:30`; None for another form. Raises: OverflowError."""
    if text == "now":
        return now
    of_day = read_time_of_day(text)
    if of_day is not None:
        today = datetime.combine(now.date(), of_day, UTC)
        if ahead:
            return today if today >= now else today + DAY
        return today if today <= now else today - DAY
    if text.endswith(" ago"):
        ahead, text = False, text.removesuffix(" ago").rstrip()
    elif text.startswith("in "):
        ahead, text = True, text.removeprefix("in ").lstrip()
    span = read_span(text)
    return None if span is None else now + span * (1 if ahead else -1)


def read_time_of_day(text: str) -> time | None:
    """Read `10:30` or `10:30:15`; None for anything else."""
    if re.fullmatch(r"\d{1,2}:\d\d(?::\d\d)?", text, flags=re.ASCII) is None:
        return None
    try:
        hour, minute, second = (*map(int, text.split(":")), 0)[:3]
        return time(hour, minute, second)
    except ValueError:
        return None


def read_span(text: str) -> timedelta | None:
    """Read a span such as 90s, 30m, 1h30m, `2 days`, 7d, 2w or 1y (365 days); None for anything else. Raises: OverflowError."""
    parts = _PARTS.findall(text) if _SPAN.fullmatch(text.strip()) is not None else []
    if not parts or any(unit.lower() not in _UNITS_S for _, unit in parts):
        return None
    return timedelta(seconds=sum(float(count) * _UNITS_S[unit.lower()] for count, unit in parts))
