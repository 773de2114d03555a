"""Times and spans of time on a command line, in the same form for every command."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from jobledger.cli.errors import UsageError
from jobledger.ledger.model.written_times import DAY, read_span, read_time, read_time_of_day

_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{1,6})?", flags=re.ASCII)
_SPANS: Final = "a time span such as 90s, 30m, 1h30m, 7d or 2w"
_TIMES: Final = "a time such as 2025-01-31T08:00:00Z, 10:30, 2m or '2 min ago'"


def parse_time(
    option: str, text: str, before: str = "", *, ahead: bool = False, now: datetime | None = None
) -> datetime:
    """Read a time: ISO 8601 (UTC without a zone), a time of day in UTC, or a span from now.

    A time of day, and a span without `ago` or `in`, is the newest such time in the past; with `ahead` the nearest
    in the future. `before`: words in the error about other values that the option takes.

    Raises: UsageError.
    """
    try:
        found = read_time(text, datetime.now(UTC) if now is None else now, ahead=ahead)
    except OverflowError as error:
        raise UsageError(f"{option} {text[:60]!r} is not a time from 1970 to 2261") from error
    if found is None:
        raise UsageError(f"{option} {text[:60]!r} is not {before}{_TIMES}")
    return found


def time_of(option: str, text: str | None, *, ahead: bool = False) -> datetime | None:
    """Read the time of an option, None if it was not given; see `parse_time`. Raises: UsageError."""
    return None if text is None else parse_time(option, text, ahead=ahead)


def parse_range(option: str, text: str, *, now: datetime | None = None) -> tuple[datetime, datetime]:
    """Read a span of time, `FROM/TO`: each a time, and FROM also `yesterday 09:00` or `last friday 09:00`, UTC.

    If TO is only a time of day, it is on the day of FROM, or on the next day if that is not later than FROM.

    Raises: UsageError.
    """
    now = datetime.now(UTC) if now is None else now
    first, separator, last = text.partition("/")
    if not separator:
        raise UsageError(
            f"{option} {text[:60]!r} is not FROM/TO, such as 09:00/10:00 or `last friday 09:00/10:00`"
        )
    begin = _on_a_day(first.strip().lower(), now) or parse_time(option, first, now=now)
    of_day = read_time_of_day(last.strip())
    if of_day is None:
        return begin, parse_time(option, last, now=now)
    end = datetime.combine(begin.date(), of_day, UTC)
    return begin, end if end > begin else end + DAY


def _on_a_day(text: str, now: datetime) -> datetime | None:
    """Read `yesterday 09:00` and `last friday 09:00`, in UTC; None for another form."""
    day, _, hour = text.removeprefix("last ").partition(" ")
    of_day = read_time_of_day(hour.strip())
    if of_day is None or not (day == "yesterday" or day in _WEEKDAYS):
        return None
    back = 1 if day == "yesterday" else (now.weekday() - _WEEKDAYS.index(day) - 1) % 7 + 1
    return datetime.combine(now.date() - timedelta(days=back), of_day, UTC)


def parse_span(option: str, text: str) -> timedelta:
    """Read a time span such as 90s, 30m, 1h30m, `2 days`, 7d or 2w.

    Raises: UsageError.
    """
    try:
        span = read_span(text)
    except OverflowError as error:
        raise UsageError(f"{option} {text[:60]!r} is longer than anything was kept") from error
    if span is None:
        raise UsageError(f"{option} {text[:60]!r} is not {_SPANS}")
    return span


def seconds(minimum: float = 0.0, maximum: float | None = None) -> Callable[[str | float], float]:
    """Return the parser of an option that takes a span of time, or a number of seconds; the value is in seconds.

    `maximum`: highest value in seconds, a whole number of days; None: the user of the value checks it.
    """

    def parse(given: str | float) -> float:
        if isinstance(given, float | int):  # the default of an option
            return given
        if _NUMBER.fullmatch(given.strip()) is not None:
            found = float(given)
        else:
            try:
                found = parse_span("", given).total_seconds()
            except UsageError:
                raise typer.BadParameter(
                    f"{given[:60]!r} is neither a number of seconds nor {_SPANS}"
                ) from None
        if found < minimum:
            raise typer.BadParameter(f"{given[:60]!r} is less than {minimum:g} s")
        if maximum is not None and found > maximum:
            raise typer.BadParameter(f"{given[:60]!r} is more than {maximum / 86_400:,.0f} days")
        return found

    return parse
