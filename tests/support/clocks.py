"""Time that a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class MovedClock:
    """Stands until somebody moves it."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 2, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the moment."""
        return self.at

    def monotonic(self) -> float:
        """Return seconds that move with it."""
        return self.at.timestamp()

    def move(self, seconds: float) -> None:
        """Let seconds pass."""
        self.at += timedelta(seconds=seconds)
