"""Times and spans of time as they are written on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from jobledger.cli.errors import UsageError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SERVER_TIME_END: Final = datetime(2262, 1, 1, tzinfo=UTC)
_SPAN: Final = re.compile(r"(?P<count>\d{1,9}(?:\.\d{1,6})?)(?P<unit>[smhdw])", flags=re.ASCII)
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_time(option: str, text: str, before: str = "") -> datetime:
    """Read an ISO 8601 time; one without a zone counts as UTC.

    Raises: UsageError.
    """
    try:
        found = datetime.fromisoformat(text)
        found = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        wanted = f"{before}a time such as 2025-01-31T08:00:00Z"
        raise UsageError(f"{option} {text[:60]!r} is not {wanted}") from error
    if not _EPOCH <= found < _SERVER_TIME_END:  # the server counts nanoseconds since 1970 in 64 bits
        raise UsageError(f"{option} {text[:60]!r} is not a time from 1970 to 2261")
    return found


def time_of(option: str, text: str | None) -> datetime | None:
    """Read the time of an option, None where it was not given. Raises: UsageError."""
    return None if text is None else parse_time(option, text)


def parse_span(option: str, text: str) -> timedelta:
    """Read a time span such as 90s, 30m, 12h, 7d or 2w.

    Raises: UsageError.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text[:60]!r} is not a time span such as 90s, 30m, 12h, 7d or 2w")
    try:
        return timedelta(seconds=float(found["count"]) * _UNITS_S[found["unit"]])
    except OverflowError as error:
        raise UsageError(f"{option} {text[:60]!r} is longer than anything was kept") from error
