"""Copies of the projection from earlier moments, so that a past state need not be folded from the first event.

They lie in `<path>.snapshots/` as `<stream sequence>-<its beginning>-<checksum>.db`, beside drafts
(`draft-<pid>-...`) that are of no use once their process is gone. None is ever needed: without one `as_of` is only
slower. So a process that finds a stale or damaged one removes it, a copy that fails is given up with a line in the log,
and several processes need no lock: each copy is made under a name of its own, and gets its final name when it is
complete.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from jobledger.ledger.files import make_folder, open_file, open_to_write, rename_over, sync_path
from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.projections import files
from jobledger.projections.errors import ProjectionConfigError, ProjectionError

_log: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{8})\.db")
_DRAFT: Final = re.compile(r"draft-(\d+)-.*")
_BLOCK_BYTES: Final = 1 << 20
#: The expected speed of a copy until one was measured.
_BYTES_PER_S: Final = 300e6
_BUSY_TIMEOUT_S: Final = 5.0
_SELECT_PLACE: Final = "SELECT stream_sequence, begins_at FROM position WHERE id = 1"


class SnapshotConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How often snapshots are made, and how many are kept."""

    #: Least number of events between two snapshots, and so the most events to read for a past moment.
    every_events: int = 25_000
    time_share_max: float = 0.03  #: part of the projector's time that copying may take
    at_once_s: float = 2.0  #: time that copying may take in a burst of events, before any share has added up
    count_max: int = 16  #: most snapshots that are kept; older ones are further apart
    #: Part of the disk's free room that one copy may take. All copies together may take this part of the free room and
    #: their own. So snapshots never fill the disk.
    free_share_max: float = 0.25

    def __post_init__(self) -> None:
        """Check each option.

        Raises: ProjectionConfigError.
        """
        for name in ("every_events", "time_share_max", "at_once_s", "count_max", "free_share_max"):
            if getattr(self, name) <= 0:
                raise ProjectionConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.free_share_max > 1:
            raise ProjectionConfigError(f"free_share_max must be at most 1, got {self.free_share_max}")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One copy, as described by its name."""

    path: Path
    stream_sequence: int
    begins_at: int  #: the first sequence in its rows, as in `Position`
    checksum: int  #: CRC-32 of the file
    size_bytes: int


class Snapshots:
    """The snapshots of one projection; each projector has an object of its own, which counts its time."""

    def __init__(
        self, path: Path | str, *, config: SnapshotConfig | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.folder = Path(f"{path}.snapshots")
        self.config = config or SnapshotConfig()
        self._clock = clock
        self._bytes_per_s = _BYTES_PER_S
        self._since_s = clock.monotonic()
        self._spared_s = self.config.at_once_s  # the spare time at `_since_s`
        self._next = 0  # no snapshot is due before this stream sequence

    def found(self) -> list[Snapshot]:
        """Return the existing snapshots, the newest moment first."""
        return sorted(self._listed(), key=lambda each: each.stream_sequence, reverse=True)

    def _listed(self) -> Iterator[Snapshot]:
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                name = _NAME.fullmatch(entry.name)
                if name is not None:
                    with contextlib.suppress(FileNotFoundError):  # another process removed it
                        size = entry.stat().st_size
                        yield Snapshot(
                            path=Path(entry.path),
                            stream_sequence=int(name[1]),
                            begins_at=int(name[2]),
                            checksum=int(name[3], 16),
                            size_bytes=size,
                        )

    async def consider(self, path: Path, stream_sequence: int) -> None:
        """Copy the projection at `path`, whose position is this sequence, if enough events and time went by.

        Call it after a commit. It does not block the event loop and raises nothing: a failed copy is logged.
        """
        if stream_sequence >= self._next and self._can_afford(path):
            await self.complete(path, stream_sequence)

    async def complete(self, path: Path, stream_sequence: int) -> None:
        """Copy the projection at `path`, whose position is this sequence, unless an older snapshot is near enough."""
        below = (each.stream_sequence for each in self._listed() if each.stream_sequence <= stream_sequence)
        self._next = max(below, default=0) + self.config.every_events
        if stream_sequence >= self._next:
            self._next = stream_sequence + self.config.every_events
            await self.keep(path)

    def _can_afford(self, path: Path) -> bool:
        """Return whether there is time for a copy now.

        Unused time is saved, up to the time of one copy, so that a burst of events after a quiet time gets a copy.
        """
        now_s = self._clock.monotonic()
        needed_s = _size_bytes(path) / self._bytes_per_s
        spared_s = self._spared_s + (now_s - self._since_s) * self.config.time_share_max
        self._since_s, self._spared_s = now_s, min(spared_s, max(self.config.at_once_s, needed_s))
        return self._spared_s >= needed_s

    async def keep(self, path: Path) -> None:
        """Copy the projection at `path` as it is now; nothing is raised."""
        began_s = self._clock.monotonic()
        try:
            copied = await anyio.to_thread.run_sync(self._copy, path)
        except (ProjectionError, sqlite3.Error, OSError) as error:
            _log.warning("no snapshot of the projection was made in %s: %s", self.folder, error)
        else:
            took_s = self._clock.monotonic() - began_s
            self._spared_s = max(0.0, self._spared_s - took_s)
            if copied:
                self._bytes_per_s = copied / max(took_s, 1e-3)

    def _copy(self, path: Path) -> int:
        """Make a snapshot of the file at `path`, and return its size; 0 if it would take too much room."""
        size = _size_bytes(path)
        make_folder(self.folder)
        self._remove_drafts_of_the_dead()
        self._thin()  # first, since others may have filled the disk meanwhile
        if size > self.config.free_share_max * shutil.disk_usage(self.folder).free:
            return 0
        descriptor, name = tempfile.mkstemp(prefix=f"draft-{os.getpid()}-", suffix=".db", dir=self.folder)
        os.close(descriptor)
        draft = Path(name)
        try:
            stream_sequence, begins_at = copy_projection(path, draft)
            checksum = _checksum(draft)
            sync_path(draft)
            rename_over(draft, self.folder / f"{stream_sequence:020}-{begins_at:020}-{checksum:08x}.db")
        finally:
            for leftover in (name, f"{name}-wal", f"{name}-shm", f"{name}-journal"):
                Path(leftover).unlink(missing_ok=True)
        sync_path(self.folder)
        self._thin()
        return size

    def _thin(self) -> None:
        """Remove snapshots beyond the bounds."""
        found = list(self._listed())
        room = shutil.disk_usage(self.folder).free + sum(each.size_bytes for each in found)
        bytes_max = int(self.config.free_share_max * room)
        for each in superfluous(found, count_max=self.config.count_max, bytes_max=bytes_max):
            each.path.unlink(missing_ok=True)

    def _remove_drafts_of_the_dead(self) -> None:
        for each in self.folder.glob("draft-*"):
            owner = _DRAFT.fullmatch(each.name)
            if owner is not None and not files.is_alive(int(owner[1])):
                each.unlink(missing_ok=True)

    def take(self, snapshot: Snapshot, target: Path) -> bool:
        """Copy a snapshot to `target`; False if it is gone or cannot be read, or is damaged and so removed."""
        checksum = 0
        with contextlib.ExitStack() as opened:
            try:
                source = opened.enter_context(open_file(snapshot.path))
            except OSError:
                return False
            copy = opened.enter_context(open_to_write(target, "wb"))
            while block := source.read(_BLOCK_BYTES):
                checksum = zlib.crc32(block, checksum)
                copy.write(block)
        if checksum != snapshot.checksum:
            self.remove(snapshot, "it is damaged")
            return False
        return True

    def remove(self, snapshot: Snapshot, why: object) -> None:
        """Remove a snapshot that cannot be used."""
        _log.warning("snapshot %s is removed: %s", snapshot.path, why)
        with contextlib.suppress(OSError):
            snapshot.path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove every snapshot, and copies under way, because their source file is no longer used."""
        with contextlib.suppress(OSError):
            for draft in self.folder.glob("draft-*"):
                draft.unlink(missing_ok=True)  # the process that makes it notices this, and gives up
        for each in self._listed():
            with contextlib.suppress(OSError):
                each.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def copy_projection(path: Path, target: Path) -> tuple[int, int]:
    """Copy a projection that others may be writing to, as of one moment; return its position and its first sequence.

    Raises: ProjectionError of its file, sqlite3.Error, OSError.
    """
    with (
        contextlib.closing(files.open_reader(path, busy_timeout_s=_BUSY_TIMEOUT_S)) as source,
        contextlib.closing(files.database(target, make=True)) as copy,
    ):
        copy.execute("PRAGMA synchronous = OFF")  # a caller that needs it syncs the whole file
        # All pages in one step, as one read transaction: no writer waits, and the copy never starts again.
        source.backup(copy)
        stream_sequence, begins_at = copy.execute(_SELECT_PLACE).fetchone()
        return int(stream_sequence), int(begins_at)


