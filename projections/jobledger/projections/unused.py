"""Projections that nobody used for long: found by their names and times, and removed with all their files.

Only files whose names jobledger made from a ledger are found, never one that a person named. Each is disposable: a
process that needs it reads the ledger again, if that still exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from jobledger.projections import files
from jobledger.projections.snapshots import Snapshots

UNUSED_DAYS: Final = 30
_BUSY_S: Final = 0.5
#: `<server>-<environment>-<ledger>.db`, for a read model with its name, and the files beside it.
_NAME: Final = re.compile(
    r"(?P<file>.+-[0-9a-f]{12}(?:-\w+|\.v\d+)?\.db)(?:-wal|-shm|\.lock|\.ready|\.rebuild-\d+|\.snapshots)?"
)


class UnusedProjection(msgspec.Struct, frozen=True, kw_only=True):
    """A projection that nobody has opened since."""

    file: Path
    used_at: datetime  #: time of the last use by this machine's clock, UTC
    size_bytes: int  #: size with all files beside it


def find_unused(folders: list[Path], before: datetime) -> list[UnusedProjection]:
    """Return the projections in these folders that were last used before a time, the largest first. Raises: OSError."""
    found = [each for folder in folders if folder.is_dir() for each in _in(folder) if each.used_at < before]
    return sorted(found, key=lambda each: (-each.size_bytes, each.file.name))


def _in(folder: Path) -> Iterator[UnusedProjection]:
    members: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        name = _NAME.fullmatch(path.name)
        if name is not None:
            members.setdefault(name["file"], []).append(path)
    for file, paths in members.items():
        sizes, times = zip(*map(_size_and_time, paths), strict=True)
        used_at = datetime.fromtimestamp(max(times), UTC)
        yield UnusedProjection(file=folder / file, used_at=used_at, size_bytes=sum(sizes))


def _size_and_time(path: Path) -> tuple[int, float]:
    if path.is_dir():
        return sum(each.size_bytes for each in Snapshots(path.with_suffix("")).found()), 0.0
    status = path.lstat()
    return status.st_size, status.st_mtime


def remove(file: Path) -> None:
    """Remove a projection with all files beside it; a process that has it open notices that, and makes it again.

    Raises: ProjectionBusyError if a process is just opening it; ProjectionStorageError.
    """
    with files.translated(file, _BUSY_S), files.held_alone(file, _BUSY_S):
        Snapshots(file).clear()
        for path in file.parent.iterdir():
            name = _NAME.fullmatch(path.name)
            if name is not None and name["file"] == file.name and not path.is_dir():
                path.unlink(missing_ok=True)
