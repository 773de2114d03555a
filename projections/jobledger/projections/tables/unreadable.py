"""The table of messages in the ledger that are no events, and of who accepted them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from jobledger.ledger.model.codec import Message, Unreadable
from jobledger.ledger.model.times import time_text
from jobledger.ledger.model.unreadable import UNREADABLE
from jobledger.projections.table import (
    AggregateTables,
    CacheLimits,
    Index,
    Rows,
    Table,
    integer,
    text,
    timestamp,
)
from jobledger.projections.tables.acts import put_act

_SHOWN_MAX: Final = 300

SET_ASIDE: Final = Table(
    name="unreadable",
    row="message in the ledger that is [no event](events.md#what-is-no-event), and who accepted it",
    columns={
        "stream_sequence": integer("of the message"),
        "at": timestamp("the server's time of the message"),
        "subject": text("under which it is stored, cut at 300 characters"),
        "bytes": integer("its size"),
        "sha256": text("of its bytes, in hex"),
        "why": text("why it is no event"),
        "acknowledged_at": timestamp("when somebody accepted it, by the server's time; NULL: nobody did"),
        "acknowledged_by": text("who, as the caller named himself"),
        "reason": text("why it was accepted"),
    },
    key=("stream_sequence",),
    indexes=(Index(("stream_sequence",), where="acknowledged_by IS NULL"),),
    sequence="stream_sequence",
)
_PUT: Final = SET_ASIDE.putting()
_ACCEPT: Final = (
    "UPDATE unreadable SET acknowledged_at = ?, acknowledged_by = ?, reason = ? "
    "WHERE stream_sequence = ? AND sha256 = ? AND acknowledged_by IS NULL"
)
_COUNT: Final = (
    "SELECT (SELECT count(*) FROM unreadable), "
    "(SELECT count(*) FROM unreadable WHERE acknowledged_by IS NULL)"
)


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages in the ledger that are no events."""

    count: int
    unacknowledged: int  #: those that nobody accepted


def count_set_aside(select: Callable[[str], Sequence[Sequence[int]]]) -> SetAside:
    """Return the number of such messages; `select` runs a statement on a projection's file."""
    ((count, unacknowledged),) = select(_COUNT)
    return SetAside(count=count, unacknowledged=unacknowledged)


class UnreadableRows(Rows):
    """The rows of unreadable messages; `apply` gets these, and the events by which a person accepted one."""

    def __init__(self, connection: sqlite3.Connection, _cache: CacheLimits) -> None:
        self._connection = connection

    def apply(self, messages: Sequence[Message]) -> None:
        """Bring the rows forward; see `table.Rows`."""
        for message in messages:
            at = time_text(message.stored_at)
            if isinstance(message, Unreadable):
                subject, why = message.subject[:_SHOWN_MAX], message.why[:_SHOWN_MAX]
                size = len(message.data)
                row = (message.stream_sequence, at, subject, size, message.hash, why, None, None, None)
                self._connection.execute(_PUT, row)
            else:
                event = UNREADABLE.decode(message)
                self._connection.execute(_ACCEPT, (at, event.by, event.reason, event.sequence, event.sha256))
                reason = f"stream sequence {event.sequence}: {event.reason}"
                put_act(self._connection, message, "acknowledge", by=event.by, reason=reason)


UNREADABLE_TABLES: Final = AggregateTables(
    aggregate=UNREADABLE.name, version=2, tables=(SET_ASIDE,), rows=UnreadableRows
)