def superfluous(snapshots: Iterable[Snapshot], *, count_max: int, bytes_max: int) -> list[Snapshot]:
    """Return the snapshots to remove to keep within bounds: duplicates of one moment, then those closest to others.

    Closeness is relative to the age: the gap that a removal would leave, divided by the distance to the newest.
    """
    kept: list[Snapshot] = []
    gone: list[Snapshot] = []
    for each in sorted(snapshots, key=lambda one: (one.stream_sequence, one.path.name)):
        same = bool(kept) and kept[-1].stream_sequence == each.stream_sequence
        (gone if same else kept).append(each)
    while len(kept) > count_max or sum(each.size_bytes for each in kept) > bytes_max:
        gone.append(kept.pop(_least_missed([each.stream_sequence for each in kept])))
    return gone


def _least_missed(sequences: list[int]) -> int:
    """Return the index of the sequence whose removal leaves the smallest gap for its age; the newest goes last."""
    newest = sequences[-1]

    def gap(place: int) -> float:
        before = sequences[place - 1] if place else 0
        return (sequences[place + 1] - before) / (newest - before)

    return min(range(len(sequences) - 1), key=gap, default=0)


def _checksum(path: Path) -> int:
    checksum = 0
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _size_bytes(path: Path) -> int:
    """Return the size of a database with its write-ahead log; 0 if it is gone."""
    size = 0
    for each in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(OSError):
            size += each.stat().st_size
    return size
