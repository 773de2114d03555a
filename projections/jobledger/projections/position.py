"""The position of a projection: the newest event in its rows, and the first one; a table of one row in every file."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from jobledger.projections.table import Table, integer, marks, text, timestamp

POSITION_TABLE: Final = Table(
    name="position",
    row="file: which events its rows hold",
    columns={
        "id": integer("always 1"),
        "stream_sequence": integer("of the newest event in the rows; 0 before the first"),
        "event_hash": text("hex sha256 of that event as stored"),
        "begins_at": integer("the first stream sequence in the rows: 1, unless the beginning was archived"),
        "counts_begin_at": integer("the first stream sequence that `totals` and `failures` count"),
        "counted_through": integer("where an archive run's count ends, until the rows are beyond; else 0"),
        "environment": text('the environment of the ledger; "" is the usual one'),
        "schema_version": integer("of the tables"),
        "updated_at": timestamp(
            "when the rows were committed, by the projector's clock; NULL before the first event"
        ),
    },
    key=("id",),
    own="updated_at",
)


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The position that a projection has read to."""

    stream_sequence: int  #: stream sequence of the newest event in the rows; 0 before the first
    event_hash: str  #: hex sha256 of that event as stored; "" before the first
    begins_at: int  #: the first sequence that is in the rows: 1, unless the ledger's beginning was archived
    counts_begin_at: (
        int  #: the first sequence that `totals` and `failures` count: 1, unless an archive run left it out
    )
    counted_through: int  #: last sequence that an archive run counted; 0 once the rows are beyond it
    environment: str
    schema_version: int
    updated_at: str | None  #: time of the commit, by the projector's clock

    @property
    def missing(self) -> str:
        """A sentence on events that the counters lack; "" if they count from the ledger's first event."""
        if self.counts_begin_at == 1:
            return ""
        return (
            f"counters begin at stream sequence {self.counts_begin_at:,}: what came before was archived and is not "
            "counted; `jobledger projection rebuild --archive DIR` brings it back"
        )


POSITION_COLUMNS: Final = Position.__struct_fields__
SELECT_POSITION: Final = f"SELECT {', '.join(POSITION_COLUMNS)} FROM position WHERE id = 1"  # noqa: S608 - constants
UPDATE_POSITION: Final = (
    "UPDATE position SET stream_sequence = ?, event_hash = ?, updated_at = ? WHERE id = 1"
)
BEGIN_AT: Final = "UPDATE position SET stream_sequence = ?, begins_at = ?, counts_begin_at = ? WHERE id = 1"
SELECT_COUNTED: Final = "SELECT counted_through FROM position WHERE id = 1"
COUNTED: Final = "UPDATE position SET counts_begin_at = ?, counted_through = ? WHERE id = 1"
ALL_COUNTED: Final = "UPDATE position SET counted_through = 0 WHERE id = 1"


def put_before_first(connection: sqlite3.Connection, environment: str, schema_version: int) -> None:
    """Write the position of an empty file."""
    columns = ("id", *POSITION_COLUMNS)
    values = (1, 0, "", 1, 1, 0, environment, schema_version, None)
    connection.execute(f"INSERT INTO position ({', '.join(columns)}) VALUES ({marks(columns)})", values)  # noqa: S608


def read_position(connection: sqlite3.Connection) -> Position:
    """Return the position as this connection sees it now."""
    row = connection.execute(SELECT_POSITION).fetchone()
    return Position(**dict(zip(POSITION_COLUMNS, row, strict=True)))
