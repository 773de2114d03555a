"""Rebuild a projection beside the old file, then replace the old file by the new one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jobledger.ledger.files import make_folder
from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.log import Log
from jobledger.projections import files
from jobledger.projections.filler import Filler, ProgressCallback, ProjectorConfig
from jobledger.projections.layout import LEDGER, Layout
from jobledger.projections.position import Position
from jobledger.projections.snapshots import Snapshots

#: Larger transactions than when following: nobody waits for them, and each job's row is written less often.
_REBUILD_CONFIG: Final = ProjectorConfig(batch_events_max=8_000)


async def rebuild(
    log: Log,
    path: Path | str,
    *,
    until: int | None = None,
    progress: ProgressCallback | None = None,
    config: ProjectorConfig | None = None,
    clock: Clock = SYSTEM_CLOCK,
    layout: Layout = LEDGER,
) -> Position:
    """Write a new projection from the first event to the present head, then replace the old one.

    With `until` it ends at that stream sequence, if the head is beyond it.

    Until then the old file stays as it is, and readers that have it open go on reading it; a projector that follows
    notices the new file and goes on with it. An interrupted rebuild leaves only a draft, which the next one removes.

    Raises: NotAProjectionError, ProjectionStorageError, ProjectionBusyError, EventGapError, and what `Log.read`
        raises; the old file is as it was.
    """
    path, config = Path(path), config or _REBUILD_CONFIG
    with files.translated(path, config.busy_timeout_s):
        files.refuse_foreign(path, layout)
        make_folder(path.parent)
        draft = files.draft_path(path)
        connection = files.open_draft(draft, log.names.environment, layout)
    try:
        with Filler(log, draft, config=config, clock=clock, layout=layout) as filler:
            filler.adopt(connection, files.identity(draft))
            position = await filler.fill(progress, until=until)
            with files.translated(path, config.busy_timeout_s):
                layout.create_indexes(connection)
        with files.translated(path, config.busy_timeout_s):
            files.seal_draft(draft)
        # The old file, and so its snapshots, may be wrong. They are removed again afterwards, since others may be
        # copying the old file.
        Snapshots(path).clear()
        files.replace(draft, path, busy_timeout_s=config.busy_timeout_s, layout=layout)
        Snapshots(path).clear()
    finally:
        draft.unlink(missing_ok=True)
    return position
