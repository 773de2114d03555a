"""Times as text: our own are written here, the server's are read. All in UTC, to the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

_CHARACTERS: Final = len("2025-01-31T08:00:00.000000Z")
_plain: Final = msgspec.to_builtins


def as_utc(at: datetime) -> datetime:
    """Convert a time with another zone to UTC; a time without a zone counts as UTC."""
    if at.tzinfo is UTC:
        return at
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def time_text(at: datetime) -> str:
    """Return `2025-01-31T08:00:00.000000Z`, always of this length, so that text order is time order."""
    # Four times as fast as isoformat, and the same except for times without microseconds.
    text: str = _plain(at)
    if len(text) == _CHARACTERS and at.tzinfo is UTC:
        return text
    return as_utc(at).isoformat(timespec="microseconds")[:-6] + "Z"


def shown_time(at: datetime) -> str:
    """Return a time for a person: `2025-01-31 08:00:00.000Z`."""
    return f"{time_text(at)[:23].replace('T', ' ')}Z"


def server_time(text: str) -> datetime:
    """Read a time as nats-server writes it: with nanoseconds, which are cut, but without trailing zeros.

    Raises:
        ValueError: It is no time.
    """
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00")
