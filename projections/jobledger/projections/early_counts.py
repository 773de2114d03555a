"""The counts that an archive run takes before it removes the ledger's beginning, from an up-to-date projection.

Source: ADR 012.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from jobledger.audit.counts import CountEverything, Counts
from jobledger.audit.errors import ArchiveIncompleteError, ArchiveRefusedError, NotAnExportError
from jobledger.ledger.model.errors import NotFoundError
from jobledger.ledger.model.log import Log
from jobledger.projections import files
from jobledger.projections.errors import ProjectionError
from jobledger.projections.filler import ProgressCallback
from jobledger.projections.position import read_position
from jobledger.projections.projector import Projector
from jobledger.projections.statistics.archived_counts import read_counts

_BUSY_TIMEOUT_S: Final = 5.0

#: Returns the ledger with its archived events in front of it.
Past = Callable[[], Awaitable[Log]]


def counting(log: Log, path: Path | str, *, past: Past | None = None) -> CountEverything:
    """Return the function that `archive.archive_deps` takes as `count`.

    It brings the projection at `path` up to the ledger's end, and reads its counters. If they do not count from the
    ledger's first event, or the projection cannot go on, everything is counted from `past` in a temporary file.

    The returned function raises ArchiveRefusedError when both ways fail, and what `Log.read` raises.
    """

    async def count(progress: ProgressCallback) -> Counts:
        found: Counts | None = None
        try:
            found = await _counted(log, Path(path), progress)
            if found.begins_at == 1 or past is None:
                return found
        except ProjectionError as error:
            if past is None:
                raise _refusal(error) from error
        try:
            with tempfile.TemporaryDirectory(prefix="jobledger-") as folder:
                return await _counted(await past(), Path(folder) / "counting.db", progress)
        except (ProjectionError, ArchiveIncompleteError, NotAnExportError, NotFoundError, OSError) as error:
            if found is not None:
                return found  # `found` records where the counts begin, for the next projection
            raise _refusal(error) from error

    return count


def _refusal(error: Exception) -> ArchiveRefusedError:
    return ArchiveRefusedError(
        f"what goes away was not counted: {error}; name another file with --projection, or go on without with --force: "
        "counters that are rebuilt then begin where the ledger does"
    )


async def _counted(log: Log, path: Path, progress: ProgressCallback) -> Counts:
    with Projector(log, path) as projector:
        _ = await projector.catch_up(progress=progress)
    connection = files.open_reader(path, busy_timeout_s=_BUSY_TIMEOUT_S)
    try:
        with files.translated(path, _BUSY_TIMEOUT_S):
            connection.execute("BEGIN")  # counters and position are of one moment
            return read_counts(connection, read_position(connection))
    finally:
        connection.close()
