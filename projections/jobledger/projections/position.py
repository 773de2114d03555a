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
    environment: str
    schema_version: int
    updated_at: str | None  #: when it was committed, by the projector's clock


def read_position(connection: sqlite3.Connection) -> Position:
    """Return the position as this connection sees it now."""
    row = connection.execute(schema.SELECT_POSITION).fetchone()
    return Position(**dict(zip(schema.POSITION_COLUMNS, row, strict=True)))
