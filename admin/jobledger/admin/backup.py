"""Back-ups of an environment: a snapshot of each stream in a folder of its own, `backup.json` last.

Some streams are taken before the ledger, some after it, so that the restored ones agree with the ledger; see
`docs/adr/061-back-up-by-snapshots.md`. How a back-up is brought back is in `restore`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import anyio.to_thread
import msgspec

from jobledger.audit.seals.seals import Seal, newest_seal
from jobledger.ledger import Ledger
from jobledger.ledger.files import (
    make_folder,
    open_file,
    open_to_lock,
    open_to_write,
    rename_over,
    sync_file,
    sync_path,
    write_whole,
)
from jobledger.ledger.model.errors import CorruptLedgerError, LedgerError, NotFoundError, RefusedError
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.model.version import VERSION
from jobledger.ledger.nats.durables import list_consumers
from jobledger.ledger.nats.infos import StreamInfo
from jobledger.ledger.nats.snapshots import write_snapshot
from jobledger.ledger.nats.streams import find_stream

FORM: Final = 1  #: version of `backup.json`; it changes when a field changes its meaning
BACKUP_FILE: Final = "backup.json"
_BYTES_MAX: Final = 16 << 20
_BLOCK_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z", flags=re.ASCII)
_LOCK: Final = ".lock"
_SECOND_NS: Final = 1_000_000_000


class StreamFile(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's snapshot in a back-up."""

    stream: str
    file: str  #: its name in the folder of the back-up
    bytes: int
    sha256: str  #: digest of the file, in hex
    messages: int
    config: dict[str, Any]  #: the stream's settings, as the server told them
    state: dict[str, Any]  #: the least that it held, as the server told it


class ConsumerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A durable consumer, and up to where its deliveries were settled before the back-up began."""

    stream: str
    settled: int  #: stream sequence
    config: dict[str, Any]


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """The facts in `backup.json`."""

    form: int
    environment: str
    jobledger: str  #: the release that wrote it
    at: datetime  #: when it was begun, by the ledger's clock
    through: int  #: the ledger's last stream sequence: a few later events may be in it as well
    head_hash: str  #: hex sha256 of the event there, "" when there was none
    lease_s: float  #: how long the lease of a worker is
    streams: tuple[StreamFile, ...]  #: the ledger first
    consumers: tuple[ConsumerPlace, ...]
    seal: Seal | None = None  #: the ledger's newest seal

    @property
    def bytes(self) -> int:
        """How large its files are."""
        return sum(each.bytes for each in self.streams)


class TakenBackup(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of `backup` did."""

    folder: str
    backup: Backup
    unfinished: tuple[str, ...]  #: earlier back-ups that were not finished, and are removed
    removed: tuple[str, ...]  #: the oldest finished back-ups, removed since there were more than `keep`


