"""The checks of callers' values for events: made when a command is instantiated, before any decision."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final, cast

import msgspec

from jobledger.ledger.model.envelope import TIME_MAX, TIME_MIN, WHOLE_MAX
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import LABELS, Order
from jobledger.ledger.model.subjects import check_token

NOTE_MAX: Final = 4_000  #: characters of a note
LIMITS_MAX: Final = 8  #: number of limits that one job may name
_PAIRS_MAX: Final = 16
_NAME_MAX: Final = 64
_WORD_MAX: Final = 128
_FAIR_MAX: Final = 64 + 1 + _WORD_MAX  #: length of a name and a key
_VALUE_MAX: Final = 256
_SEALED_MAX: Final = 8 * _VALUE_MAX  #: length with four bytes per character, as base64
_SHOWN_MAX: Final = 60
#: The version ff and ids of nothing but zeros are invalid.
_TRACEPARENT_LENGTH: Final = 55
_TRACEPARENT: Final = re.compile("(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


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
    # JSON has neither NaN nor infinity: msgspec would write null, and the stored event could never be read again.
    if value is not None and not math.isfinite(value):
        raise InvalidInputError(f"{field} is {value}: give a finite number")


def check_word(field: str, value: object) -> str:
    """Return a name chosen by the enqueuer, such as a tenant: 1 to 128 printable characters without spaces.

    Raises: InvalidInputError, naming `field`.
    """
    return _word(field, value, _WORD_MAX)


def _word(field: str, value: object, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most or " " in value or not value.isprintable():
        raise InvalidInputError(
            f"{field} must be 1 to {most} printable characters without spaces, got {_shown(value)}"
        )
    return value


def traceparent_in(header: str) -> str:
    """Return the traceparent of a request's header; "" for an invalid one, which must be ignored, as W3C says.

    Of a later version only the fields of version 00 are read, as W3C says, and returned as version 00.
    """
    if not header:
        return ""
    words, more = header[:_TRACEPARENT_LENGTH], header[_TRACEPARENT_LENGTH:]
    if _TRACEPARENT.fullmatch(words) is None or (more and (words.startswith("00") or more[0] != "-")):
        return ""
    return f"00{words[2:]}"


def check_traceparent(value: object) -> str:
    """Return a W3C traceparent. Raises: InvalidInputError."""
    if not isinstance(value, str) or _TRACEPARENT.fullmatch(value) is None:
        raise InvalidInputError(
            "trace must be a W3C traceparent, such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, "
            f"got {_shown(value)}"
        )
    return value


def check_note(text: object) -> None:
    """Refuse a note that is blank, longer than 4,000 characters, or no Unicode text.

    Raises: InvalidInputError.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError("a note needs a text")
    if len(text) > NOTE_MAX:
        raise InvalidInputError(f"the note has {len(text):,} characters: give at most {NOTE_MAX:,}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"the note is no valid Unicode text: {error.reason}") from error


def _shown(value: object) -> str:
    return ascii(value[:_SHOWN_MAX]) if isinstance(value, str) else f"one of type {type(value).__name__}"


def checked_metadata(value: object, *, sealed: bool = False) -> dict[str, str]:
    """Return the enqueuer's pairs of words about a job, sorted by key; `sealed`: whether their values are sealed.

    Raises: InvalidInputError for more than 16 pairs, a key that is not 1 to 64 printable characters without spaces and
        `=`, or a value that is no text of at most 256 characters.
    """
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"metadata must be a dict of texts, got {_shown(value)}")
    pairs = cast("Mapping[object, object]", value)
    if len(pairs) > _PAIRS_MAX:
        raise InvalidInputError(f"metadata has {len(pairs)} pairs: give at most {_PAIRS_MAX}")
    found: dict[str, str] = {}
    for key, word in pairs.items():
        name = _word("a key of metadata", key, _NAME_MAX)
        if "=" in name:
            raise InvalidInputError(f"a key of metadata must be without '=', got {_shown(name)}")
        if not isinstance(word, str) or len(word) > (_SEALED_MAX if sealed else _VALUE_MAX):
            size = f"{len(word)} characters" if isinstance(word, str) else _shown(word)
            raise InvalidInputError(
                f"metadata {name!r} must be a text of at most {_VALUE_MAX} characters, got {size}"
            )
        found[name] = word
    return dict(sorted(found.items()))


def checked_limits(given: object) -> tuple[str, ...]:
    """Return the limits that a job names, `name` or `name:key`, sorted and each once.

    Raises: InvalidInputError for more than 8, or for a key that is not 1 to 128 printable characters without spaces;
        InvalidTokenError for a name that cannot be a word of a subject.
    """
    if not _has_names(given):
        raise InvalidInputError(
            f'limits must be several names, such as ("global", "tenant:acme"), got {_shown(given)}'
        )
    names = {_limit(each) for each in cast("Collection[object]", given)}
    if len(names) > LIMITS_MAX:
        raise InvalidInputError(f"limits has {len(names)} names: a job may have at most {LIMITS_MAX}")
    return tuple(sorted(names))


def _has_names(given: object) -> bool:
    return isinstance(given, Collection) and not isinstance(given, str | Mapping)


def _limit(value: object) -> str:
    name, separator, key = value.partition(":") if isinstance(value, str) else (value, "", "")
    check_token("name of a limit", name)
    if separator:
        check_word(f"key of limit {name}", key)
    return cast("str", value)


def checked_order(order: Order) -> Order:
    """Return a work order with checked words, and with its limits in order.

    Raises: InvalidInputError, InvalidTokenError.
    """
    for field in LABELS:
        if word := getattr(order, field):
            check_word(field, word)
    if order.fair:
        _word("fair", order.fair, _FAIR_MAX)
    return msgspec.structs.replace(
        order,
        limits=checked_limits(order.limits),
        metadata=checked_metadata(order.metadata, sealed=order.key != ""),
    )
