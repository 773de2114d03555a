"""Cron expressions: their check, and the wall times that they name. Without time zones. Pure.

croniter finds the wall times, on naive times only; the content of an expression is checked here before, in bounded
time, because croniter accepts more than cron does. Source: ADR 020.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from jobledger.ledger.model.errors import InvalidInputError

if TYPE_CHECKING:
    from croniter import croniter

_TEXT_MAX: Final = 256
_DAYS_MAX: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # days by month, in a leap year
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM: Final = re.compile(
    r"(?:\*|(?P<first>\d{1,2}|[a-z]{3})(?:-(?P<last>\d{1,2}|[a-z]{3}))?)(?:/(?P<step>\d{1,2}))?",
    flags=re.ASCII,
)
_NTH: Final = re.compile(rf"(?:[0-7]|{'|'.join(_WEEKDAYS)})#[1-5]|l[0-7]", flags=re.ASCII)


class _Field(NamedTuple):
    """One of the five fields."""

    name: str
    least: int
    most: int
    words: Mapping[str, int] = {}


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, {word: number for number, word in enumerate(_MONTHS, 1)}),
    _Field("day of the week", 0, 7, {word: number for number, word in enumerate(_WEEKDAYS)}),
)


def check_cron(text: str) -> None:
    """Refuse text that is no cron expression of five fields, or that names no existing day; never takes long.

    Raises: InvalidInputError.
    """
    if len(text) > _TEXT_MAX:
        raise InvalidInputError(f"the cron expression has {len(text):,} characters: give at most {_TEXT_MAX}")
    parts = _split(text)
    if len(parts) != len(_FIELDS):
        raise InvalidInputError(
            f"cron {text!a} has {len(parts)} fields: give five, which are minute, hour, day of the month, month and "
            "day of the week"
        )
    days, weekdays = parts[2], parts[4]
    if "#" in weekdays or "l" in weekdays:
        _check_nth(weekdays, days)
        parts[4] = "*"
    if days == "l":
        parts[2] = "*"
    values = [_values(field, part) for field, part in zip(_FIELDS, parts, strict=True)]
    # If days of the month and of the week are both restricted, either is enough.
    if days.startswith("*") or parts[4].startswith("*"):
        _check_days(text, values[2], values[3])


def counts_hours(text: str) -> bool:
    """Return whether the hour field begins with `*`: such an expression counts hours instead of naming them."""
    return any(part.startswith("*") for part in _split(text)[1:2])


def next_wall_time(text: str, after: datetime) -> datetime | None:
    """Return the first naive time after the naive time `after` that an expression names; None: there is none.

    Raises: InvalidInputError.
    """
    finder = copy.copy(_finder(text))  # a finder has a position, and threads share the cached one
    try:
        found: Any = finder.get_next(datetime, start_time=after)
    except (ValueError, OverflowError):  # a time after the year 9999, or none within 50 years
        return None
    assert isinstance(found, datetime), "that is what was asked for"
    return found


@functools.lru_cache(maxsize=1_024)
def _finder(text: str) -> croniter:
    check_cron(text)  # a stored text may be unchecked, and croniter might never end
    # Imported late, since processes that only enqueue do not need it.
    from croniter import croniter  # noqa: PLC0415

    # With `implement_cron_bug` both day fields must match if one of them begins with `*`, as in Debian's cron.
    return croniter(" ".join(_split(text)), start_time=0.0, implement_cron_bug=True)


def _split(text: str) -> list[str]:
    return text.lower().split() if text.isascii() else [text]


def _check_days(text: str, days: Sequence[int], months: Sequence[int]) -> None:
    if min(days) > max(_DAYS_MAX[month - 1] for month in months):
        raise InvalidInputError(f"cron {text!a} never ticks: no month that it names has a day {min(days)}")


def _check_nth(weekdays: str, days: str) -> None:
    if days != "*" or not all(map(_NTH.fullmatch, weekdays.split(","))):
        raise InvalidInputError(
            f"cron day of the week {weekdays!a}: fri#2 is the second Friday of a month and L5 its last one; "
            "give only such days, and * as the day of the month"
        )


def _values(field: _Field, part: str) -> list[int]:
    return [value for item in part.split(",") for value in _item(field, item)]


def _item(field: _Field, item: str) -> Iterable[int]:
    """Return the numbers that a part of a list names. Raises: InvalidInputError."""
    match = _ITEM.fullmatch(item)
    if match is None:
        _refuse(field, item)
    first, last = field.least, field.most
    if match["first"] is not None:
        first = last = _number(field, item, match["first"])
    if match["last"] is not None:
        last = _number(field, item, match["last"])
        if field.words and field.least == last == 0:
            last = field.most  # 7 is Sunday at the end of a week
        if first >= last:
            _refuse(field, item)
    step = int(match["step"] or 1)
    if not 1 <= step <= max(1, last - first):
        _refuse(field, item)
    return range(first, last + 1, step)


def _number(field: _Field, item: str, word: str) -> int:
    value = int(word) if word.isdecimal() else field.words.get(word, -1)
    if not field.least <= value <= field.most:
        _refuse(field, item)
    return value


def _refuse(field: _Field, item: str) -> NoReturn:
    raise InvalidInputError(
        f"cron {field.name} {item!a} is not understood: give *, a number from {field.least} to {field.most}, "
        f"a range such as {field.least}-{field.most}, a step such as */2 or {field.least}-{field.most}/2, or a list "
        "of these with commas"
    )
