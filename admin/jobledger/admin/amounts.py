"""Spans of time, ages and numbers of bytes in the unit that a person reads."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # every command imports this module, and `--help` needs no job
    from jobledger.ledger.model.job import Job

_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86400
_KILO: Final = 1024
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?(B|KiB|MiB|GiB|TiB)?", flags=re.ASCII | re.IGNORECASE)


def duration(seconds: float) -> str:
    """Return a time span in the unit that fits: `12 ms`, `3.4 s`, `5 min`, `2 h`, `3 d`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.0f} h" if seconds < 2 * _DAY_S else f"{seconds / _DAY_S:.0f} d"


def moment(at: datetime, now: datetime) -> str:
    """Return a time for a person: `2025-01-31 08:00:00.000Z (3 min ago)`."""
    from jobledger.ledger.model.times import shown_time  # noqa: PLC0415 - loads msgspec, which `--help` does without

    return f"{shown_time(at)} ({age(at, now)})"


def age(at: datetime, now: datetime) -> str:
    """Return how long ago, or ahead, a time is: `3 min ago`, `in 5 s`."""
    seconds = (now - at).total_seconds()
    size = duration(abs(seconds))
    return f"{size} ago" if seconds >= 0 else f"in {size}"


def attempts_words(job: Job) -> str:
    """Return how many of its attempts a job has used up: `2 of 5`, `1 of 5, 1 more given back`."""
    words = f"{job.attempts_spent} of {job.order.max_attempts}"
    return f"{words}, {job.attempts_given_back:,} more given back" if job.attempts_given_back else words


def size(count: float) -> str:
    """Return a number of bytes in the unit that fits: `12.3 MiB`."""
    for unit in _UNITS[:-1]:
        if count < _KILO:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KILO
    return f"{count:.1f} {_UNITS[-1]}"


def read_size(text: str) -> int | None:
    """Return the number of bytes that a text such as `8GiB`, `1.5 MiB` or `65536` means; None for any other."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    units = [each.lower() for each in _UNITS]
    return int(float(found[1]) * _KILO ** units.index((found[2] or _UNITS[0]).lower()))
