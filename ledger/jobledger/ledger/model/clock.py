"""Time as an argument: the code reads a `Clock` instead of the system's clocks, so that tests can set the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Return the wall clock as an aware UTC datetime with microseconds; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes back. Leases and limits use only this."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        """Return the current UTC time."""
        return datetime.now(UTC)

    #: CLOCK_MONOTONIC, which goes on while the process is stopped. No function around it, since it is read several
    #: times for each event.
    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK = SystemClock()
