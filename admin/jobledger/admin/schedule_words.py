"""The words for schedules that a person reads."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from jobledger.admin.amounts import moment
from jobledger.ledger.model.times import shown_time

_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def when_words(cron: str, every_s: int, at: datetime | None, timezone: str) -> str:
    """Return when a schedule ticks: `30 2 * * * in Europe/Berlin`, `every 90 seconds`, `once at ...`, `on demand`."""
    if not cron and at is None and not every_s:
        return "on demand"
    if cron:
        return cron if timezone == "UTC" else f"{cron} in {timezone}"
    if at is not None:
        return f"once at {shown_time(at)[:-5]}Z"
    unit, size = next((unit, size) for unit, size in _UNITS if every_s % size == 0)
    return f"every {unit}" if every_s == size else f"every {every_s // size:,} {unit}s"


def next_words(next_at: datetime | None, now: datetime) -> str:
    """Return when it is due next, as the end of a sentence."""
    return "no run is to come" if next_at is None else f"next run {moment(next_at, now)}"


def time_in(text: str | None) -> datetime | None:
    """Return a time that a row has as text."""
    return None if text is None else datetime.fromisoformat(text)
