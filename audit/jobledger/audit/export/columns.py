"""What the rows of an export in Parquet say beside the stored bytes, for tools that read tables.

The columns follow from the bytes alone: whoever checks an export computes them again. An event of a newer version has
them too, as far as it has the fields.
"""

from __future__ import annotations

import operator
from datetime import datetime
from typing import Annotated, Final, NamedTuple

import msgspec

_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Columns(NamedTuple):
    """An event's own fields; None where it has none, and everywhere for bytes that are no event."""

    type: str | None = None
    job: str | None = None
    queue: str | None = None
    task: str | None = None
    attempt: int | None = None
    worker: str | None = None
    at: datetime | None = None
    error_type: str | None = None
    tenant: str | None = None
    correlation: str | None = None


class _Error(msgspec.Struct, gc=False):
    type: str


class _Event(msgspec.Struct, gc=False):
    type: str | None = None
    job: str | None = None
    queue: str | None = None
    task: str | None = None
    attempt: _Number | None = None
    worker: str | None = None
    at: _Time | None = None
    error: _Error | None = None
    tenant: str | None = None
    correlation: str | None = None

    @property
    def error_type(self) -> str | None:
        """The type of its error."""
        return None if self.error is None else self.error.type


_NOTHING: Final = Columns()
_read: Final = operator.attrgetter(*Columns._fields)
_decode: Final = msgspec.json.Decoder(_Event).decode


def columns_of(data: bytes) -> Columns:
    """Return the columns of a stored event."""
    try:
        event = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _NOTHING
    return Columns(*_read(event))
