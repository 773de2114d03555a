"""Make a projection anew beside the old one, and prove that two projections are equal."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from jobledger.ledger.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.log import Log
from jobledger.projections import files, schema
from jobledger.projections.layout import JOBS, Layout
from jobledger.projections.projector import Position, ProgressCallback, Projector, ProjectorConfig
from jobledger.projections.snapshots import Snapshots

#: More in one transaction than when following: nobody else waits, and each job's row is written less often.
_REBUILD_CONFIG: Final = ProjectorConfig(batch_events_max=8_000)
_PROBE_S: Final = 5.0
_SHOWN_CHARACTERS_MAX: Final = 80


async def rebuild(
    log: Log,
    path: Path | str,
    *,
    progress: ProgressCallback | None = None,
    config: ProjectorConfig | None = None,
    clock: Clock = SYSTEM_CLOCK,
    layout: Layout = JOBS,
) -> Position:
    """Write a new projection from the first event to the head as it is now, then let it take the old one's place.

    Until then the old file stays as it is, and who has it open goes on reading it; a projector that follows
    notices and goes on in the new one. Interrupted, it leaves nothing but a draft that the next one removes.

    Raises: NotAProjectionError, ProjectionStorageError, ProjectionBusyError, EventGapError, and what `Log.read`
        raises; the old file is as it was.
    """
    path, config = Path(path), config or _REBUILD_CONFIG
    with files.translated(path, config.busy_timeout_s):
        files.refuse_foreign(path, layout)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = files.draft_path(path)
        connection = files.open_draft(draft, log.names.environment, layout)
    try:
        with Projector(log, draft, config=config, clock=clock, layout=layout) as projector:
            projector.adopt(connection, files.identity(draft))
            position = await projector.fill(progress)
            with files.translated(path, config.busy_timeout_s):
                layout.create_indexes(connection)
        with files.translated(path, config.busy_timeout_s):
            files.seal_draft(draft)
        Snapshots(path).clear()  # whoever rebuilds may doubt what they were copied from
        files.replace(draft, path, busy_timeout_s=config.busy_timeout_s, layout=layout)
    finally:
        draft.unlink(missing_ok=True)
    return position


def difference(path_a: Path | str, path_b: Path | str) -> str | None:
    """Return a sentence on the first row that two projections do not share, or None when they are equal.

    Everything is compared but `position.updated_at`, the only value that does not come from the ledger.
    Raises: the errors of opening either file.
    """
    a, b = Path(path_a), Path(path_b)
    for table, key in schema.KEYS.items():
        with files.translated(a, _PROBE_S), files.translated(b, _PROBE_S):
            found = _table_difference(a, b, table, key)
        if found is not None:
            return found
    return None


def _table_difference(a: Path, b: Path, table: str, key: tuple[str, ...]) -> str | None:
    for row_a, row_b in itertools.zip_longest(_rows(a, table, key), _rows(b, table, key)):
        if row_a == row_b:
            continue
        if row_b is None or (row_a is not None and _place(row_a, key) < _place(row_b, key)):
            return f"table {table}: {_name(row_a, key)} is in {a} and not in {b}"
        if row_a is None or _place(row_b, key) < _place(row_a, key):
            return f"table {table}: {_name(row_b, key)} is in {b} and not in {a}"
        column = next(name for name in row_a if row_a[name] != row_b[name])
        values = f"{_shown(row_a[column])} in {a} and {_shown(row_b[column])} in {b}"
        return f"table {table}: {column} of {_name(row_a, key)} is {values}"
    return None


def _rows(path: Path, table: str, key: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    connection = files.open_reader(path, busy_timeout_s=_PROBE_S)
    try:
        connection.row_factory = sqlite3.Row
        order = ", ".join(key)
        for row in connection.execute(f"SELECT * FROM {table} ORDER BY {order}"):  # noqa: S608 - names of our schema
            values = dict(row)
            if table == "position":
                del values["updated_at"]
            yield values
    finally:
        connection.close()


def _place(row: dict[str, Any], key: tuple[str, ...]) -> list[Any]:
    return [row[name] for name in key]


def _name(row: dict[str, Any] | None, key: tuple[str, ...]) -> str:
    assert row is not None, "one of two different rows exists"
    return "/".join(str(row[name]) for name in key)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."