async def back_up(
    ledger: Ledger,
    folder: Path,
    *,
    keep: int | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> TakenBackup:
    """Write a back-up of an environment into `folder`, in a new folder named after the time; meanwhile work goes on.

    Files of interrupted runs are removed first; of more than `keep` finished back-ups of this environment the oldest
    are removed. Links and the back-up that was just written are never removed.

    Raises: RefusedError if another run writes into the folder; LedgerError, UnreachableError, OSError.
    """
    make_folder(folder, on_the_disk=True)
    with _locked(folder):
        unfinished = tuple(each.name for each in _own_entries(folder) if not is_finished(each))
        for name in unfinished:
            _remove(folder / name)
        at = ledger.clock.now()
        place = folder / f"{at:%Y%m%dT%H%M%S}.{at.microsecond // 1000:03}Z"
        make_folder(place, on_the_disk=True)
        backup = await _written(ledger, place, at, on_progress)
        write_whole(place / BACKUP_FILE, msgspec.json.format(msgspec.json.encode(backup), indent=1))
        removed = () if keep is None else tuple(_too_many(folder, place, ledger.names.environment, keep))
        for name in removed:
            _remove(folder / name)
    return TakenBackup(folder=str(place), backup=backup, unfinished=unfinished, removed=removed)


def is_finished(folder: Path) -> bool:
    """Return whether a folder holds a finished back-up."""
    return (folder / BACKUP_FILE).is_file()


def _entries(folder: Path) -> list[Path]:
    """Return the back-ups in a folder, the oldest first, finished or not."""
    return sorted(each for each in folder.iterdir() if _NAME.fullmatch(each.name) and each.is_dir())


def _own_entries(folder: Path) -> list[Path]:
    """Return the back-ups that lie in a folder itself: those behind a link belong to somebody else."""
    return [each for each in _entries(folder) if not each.is_symlink()]


def _too_many(folder: Path, newest: Path, environment: str, keep: int) -> list[str]:
    """Return the names of finished back-ups of an environment beyond `keep`, the oldest; never of the newest one.

    One that cannot be read stays: nobody knows whose it is.
    """
    found: list[str] = []
    for each in _own_entries(folder):
        with contextlib.suppress(LedgerError):
            if each != newest and is_finished(each) and read_backup(each).environment == environment:
                found.append(each.name)
    return found[: max(0, len(found) + 1 - keep)]


def _remove(place: Path) -> None:
    """Remove a back-up; during the removal, and if it is interrupted, the back-up counts as unfinished."""
    (place / BACKUP_FILE).unlink(missing_ok=True)
    sync_path(place)
    shutil.rmtree(place)


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Keep other runs out of a folder for the length of the block. Raises: RefusedError, OSError."""
    descriptor = open_to_lock(folder / _LOCK)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(f"another back-up is being written into {folder}: wait for its end") from error
        yield
    finally:
        os.close(descriptor)


async def _written(
    ledger: Ledger, place: Path, at: datetime, on_progress: Callable[[int, int], None]
) -> Backup:
    inbox, names = ledger.inbox, ledger.names
    order = _order(names)
    infos = {stream: await find_stream(inbox, stream) for stream in order}
    found = {stream: info for stream, info in infos.items() if info is not None}
    consumers = [each for stream in found for each in await _places(ledger, stream, found[stream])]
    total, done = sum(info.state.bytes for info in found.values()), 0
    seal: Seal | None = None
    files: list[StreamFile] = []
    through, head_hash = 0, ""
    for stream, info in found.items():
        on_progress(done, total)
        if stream == names.ledger_stream:
            seal = await newest_seal(ledger.log)
        files.append(await _file_of(ledger, place, stream))
        if stream == names.ledger_stream:
            through = int(files[-1].state.get("last_seq", 0))
            head = await ledger.log.get(through) if through else None
            head_hash = "" if head is None else head.hash
        done += info.state.bytes
    leases = await find_stream(inbox, f"KV_{names.workers_bucket}")
    return Backup(
        form=FORM,
        environment=names.environment,
        jobledger=VERSION,
        at=at.astimezone(UTC),
        through=through,
        head_hash=head_hash,
        lease_s=ledger.config.lease_s if leases is None else leases.config["max_age"] / _SECOND_NS,
        streams=tuple(sorted(files, key=lambda each: each.stream != names.ledger_stream)),
        consumers=tuple(consumers),
        seal=seal,
    )


def _order(names: Names) -> Sequence[str]:
    """Return the streams of a back-up in the order in which they are taken: never the leases, the floors of lanes nor the keys of owners.

    Those that follow from the ledger go first: a timer that has left its stream by then has its event in the ledger,
    and one that is not in it yet is set again, since the consumers begin where they were before all snapshots. Stores
    of values come after the ledger, since each value is stored before the event that names it.
    """
    before = (names.timers_stream, names.advisories_stream, names.dlq_stream)
    # Keys of owners have files of their own: else a destroyed key would be in every older back-up, beside the values
    # that it seals.
    buckets = (names.workers_bucket, names.lanes_bucket, names.keys_bucket)
    left_out = (*before, names.ledger_stream, *(f"KV_{each}" for each in buckets))
    return (*before, names.ledger_stream, *(each for each in names.streams if each not in left_out))


async def _places(ledger: Ledger, stream: str, info: StreamInfo) -> list[ConsumerPlace]:
    """Return the durable consumers of a stream. One of a work queue needs no place: what is settled is gone there."""
    if info.config.get("retention") != "limits":
        return []
    return [
        ConsumerPlace(stream=stream, settled=each.ack_floor.stream_sequence, config=each.config)
        for each in await list_consumers(ledger.inbox, stream)
        if each.is_durable
    ]


class _HashedFile:
    """A file that knows what was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.sha256.update(data)
        self.size += len(data)


async def _file_of(ledger: Ledger, place: Path, stream: str) -> StreamFile:
    """Write the snapshot of a stream; the file gets its name once it is on the disk."""
    path = place / f"{stream}.snapshot"
    draft = place / f".{path.name}"
    with open_to_write(draft, "xb") as file:
        hashed = _HashedFile(file)
        taken = await write_snapshot(ledger.inbox, stream, hashed.write)
        await anyio.to_thread.run_sync(sync_file, file)
    rename_over(draft, path)
    sync_path(place)
    return StreamFile(
        stream=stream,
        file=path.name,
        bytes=hashed.size,
        sha256=hashed.sha256.hexdigest(),
        messages=int(taken.state.get("messages", 0)),
        config=taken.config,
        state=taken.state,
    )


# Reading a back-up.


class BackupDamagedError(CorruptLedgerError):
    """A file of a back-up is not what was written: restore another back-up."""


def find_backup(folder: Path) -> Path:
    """Return the folder of a back-up: this one, or the newest finished one in it.

    Raises: NotFoundError if there is no such folder; RefusedError if it holds none that is finished.
    """
    if is_finished(folder):
        return folder
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}")
    finished = [each for each in _entries(folder) if is_finished(each)]
    if finished:
        return finished[-1]
    raise RefusedError(
        f"{folder} is no back-up, or was not finished: it has no {BACKUP_FILE}; name a folder that "
        "`jobledger backup` finished"
    )


