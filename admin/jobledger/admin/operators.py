"""What operators did to jobs: cancel, retry, requeue, discard, with actor and reason."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from jobledger.admin.archived import missing, with_archive
from jobledger.admin.errors import Missing
from jobledger.admin.rows import Rows
from jobledger.ledger.model.log import Log
from jobledger.projections import ActFilter, ActRow, EventGapError, Projector, Store


class Acted(NamedTuple):
    """The newest actions, and what the list lacks."""

    newest: list[ActRow]
    total: int  #: of all that match
    missing: Missing | None  #: None where no earlier action can be missing


async def operator_acts(rows: Rows, chosen: ActFilter, *, limit: int, archives: Sequence[Path] = ()) -> Acted:
    """Return what operators did to jobs, the newest first; also before the ledger's beginning where `archives` is named.

    Raises: as `with_archive`; ProjectionError, UnreachableError.
    """
    log = await with_archive(rows.ledger.log, archives)
    gap = await missing(log, archives, since=chosen.since)
    # The rows may go further back than what is read: then the answer would depend on who made them, and when.
    chosen = msgspec.structs.replace(chosen, from_sequence=(await log.head()).first_sequence)
    with tempfile.TemporaryDirectory(prefix="jobledger-") as folder:
        path = await _projected(rows, log, Path(folder), chosen.from_sequence)
        with Store.open(path) as store, store.one_moment():
            return Acted(store.acts(limit, chosen=chosen), store.act_count(chosen), gap)


async def _projected(rows: Rows, log: Log, folder: Path, first_sequence: int) -> Path:
    """Return a file brought up to the ledger; one in `folder` where an archive is in front, or the beginning is lost."""
    if log is rows.ledger.log:
        with contextlib.suppress(EventGapError):
            await rows.catch_up()
            return await rows.path()
    path = folder / "acts.db"
    with (
        Projector(log, path, begins_at=first_sequence) as projector,
        rows.progress("reading the ledger") as progress,
    ):
        await projector.catch_up(progress=progress)
    return path
