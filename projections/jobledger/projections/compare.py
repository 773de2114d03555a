"""Prove that two projections are equal, row for row, or say where the first difference lies.

Each file is read in one transaction, so that a projector at work does not move it meanwhile.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from jobledger.ledger.model.archive_record import forgotten_past
from jobledger.ledger.model.log import Log
from jobledger.projections import files
from jobledger.projections.agreement import refuse_lost_beginning
from jobledger.projections.background import Background
from jobledger.projections.errors import DamagedProjectionError, PositionArchivedError
from jobledger.projections.projector import (
    Position,
    ProgressCallback,
    Projector,
    ProjectorConfig,
    read_position,
)
from jobledger.projections.table import Table
from jobledger.projections.tables.registry import all_tables

_PROBE_S: Final = 5.0
_SHOWN_CHARACTERS_MAX: Final = 80
# Small enough that a signal is handled between two batches.
_FRESH: Final = ProjectorConfig(batch_events_max=2_000)
_RANKS: Final[dict[type, int]] = {type(None): 0, int: 1, float: 1, str: 2, bytes: 3}
_BEHIND_ALL: Final = (4, None)

_Row = tuple[Any, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first row that two projections do not share: of the lowest stream sequence, where rows have one."""

    table: str
    row: str  #: its key, parts joined by `/`
    stream_sequence: int | None  #: of the event that wrote the row last; for an attempt, of its start
    rows: int  #: how many rows differ in all
    sentence: str


def difference(path_a: Path | str, path_b: Path | str) -> str | None:
    """Return a sentence on the first row that differs between two projections, or None when they are equal.

    Everything is compared but `position.updated_at`, the only value that does not come from the ledger. Two that do
    not begin at the same stream sequence differ in that. Blocks for as long as both take to read.

    Raises: the errors of opening either file.
    """
    a, b, apart = Path(path_a), Path(path_b), Background()
    with _reading(a, apart) as one, _reading(b, apart) as two:
        found = _compared(a, one, b, two, apart)
    return None if found is None else found.sentence


async def verify(
    log: Log,
    path: Path | str,
    *,
    progress: ProgressCallback | None = None,
    comparing: ProgressCallback | None = None,
) -> tuple[Position, Difference | None]:
    """Make a second projection of the same events and compare; return the position compared and the first difference.

    The file at `path` is compared as it is now, and not changed. The second one is temporary. `progress` counts
    events, `comparing` rows. What takes long is done in a thread or in pieces; cancelled, it ends within a moment.

    Raises: DamagedProjectionError, PositionMismatchError, PositionArchivedError for a file with events that `log`
        no longer has because they were archived, EventGapError when they were lost; the other errors of opening,
        and what `Log.read` raises.
    """
    path, apart = Path(path), Background()
    with tempfile.TemporaryDirectory(prefix="jobledger-") as folder, _reading(path, apart) as connection:
        position = await apart.run(lambda: _sound(path, connection), None)
        head = await log.head()
        if head.first_sequence > position.begins_at:
            # Lost or archived? If lost, the message must not send anybody to an archive.
            await refuse_lost_beginning(log, position.begins_at - 1, head)
            what = (
                f"the projection {path} holds everything from stream sequence {position.begins_at:,} on, and the ledger "
                f"begins at {head.first_sequence:,}"
            )
            forgotten = await forgotten_past(log)
            if forgotten is not None and position.begins_at <= forgotten.through_sequence:
                what += (
                    f"; {forgotten.words}, are gone for good: rebuild it with `jobledger projection rebuild --archive DIR`, "
                    "to compare the rest"
                )
            else:
                what += (
                    ", since what came before was archived: compare with `jobledger projection verify --archive DIR`, where "
                    "DIR is the folder of the archive"
                )
            raise PositionArchivedError(path, position.stream_sequence, head.first_sequence, what)
        fresh = Path(folder) / "rebuilt.db"
        with Projector(log, fresh, config=_FRESH, begins_at=position.begins_at) as projector:
            await projector.catch_up(until=position.stream_sequence, progress=progress)
        with _reading(fresh, apart) as other:
            found = await apart.run(lambda: _compared(path, connection, fresh, other, apart), comparing)
        if found is not None:
            found = msgspec.structs.replace(found, sentence=found.sentence.replace(str(fresh), "the ledger"))
        return position, found


