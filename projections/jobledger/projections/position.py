"""Where a projection stands: the newest event in its rows, and the first one."""

from __future__ import annotations

import sqlite3

import msgspec

from jobledger.projections import schema


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far a projection has read."""

    stream_sequence: int  #: of the newest event in the rows; 0 before the first
    event_hash: str  #: hex sha256 of that event as stored; "" before the first
    begins_at: int  #: the first sequence that is in the rows: 1, unless the ledger's beginning was archived
    counts_begin_at: (
        int  #: the first sequence that `totals` and `failures` count: 1, unless an archive run left it out
    )
    counted_through: int  #: up to where an archive run counted them, until the rows are beyond; else 0
    environment: str
    schema_version: int
    updated_at: str | None  #: when it was committed, by the projector's clock

    @property
    def missing(self) -> str:
        """What the counters lack, in a sentence; "" when they count from the ledger's first event."""
        if self.counts_begin_at == 1:
            return ""
        return (
            f"counters begin at stream sequence {self.counts_begin_at:,}: what came before was archived and is not "
            "counted; `jobledger projection rebuild --archive DIR` brings it back"
        )


def read_position(connection: sqlite3.Connection) -> Position:
    """Return the position as this connection sees it now."""
    row = connection.execute(schema.SELECT_POSITION).fetchone()
    return Position(**dict(zip(schema.POSITION_COLUMNS, row, strict=True)))
