"""Values, not exceptions, by which a task may return another outcome than "done".

An exception always means that this attempt failed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError
from jobledger.ledger.model.events import PRIORITIES, Priority

DELAY_S_LIMIT: Final = 10 * 366 * 24 * 3600.0
#: A job that snoozes for ever adds no more than three events each time to the ledger, twice a second at the most.
SNOOZE_S_MIN: Final = 0.5


class Cancel(msgspec.Struct, frozen=True):
    """End the job as cancelled, because there is nothing (more) to do."""

    reason: str = ""

    def __post_init__(self) -> None:
        """Check the reason.

        Raises: ConfigurationError.
        """
        _check_text("Cancel's reason", self.reason)


class Fail(msgspec.Struct, frozen=True):
    """End the job as a dead letter now, even if attempts are left; a run ends after its undos."""

    reason: str

    def __post_init__(self) -> None:
        """Check the reason, which the job's history will show.

        Raises: ConfigurationError.
        """
        _check_text("Fail's reason", self.reason)
        _check_said("Fail", self.reason)


class Retry(msgspec.Struct, frozen=True):
    """End this attempt as failed without an exception, and let the job be tried again while attempts are left."""

    delay_s: float | None = None  #: None: by the task's backoff
    reason: str = "the task asked to be retried"
    priority: Priority | None = None  #: priority of the next dispatch; None: as before

    def __post_init__(self) -> None:
        """Check every value; a reason is required, since the job's history will show it.

        Raises: ConfigurationError.
        """
        _check_text("Retry's reason", self.reason)
        _check_said("Retry", self.reason)
        if self.priority is not None and self.priority not in PRIORITIES:
            raise ConfigurationError(f"Retry's priority must be high, normal or low, got {self.priority!r}")
        if self.delay_s is not None:
            check_delay("Retry's delay_s", self.delay_s)


class Snooze(msgspec.Struct, frozen=True):
    """Run the job again after `delay_s`; this attempt does not count.

    No attempt is used up, so a job could snooze for ever: at least half a second passes each time.
    """

    delay_s: float  #: seconds, at least `SNOOZE_S_MIN`; a smaller number counts as that

    def __post_init__(self) -> None:
        """Check the delay.

        Raises: ConfigurationError.
        """
        check_delay("Snooze's delay_s", self.delay_s)


#: The values that a task may return instead of a result.
Wish = Cancel | Fail | Retry | Snooze
WISHES: Final = (Cancel, Fail, Retry, Snooze)


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} must be a text, got {value!r}")


def _check_said(wish: str, reason: str) -> None:
    if not reason:
        message = f"{wish} needs a reason: it is what `jobledger jobs show` tells the next person"
        raise ConfigurationError(message)


def check_delay(what: str, delay_s: object) -> None:
    """Refuse a value that is no delay.

    Raises: ConfigurationError for anything but a number of seconds from 0 to ten years.
    """
    if (
        isinstance(delay_s, bool)
        or not isinstance(delay_s, int | float)
        or not 0 <= delay_s <= DELAY_S_LIMIT  # NaN is not, either
    ):
        message = (
            f"{what} must be a number of seconds from 0 to {DELAY_S_LIMIT:,.0f} (ten years), got {delay_s!r}"
        )
        raise ConfigurationError(message)


def moment_of(run_at: datetime | None, delay_s: float | None, now: datetime) -> datetime:
    """Return the moment that a caller gives, as a time or as a number of seconds from now.

    Raises: ConfigurationError if none or both are given, or the delay is invalid; InvalidInputError for a moment after
    9999.
    """
    if (run_at is None) == (delay_s is None):
        raise ConfigurationError("give run_at or delay_s, one of the two")
    if run_at is not None:
        if not isinstance(run_at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] # a caller may be untyped
            raise ConfigurationError(f"run_at must be a datetime with a time zone, got {run_at!r}")
        return run_at
    check_delay("delay_s", delay_s)
    assert delay_s is not None, "one of the two is given"
    try:
        return now + timedelta(seconds=delay_s)
    except OverflowError as error:
        raise InvalidInputError(f"delay_s {delay_s:g} ends after the year 9999") from error
