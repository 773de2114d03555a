"""What a caller's value must be to become part of an event: checked when a command is made, before any decision."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import msgspec

from jobledger.ledger.model.envelope import TIME_MAX, TIME_MIN, WHOLE_MAX
from jobledger.ledger.model.errors import InvalidInputError


def keep_utc(command: msgspec.Struct, field: str) -> None:
    """Refuse a naive datetime, which no reader could compare, and keep an aware one in UTC.

    Raises: InvalidInputError, naming `field`.
    """
    value: datetime | None = getattr(command, field)
    if value is None or (value.tzinfo is UTC and value >= TIME_MIN):
        return
    if value.utcoffset() is None:
        raise InvalidInputError(
            f"{field} has no time zone: give an aware datetime, such as datetime.now(UTC)"
        )
    if not TIME_MIN <= value <= TIME_MAX:
        raise InvalidInputError(f"{field} {value} lies outside the years 1970 to 9999 in UTC: choose another")
    msgspec.structs.force_setattr(command, field, value.astimezone(UTC))


def check_whole(field: str, value: int, least: int = 0) -> None:
    """Refuse a number that is too small, or that no reader of the ledger could hold.

    Raises: InvalidInputError, naming `field`.
    """
    if value < least:
        raise InvalidInputError(f"{field} is {value}: give at least {least}")
    if value > WHOLE_MAX:
        raise InvalidInputError(f"{field} is above {WHOLE_MAX:,}, the most that the ledger holds: give less")


def finite(field: str, value: object) -> float:
    """Return a number of any type, such as a Decimal or one of numpy's, as one that JSON can hold.

    Raises: InvalidInputError, naming `field`.
    """
    try:
        if isinstance(value, str | bytes):
            raise TypeError("a text is no number")  # noqa: TRY301 - though `float` would read it
        number = float(value)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # of anything
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"{field} is a {type(value).__name__} that is no number: give a finite one"
        ) from error
    check_finite(field, number)
    return number


def check_finite(field: str, value: float | None) -> None:
    """Refuse a number that JSON cannot hold.

    Raises: InvalidInputError, naming `field`.
    """
    # JSON has neither NaN nor infinity: msgspec writes null, and the stored event could never be read again.
    if value is not None and not math.isfinite(value):
        raise InvalidInputError(f"{field} is {value}: give a finite number")
