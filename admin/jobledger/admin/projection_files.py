"""The projections that lie on this machine, one file per ledger, and what they know of ledgers that are gone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from jobledger.admin.rows import file_name, place_name
from jobledger.ledger.client import Ledger
from jobledger.projections import Position, ProjectionError, Store

PROJECTIONS: Final = "projections"  #: a folder in the data folder
READ_MODELS: Final = "read-models"  #: a folder beside that of the projections
_BORN: Final = r"[0-9a-f]{12}(\.v\d+)?"  #: names of earlier releases lack the schema's number at the end
_FILES_MAX: Final = 100  #: of each place, only this many files are read: the newest ones


async def projection_path(ledger: Ledger, data: Callable[[], Path], chosen: Path | None = None) -> Path:
    """Return a ledger's projection: the file that was named, else the one in the data folder that `data` finds."""
    return chosen if chosen is not None else data() / PROJECTIONS / await file_name(ledger)


def former_ledger(environment: str, files: Iterable[Path], *, now: Path | None = None) -> str | None:
    """Return a sentence on a ledger that was at a place, and that only a projection still knows; None without one.

    `files`: projections of that place, from `files_of`, or one that a person named. `now`: the projection of the ledger
    that is there now, if any.
    """
    known = [(path, position) for path in files if path != now and (position := _position(path, environment))]
    if not known:
        return None
    path, position = max(known, key=lambda each: each[1].updated_at or "")
    what = f"a ledger of environment {environment!r}" if environment else "a ledger"
    return (
        f"{path} has read {position.stream_sequence:,} events of {what} there, the last at {position.updated_at}, and "
        "that ledger is gone: bring it back from a back-up of the server's store, or an export with `jobledger audit restore`"
    )


def files_of(folder: Path, url: str, environment: str) -> list[Path]:
    """Return the projections of every ledger that was made at a place, the newest of them."""
    name = re.compile(rf"{re.escape(place_name(url, environment))}-{_BORN}\.db")
    found = [path for path in folder.glob("*.db") if name.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_FILES_MAX]


def _position(path: Path, environment: str) -> Position | None:
    """Return how far a projection has read, None if it has read nothing of this environment, or that cannot be read."""
    try:
        with Store.open(path) as store:
            position = store.position()
    except (ProjectionError, OSError):
        return None
    return position if position.event_hash and position.environment == environment else None
