"""Files with the projection of past moments, in a folder of their own: the next file begins from a near one.

Nothing of the present projection is changed, and nothing here is needed: every file can be made from the ledger.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final, NamedTuple

import anyio.to_thread

from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.log import Log
from jobledger.projections import files
from jobledger.projections.errors import (
    MomentAheadError,
    NotAProjectionError,
    PositionMismatchError,
    ProjectionError,
    ProjectionFileError,
)
from jobledger.projections.projector import Position, ProgressCallback, Projector, ProjectorConfig
from jobledger.projections.queries.store import Store
from jobledger.projections.snapshots import Snapshot, Snapshots, copy_projection

_BUSY_TIMEOUT_S: Final = 5.0
#: A snapshot is made `SnapshotConfig.every_events` divided by this number of events before a requested moment.
_NEAR_PARTS: Final = 5


class PastFiles:
    """The files of a few past moments in one folder, made by one task; a reader borrows a file while it reads.

    `path` is the present projection, whose snapshots are used and added to; it need not exist.
    """

    def __init__(
        self,
        log: Log,
        path: Path,
        folder: Path,
        *,
        snapshots: Snapshots,
        kept_max: int = 1,
        config: ProjectorConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._log = log
        self._path = path
        self._folder = folder
        self._snapshots = snapshots
        self._kept_max = kept_max
        self._config = config
        self._clock = clock
        self._kept: dict[int, Path] = {}  # by stream sequence, ordered by the last request
        self._lent: dict[Path, int] = {}
        self._made = 0

    async def lend(self, stream_sequence: int, progress: ProgressCallback | None = None) -> Path:
        """Return a file with the rows as the ledger's first `stream_sequence` events make them; `give_back` it.

        `refuse_archived` must accept the moment. Of the kept files, the one requested longest ago is removed, even
        while it is lent: a reader that has it open can still read it.

        Raises: MomentAheadError, ProjectionError in its other kinds, and what `Log.read` raises.
        """
        path, begun = await self._begun(stream_sequence)
        try:
            await self._bring_to(path, begun, stream_sequence, progress)
        except BaseException:  # cancelled, too: a file that is filled half-way shows no moment
            _remove(path)
            raise
        self._kept[stream_sequence] = path
        self._lent[path] = self._lent.get(path, 0) + 1
        while len(self._kept) > self._kept_max:
            _remove(self._kept.pop(next(iter(self._kept))))
        return path

    def give_back(self, path: Path) -> None:
        """Note that a file is not read any more."""
        left = self._lent.pop(path, 1) - 1
        if left > 0:
            self._lent[path] = left

    async def _bring_to(self, path: Path, begun: int, until: int, progress: ProgressCallback | None) -> None:
        """Bring a file from `begun` to a moment; over a long distance, make a snapshot shortly before the moment.

        A person who searches for a change will next ask for moments shortly before this one, which then begin at that
        snapshot.
        """
        every, snapshots = self._snapshots.config.every_events, self._snapshots
        near = until - every // _NEAR_PARTS
        config, clock = self._config, self._clock
        with Projector(self._log, path, config=config, clock=clock, snapshots=snapshots) as projector:
            done = 0
            if until - begun >= every:
                found = await projector.catch_up(until=near, progress=_part(progress, 0, until - begun))
                done = found.stream_sequence - begun
                await snapshots.complete(path, found.stream_sequence)
            position = await projector.catch_up(until=until, progress=_part(progress, done, until - begun))
        if position.stream_sequence != until:
            sentence = (
                f"stream sequence {until} is still to come: the ledger ends at {position.stream_sequence}"
            )
            raise MomentAheadError(sentence)

    async def _begun(self, until: int) -> tuple[Path, int]:
        """Return a file to continue and its position: the nearest one before the moment, otherwise a new one."""
        begins_at = (await self._log.head()).first_sequence
        near = max((each for each in self._kept if each <= until), default=-1)
        found = await anyio.to_thread.run_sync(_beginnings, self._path, self._snapshots, until, begins_at)
        if near >= 0 and (not found or found[0].stream_sequence <= near):
            kept = await self._from_kept(near, until, begins_at)
            if kept is not None:
                return kept, near
        for beginning in found:
            private = self._new()
            position = await self._taken(beginning.snapshot, private)
            if position is not None and position.stream_sequence <= until:
                return private, position.stream_sequence
            _remove(private)
        return self._new(), 0

    async def _from_kept(self, near: int, until: int, begins_at: int) -> Path | None:
        """Return the file of the moment `near` if nobody else needs it unchanged, otherwise a copy.

        None if the ledger no longer has the events in it.
        """
        path = self._kept.pop(near)
        try:
            position = await self._proven(path)
        except (ProjectionError, sqlite3.Error):
            position = None
        if position is None or (position.stream_sequence, position.begins_at) != (near, begins_at):
            _remove(path)
            return None
        if near == until or (path not in self._lent and len(self._kept) + 1 >= self._kept_max):
            return path
        self._kept[near] = path
        copy = self._new()
        await anyio.to_thread.run_sync(copy_projection, path, copy)
        return copy

    async def _taken(self, snapshot: Snapshot | None, private: Path) -> Position | None:
        """Copy a snapshot, or for None the present projection; return its position, None if it cannot be used."""
        try:
            if snapshot is None:
                taken = await anyio.to_thread.run_sync(_take_present, self._path, private)
            else:
                taken = await anyio.to_thread.run_sync(self._snapshots.take, snapshot, private)
            return await self._proven(private) if taken else None
        except (ProjectionError, sqlite3.Error) as error:
            if snapshot is not None and isinstance(error, ProjectionFileError | PositionMismatchError):
                self._snapshots.remove(snapshot, error)
            return None

    async def _proven(self, private: Path) -> Position:
        """Return the position of a file, after checking that it has this version's tables and shares the ledger's past.

        Raises: ProjectionFileError, PositionMismatchError.
        """
        # A projector would rebuild an older schema by itself, up to the head.
        files.open_reader(private, busy_timeout_s=_BUSY_TIMEOUT_S).close()
        with Projector(self._log, private) as projector:
            return await projector.prepare()

    def _new(self) -> Path:
        self._made += 1
        return self._folder / f"{self._made}.db"


def _part(progress: ProgressCallback | None, before: int, wanted: int) -> ProgressCallback | None:
    """Return a callback for one part of the work that reports it as progress of the whole."""
    return None if progress is None else lambda done, _: progress(before + done, wanted)


class _Start(NamedTuple):
    stream_sequence: int
    snapshot: Snapshot | None  #: None: the present projection itself


def _beginnings(path: Path, kept: Snapshots, until: int, begins_at: int) -> list[_Start]:
    """Return the starting points for a past moment, the nearest first: snapshots, and the projection if it is nearer.

    A file that begins before the ledger has jobs that the ledger no longer has, so its answers would differ.

    Raises: NotAProjectionError for the file of another application.
    """
    found = [each for each in kept.found() if each.stream_sequence <= until]
    snapshots = [_Start(each.stream_sequence, each) for each in found if each.begins_at == begins_at]
    for each in found:
        if each.begins_at != begins_at:
            kept.remove(each, "an archive took away what it begins with")
    nearest = snapshots[0].stream_sequence if snapshots else 0
    try:
        with Store.open(path) as store:
            position = store.position()
            stands_at = position.stream_sequence if position.begins_at == begins_at else 0
    except NotAProjectionError:
        raise
    except ProjectionError:  # missing, damaged, of another version, locked: here it is only a shortcut
        stands_at = 0
    return [_Start(stands_at, None), *snapshots] if nearest < stands_at <= until else snapshots


def _take_present(path: Path, private: Path) -> bool:
    return copy_projection(path, private)[0] > 0


def _remove(path: Path) -> None:
    """Remove a file and the files beside it: SQLite's logs, a lock."""
    for each in path.parent.glob(f"{path.name}*"):
        with contextlib.suppress(OSError):
            each.unlink(missing_ok=True)
