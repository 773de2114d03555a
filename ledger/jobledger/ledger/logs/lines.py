"""Many lines in one log record: code that logs very often makes one record for all lines of a moment.

The record has the attribute `lines`. Its message holds the same texts, for handlers that do not know this attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import LogRecord
from typing import NamedTuple


class Line(NamedTuple):
    """One line of such a record."""

    at: float  #: when it happened: seconds since 1970, as `LogRecord.created`
    text: str
    fields: Mapping[str, str | int | float]  #: the same as names and values, for programs


def lines_of(record: LogRecord) -> Sequence[Line] | None:
    """Return the lines of a record that has many, else None."""
    found: Sequence[Line] | None = getattr(record, "lines", None)
    return found
