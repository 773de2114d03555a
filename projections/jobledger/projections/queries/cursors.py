"""A place in a list as text, which a caller passes for the next page: the place stays the same while rows are added.

A cursor holds the sort values and a hash of the query without times, since a cursor of another query would skip rows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final, TypeVar

import msgspec

from jobledger.projections.errors import CursorMismatchError
from jobledger.projections.filters import DeadLetterFilter, JobFilter

_Filter = TypeVar("_Filter", JobFilter, DeadLetterFilter)

_HASH_BYTES: Final = 6
_LENGTH_MAX: Final = 1_000


def without_times(chosen: _Filter) -> _Filter:
    """Return a filter without times, for cursors: `2 hours ago` is another time on every page, but moves no row."""
    return msgspec.structs.replace(chosen, since=None, until=None)


def make_cursor(question: object, *place: str | int) -> str:
    """Return the cursor of a row; `place`: the row's values that order the list. `question`: filters and order."""
    body = msgspec.json.encode((_hash(question), *place))
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def read_cursor(question: object, cursor: str, *kinds: type[str | int]) -> tuple[str | int, ...]:
    """Return the place in a cursor, whose parts have these types.

    Raises: CursorMismatchError for the cursor of another query, and for text that is no cursor.
    """
    if len(cursor) <= _LENGTH_MAX:
        try:
            body = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            of, *place = msgspec.json.decode(body, type=list[str | int])
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            of, place = "", []
        if tuple(map(type, place)) == kinds and all(map(_fits_column, place)):
            if of != _hash(question):
                raise CursorMismatchError(
                    "the cursor is that of a list with other filters or another order: "
                    "ask for the first page again, without a cursor"
                )
            return tuple(place)
    raise CursorMismatchError(
        f"{cursor[:40]!r} is no cursor: give `next` of the page before as it is, or none for the first page"
    )


def _fits_column(value: str | int) -> bool:
    """Return whether SQLite can compare a column with a value: its integers have 64 bits."""
    return isinstance(value, str) or -(1 << 63) <= value < 1 << 63


def _hash(question: object) -> str:
    return hashlib.sha256(msgspec.json.encode(question)).digest()[:_HASH_BYTES].hex()