class _Form(msgspec.Struct):
    form: int = 0


def read_backup(folder: Path) -> Backup:
    """Return the facts in a back-up's `backup.json`; its other files are not read.

    Raises: RefusedError for one in the form of a newer release; BackupDamagedError; OSError.
    """
    path = folder / BACKUP_FILE
    with open_file(path, bytes_max=_BYTES_MAX) as file:
        data = file.read()
    try:
        form = msgspec.json.decode(data, type=_Form).form
        if form > FORM:
            raise RefusedError(
                f"{path} has form {form}, and this release reads up to {FORM}: restore it with a newer jobledger"
            )
        backup = msgspec.json.decode(data, type=Backup)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BackupDamagedError(f"{path} is damaged: {error}") from error
    expected = set(Names(backup.environment).streams)
    for each in backup.streams:
        if each.stream not in expected or Path(each.file).name != each.file:
            raise BackupDamagedError(f"{path} is damaged: it names a stream {each.stream!a} in {each.file!a}")
    if not backup.streams or backup.streams[0].stream != Names(backup.environment).ledger_stream:
        raise BackupDamagedError(f"{path} is damaged: it names no ledger")
    return backup


def check_files(folder: Path, backup: Backup) -> None:
    """Prove that each file of a back-up is as it was written. Raises: BackupDamagedError, OSError."""
    for each in backup.streams:
        digest, path = hashlib.sha256(), folder / each.file
        try:
            with open_file(path) as file:
                while data := file.read(_BLOCK_BYTES):
                    digest.update(data)
        except FileNotFoundError as error:
            raise BackupDamagedError(f"{path} is missing: restore another back-up") from error
        if digest.hexdigest() != each.sha256:
            raise BackupDamagedError(
                f"{path} is damaged: its sha256 is not the one in {BACKUP_FILE}; restore another back-up"
            )