def _sound(path: Path, connection: sqlite3.Connection) -> Position:
    with files.translated(path, _PROBE_S):
        position = read_position(connection)
        # Each index has to agree with its table, too: otherwise a query could miss rows.
        (said,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if said != "ok":
        raise DamagedProjectionError(path, said)
    return position


@contextlib.contextmanager
def _reading(path: Path, apart: Background) -> Generator[sqlite3.Connection, None, None]:
    """Open a projection in one transaction, so that its content does not change."""
    connection = files.open_reader(path, busy_timeout_s=_PROBE_S)
    apart.reads.append(connection)
    try:
        with files.translated(path, _PROBE_S):
            connection.execute("BEGIN")
            read_position(connection)  # SQLite begins the transaction only at the first read
        yield connection
    finally:
        apart.reads.remove(connection)
        connection.close()


def _compared(
    a: Path, one: sqlite3.Connection, b: Path, two: sqlite3.Connection, apart: Background
) -> Difference | None:
    first = _beginnings(a, one, b, two)
    if first is not None:  # every other difference follows from this one
        return first
    count = 0
    with files.translated(a, _PROBE_S):
        rows = (one.execute(f"SELECT count(*) FROM {each.name}").fetchone()[0] for each in all_tables())  # noqa: S608
        apart.total = sum(rows)
    for table in all_tables():
        columns = [name for name in table.columns if name != table.own]
        places = [columns.index(name) for name in table.key]
        for row_a, row_b in _unequal(
            apart.counted(_rows(a, one, table, columns)), _rows(b, two, table, columns), places
        ):
            count += 1
            found = _described(table, columns, places, (a, row_a), (b, row_b))
            if first is None or _order(found) < _order(first):
                first = found
    return None if first is None else msgspec.structs.replace(first, rows=count)


def _beginnings(a: Path, one: sqlite3.Connection, b: Path, two: sqlite3.Connection) -> Difference | None:
    """Return the difference if two projections hold or count different parts of the ledger."""
    with files.translated(a, _PROBE_S):
        at_a = read_position(one)
    with files.translated(b, _PROBE_S):
        at_b = read_position(two)
    for name, what in (("begins_at", "holds"), ("counts_begin_at", "counts")):
        begins_a, begins_b = getattr(at_a, name), getattr(at_b, name)
        if begins_a != begins_b:
            sentence = (
                f"table position: {name} is {begins_a} in {a} and {begins_b} in {b}: each {what} the ledger from there "
                "on, so they cannot be compared row for row; one that was made after an archive run needs --archive to "
                "begin at 1"
            )
            return Difference(
                table="position", row="1", stream_sequence=min(begins_a, begins_b), rows=1, sentence=sentence
            )
    return None


def _order(found: Difference) -> tuple[bool, int]:
    return found.stream_sequence is None, found.stream_sequence or 0


def _rows(path: Path, connection: sqlite3.Connection, table: Table, columns: Sequence[str]) -> Iterator[_Row]:
    key = ", ".join(table.key)
    with files.translated(path, _PROBE_S):
        yield from connection.execute(f"SELECT {', '.join(columns)} FROM {table.name} ORDER BY {key}")  # noqa: S608


def _unequal(
    rows_a: Iterator[_Row], rows_b: Iterator[_Row], places: Sequence[int]
) -> Iterator[tuple[_Row | None, _Row | None]]:
    """Yield the two rows of each key whose rows differ, with None for a side that lacks the row."""
    row_a, row_b = next(rows_a, None), next(rows_b, None)
    while row_a is not None or row_b is not None:
        is_in_a = is_in_b = True
        if row_a != row_b:
            key_a, key_b = _key(row_a, places), _key(row_b, places)
            is_in_a, is_in_b = key_a <= key_b, key_b <= key_a
            yield row_a if is_in_a else None, row_b if is_in_b else None
        row_a = next(rows_a, None) if is_in_a else row_a
        row_b = next(rows_b, None) if is_in_b else row_b


def _key(row: _Row | None, places: Sequence[int]) -> list[tuple[int, Any]]:
    """Return a sort key that orders rows as SQLite does, also when a key holds NULL or a number."""
    if row is None:
        return [_BEHIND_ALL]
    return [(_RANKS[type(row[place])], row[place]) for place in places]


def _described(
    table: Table,
    columns: Sequence[str],
    places: Sequence[int],
    side_a: tuple[Path, _Row | None],
    side_b: tuple[Path, _Row | None],
) -> Difference:
    """Return how two rows differ; the second is the right one, if only one can be."""
    (a, row_a), (b, row_b) = side_a, side_b
    row = row_b if row_b is not None else row_a
    assert row is not None, "one of two different rows exists"
    name = "/".join(str(row[place]) for place in places)
    if row_a is None or row_b is None:
        here, there = (b, a) if row_a is None else (a, b)
        what = f"table {table.name}: {name} is in {here} and not in {there}"
    else:
        place = next(each for each, value in enumerate(row_a) if value != row_b[each])
        values = f"{_shown(row_a[place])} in {a} and {_shown(row_b[place])} in {b}"
        what = f"table {table.name}: {columns[place]} of {name} is {values}"
    sequence = row[columns.index(table.sequence)] if table.sequence else None
    if sequence is not None:
        what = f"{what} (stream sequence {sequence})"
    return Difference(table=table.name, row=name, stream_sequence=sequence, rows=1, sentence=what)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."
