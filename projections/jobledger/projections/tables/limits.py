"""The table of the limits' definitions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.limits.definition import LIMIT, Terms
from jobledger.ledger.model.times import time_text
from jobledger.projections.table import (
    AggregateTables,
    CacheLimits,
    Rows,
    Table,
    integer,
    real,
    text,
    timestamp,
)

LIMITS: Final = Table(
    name="limits",
    row="[limit](limits.md) that is defined, and key of one that has a definition of its own",
    columns={
        "name": text("the limit's name"),
        "limit_key": text("the key for which something differs; empty: every other one"),
        "slots": integer("how many jobs may hold the key at once; NULL: any number"),
        "rate": real("how many jobs of the key may start in `per_s` seconds; NULL: any number"),
        "per_s": real("the period of `rate`, in seconds"),
        "burst": integer("how many of them may start at once"),
        "mode": text("what a job does that finds the key full: `queue`, `newest`, `replace` or `drop`"),
        "keep": text("when a job gives its slot back: after each `attempt`, or at the end of the `job`"),
        "weight": real("the key's share beside other keys"),
        "queues": text(
            "patterns of the queues whose jobs may name the limit, with blanks between; empty: nobody said"
        ),
        "tasks": text("the same of tasks"),
        "source": text("who says so: `code` or `operator`"),
        "set_by": text("the process or person"),
        "set_at": timestamp("when, by the clock of that process or person"),
        "reason": text("why, as the person said; or empty"),
        "last_sequence": integer("the stream sequence of the limit's newest `set`"),
    },
    key=("name", "limit_key"),
    sequence="last_sequence",
)
#: Columns that hold several words.
_PATTERNS: Final = ("queues", "tasks")
_PUT: Final = LIMITS.putting()
_FORGET: Final = "DELETE FROM limits WHERE name = ?"
_SELECT: Final = f"SELECT {', '.join(LIMITS.columns)} FROM limits ORDER BY name, limit_key"  # noqa: S608 - names of columns


class _LimitKey(Terms, frozen=True):
    name: str
    key: str  #: "": every key without a row of its own


class LimitRow(_LimitKey, frozen=True, kw_only=True):
    """A limit, or one key of it with other terms."""

    source: str
    set_by: str
    set_at: str
    reason: str
    last_sequence: int


def limit_rows(select: Callable[[str], Sequence[Sequence[Any]]]) -> list[LimitRow]:
    """Return every limit that is defined, by name and key; `select` runs a statement on a projection's file."""
    return [_row(dict(zip(LIMITS.columns, row, strict=True))) for row in select(_SELECT)]


def _row(values: dict[str, Any]) -> LimitRow:
    patterns: dict[str, Any] = {name: tuple(values[name].split()) for name in _PATTERNS}
    return LimitRow(values.pop("name"), values.pop("limit_key"), **{**values, **patterns})


class LimitRows(Rows):
    """The rows of limits: each `set` replaces all rows of its limit."""

    def __init__(self, connection: sqlite3.Connection, _cache: CacheLimits) -> None:
        self._connection = connection

    def apply(self, messages: Sequence[Message]) -> None:
        """Bring the rows forward; see `table.Rows`."""
        for message in messages:
            limit = LIMIT.evolve(None, LIMIT.decode(message), message.stream_sequence)
            self._connection.execute(_FORGET, (limit.limit,))
            for key in ("", *limit.overrides) if limit.is_set else ():
                terms, author = limit.of(key), limit.author(key)
                assert terms is not None, "it is set"
                said = (author.source, author.by, time_text(author.at), author.reason, limit.sequence)
                self._connection.execute(_PUT, (limit.limit, key, *_values(terms), *said))


def _values(terms: Terms) -> tuple[Any, ...]:
    said = msgspec.structs.asdict(terms)
    return tuple(" ".join(value) if name in _PATTERNS else value for name, value in said.items())


LIMIT_TABLES: Final = AggregateTables(aggregate=LIMIT.name, version=3, tables=(LIMITS,), rows=LimitRows)
