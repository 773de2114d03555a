"""Time that a test moves: it stands still in between, so that a job is due exactly when the test says so."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from jobledger.ledger.model.errors import InvalidInputError


class MovableClock:
    """A wall clock that only `advance` and `move_to` move; limits, such as timeouts of attempts, take real time."""

    def __init__(self, at: datetime | None = None) -> None:
        """`at`: where it begins, an aware time; None: now."""
        self._now = (datetime.now(UTC) if at is None else _aware(at)).astimezone(UTC)

    def now(self) -> datetime:
        """Return the time at which it stands, in UTC."""
        return self._now

    def monotonic(self) -> float:
        """Return real seconds, as the system's clock does."""
        return time.monotonic()

    def advance(self, by: timedelta | float) -> datetime:
        """Move it forward by a span, or by seconds; return the new time.

        Raises: InvalidInputError for a step back, which would make events that lie before their causes.
        """
        span = by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.move_to(self._now + span)

    def move_to(self, at: datetime) -> datetime:
        """Move it forward to a time, an aware one; return it. Raises: InvalidInputError for a step back."""
        if _aware(at) < self._now:
            raise InvalidInputError(
                f"the clock stands at {self._now.isoformat()} and cannot go back to {at.isoformat()}"
            )
        self._now = at.astimezone(UTC)
        return self._now


def _aware(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise InvalidInputError(f"{at.isoformat()} has no time zone: give one, such as datetime.UTC")
    return at
