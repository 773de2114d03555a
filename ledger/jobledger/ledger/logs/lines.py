"""Many lines in one log record: whatever says much makes a record for all of a moment, not for each.

Such a record has them as its attribute `lines`. A handler that does not know of that shows its message: the texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import LogRecord
from typing import NamedTuple


class Line(NamedTuple):
    """One of them."""

    at: float  #: when it happened, as `LogRecord.created`
    text: str
    fields: Mapping[str, str | int | float]  #: the same for a program


def lines_of(record: LogRecord) -> Sequence[Line] | None:
    """Return the lines of a record that has many, else None."""
    found: Sequence[Line] | None = getattr(record, "lines", None)
    return found
