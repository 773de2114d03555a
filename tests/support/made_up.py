"""An aggregate that the product does not have, declared as one of its own would be."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from jobledger.ledger.model.aggregate import Aggregate, Broken
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.envelope import Envelope
from jobledger.projections.table import AggregateTables, CacheLimits, Index, Rows, Table, integer, text


class _Fact(Envelope, frozen=True, kw_only=True, gc=False):
    kind: str  #: what sort of thing
    name: str  #: which one


class Made(_Fact, frozen=True, kw_only=True, tag="made", gc=False):
    """Somebody made a thing."""

    size: int = 1  #: how large it is


class Dropped(_Fact, frozen=True, kw_only=True, tag="dropped", gc=False):
    """Somebody dropped the thing."""


class Thing(msgspec.Struct, frozen=True, gc=False):
    """A thing as its events add up."""

    size: int  #: 0 once it was dropped
    times: int = 1  #: how often it was made


def evolve(before: Thing | None, event: Made | Dropped, _stream_sequence: int) -> Thing:
    times = 0 if before is None else before.times
    match event:
        case Made(size=size):
            return Thing(size, times + 1)
        case Dropped():
            return Thing(0, times)


def _words(event: Made | Dropped) -> str:
    match event:
        case Made(size=size):
            return f"of size {size}"
        case Dropped():
            return ""


def _check(before: Thing | None, event: Made | Dropped, _stream_sequence: int) -> Iterator[Broken]:
    if isinstance(event, Dropped) and (before is None or not before.size):
        yield "transition", "`dropped` without a thing"


THING: Aggregate[Made | Dropped, Thing] = Aggregate(
    "thing", ("kind", "name"), Made | Dropped, state=Thing, evolve=evolve, words=_words, check=_check
)


def made(name: str, *, size: int = 1, by: str = "test") -> Made:
    return Made(kind="toy", name=name, size=size, at=datetime.now(UTC), by=by)


def dropped(name: str, *, by: str = "test") -> Dropped:
    return Dropped(kind="toy", name=name, at=datetime.now(UTC), by=by)


#: Its table, to be listed in `tables.registry.TABLES`.
THINGS: Final = Table(
    name="things",
    row="thing that was made",
    columns={
        "kind": text("what kind of thing"),
        "name": text("its name"),
        "size": integer("how large it was made"),
        "times": integer("how often it was made"),
        "last_sequence": integer("of its newest event"),
    },
    key=("kind", "name"),
    indexes=(Index(("size",)),),
    sequence="last_sequence",
)
_PUT: Final = THINGS.putting()


class ThingRows(Rows):
    """The rows of `things`: each is read, brought forward by one event, and written again."""

    def __init__(self, connection: sqlite3.Connection, _cache: CacheLimits) -> None:
        self._connection = connection

    def apply(self, messages: Sequence[Message]) -> None:
        for message in messages:
            key = THING.key_in(message.subject)
            after = THING.evolve(self._read(key), THING.decode(message), message.stream_sequence)
            self._connection.execute(_PUT, (*key, after.size, after.times, message.stream_sequence))

    def _read(self, key: tuple[str, ...]) -> Thing | None:
        sql = "SELECT size, times FROM things WHERE kind = ? AND name = ?"
        row = self._connection.execute(sql, key).fetchone()
        return None if row is None else Thing(*row)


THING_TABLES: Final = AggregateTables(aggregate=THING.name, version=1, tables=(THINGS,), rows=ThingRows)
