"""The projection's file: opened by the right hands only, and replaced whole.

Beside `<path>` and SQLite's own `-wal` and `-shm` there are
- `<path>.lock`: a lock shared by everyone who is opening the file, and held alone by a process that replaces it;
- `<path>.rebuild-<pid>`: a file being made; useless once its process is gone;
- `<path>.ready`: a complete file about to become `<path>`; whoever opens `<path>` next finishes the move.

SQLite finds a `-wal` by its name alone and would replay the old file's into the new one, so both `-wal` and
`-shm` must be gone before the new file takes the name; and the old file must never be opened without its
`-wal`. Hence the lock, and `.ready`, by which the next process completes a move that a crash cut off. A process that
has the old file open keeps it, with its unlinked `-wal`, and SQLite deletes neither on closing since it sees that
the name now means another file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from jobledger.ledger.files import (
    UnfitFileError,
    make_folder,
    open_file,
    open_to_lock,
    open_to_write,
    refuse_unfit,
    rename_over,
    sync_path,
)
from jobledger.projections.errors import (
    DamagedProjectionError,
    NotAProjectionError,
    ProjectionBusyError,
    ProjectionError,
    ProjectionMissingError,
    ProjectionStorageError,
    UnfitProjectionError,
)
from jobledger.projections.layout import LEDGER, Layout
from jobledger.projections.position import SELECT_POSITION
from jobledger.projections.statistics.spread import install

Identity = tuple[int, int]  # (device, inode)

_SQLITE_HEADER: Final = b"SQLite format 3\0"
_LOGS: Final = ("-wal", "-shm")  # SQLite's own, beside the file
_LOCK_POLL_S: Final = 0.01
_PAGE_BYTES: Final = 8_192  # with 4,096 a row of a job leaves a seventh of its page empty
_WAL_PAGES_MAX: Final = 2_000  # 16 MB, then SQLite copies the log into the file
_CACHE_KIB: Final = 65_536
_BUSY_CODES: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGE_CODES: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_STORAGE_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    },
)


def is_of_the_file(error: BaseException) -> bool:
    """Return whether the file, and not the statement, caused an error of SQLite's."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return isinstance(error, sqlite3.Error) and code in {sqlite3.SQLITE_BUSY, *_STORAGE_CODES, *_DAMAGE_CODES}


@contextlib.contextmanager
def translated(path: Path, busy_timeout_s: float) -> Generator[None, None, None]:
    """Turn SQLite's errors and the system's into ours.

    Raises: ProjectionBusyError, DamagedProjectionError, UnfitProjectionError, ProjectionStorageError.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the extension bits
        if code in _BUSY_CODES:
            raise ProjectionBusyError(path, busy_timeout_s) from error
        if code in _STORAGE_CODES:
            raise ProjectionStorageError(path, error) from error
        if code in _DAMAGE_CODES or "no such" in str(error):
            raise DamagedProjectionError(path, error) from error
        raise ProjectionError(f"the projection {path} could not be used: {error}") from error
    except OverflowError as error:
        raise ProjectionError(
            f"the projection {path} cannot hold a number of more than 64 bits: {error}"
        ) from error
    except UnfitFileError as error:
        raise UnfitProjectionError(path, f"{error.filename}: {error.strerror}") from error
    except OSError as error:
        raise ProjectionStorageError(path, error.strerror or error) from error


def open_reader(path: Path, *, busy_timeout_s: float, layout: Layout = LEDGER) -> sqlite3.Connection:
    """Open an existing projection for reading only.

    Raises: ProjectionFileError, one of its kinds; ProjectionBusyError, ProjectionStorageError.
    """
    with translated(path, busy_timeout_s):
        _refuse_unfit(path, links=True)
        if not (
            path.exists() or _ready(path).exists()
        ):  # checked first, so that no lock file is made beside a missing projection
            raise ProjectionMissingError(path)
        return _open_reader(path, busy_timeout_s, layout)


def _open_reader(path: Path, busy_timeout_s: float, layout: Layout) -> sqlite3.Connection:
    with _opening(path, busy_timeout_s):
        if not path.exists():
            raise ProjectionMissingError(path)
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro",
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        install(connection)
        return _checked(connection, path, layout)


def open_writer(
    path: Path,
    environment: str,
    *,
    busy_timeout_s: float,
    layout: Layout = LEDGER,
) -> tuple[sqlite3.Connection, Identity | None]:
    """Open the projection for writing, making an empty one if there is none; return it and its `identity`.

    Raises: as `open_reader`, but never ProjectionMissingError.
    """
    with translated(path, busy_timeout_s):
        _refuse_unfit(path)
        if not _is_there(path):
            _make_first(path, environment, busy_timeout_s, layout)
        with _opening(path, busy_timeout_s):
            return _connect(path, busy_timeout_s, layout), identity(path)


def _refuse_unfit(path: Path, *, links: bool = False) -> None:
    """Refuse paths that SQLite would open and that are not regular files, such as a device. Raises: UnfitFileError."""
    refuse_unfit(path, links=links)
    for suffix in (*_LOGS, ".ready"):
        refuse_unfit(path.with_name(path.name + suffix))


def database(path: Path, *, make: bool = False) -> sqlite3.Connection:
    """Open a file of SQLite's for a writer that is alone with it; with `make` it is made, empty, and its owner's alone.

    Raises: sqlite3.Error, OSError.
    """
    if make:
        open_to_write(path, "wb").close()
    else:
        refuse_unfit(path)
    return sqlite3.connect(path, isolation_level=None)


def _connect(path: Path, busy_timeout_s: float, layout: Layout) -> sqlite3.Connection:
    # Checked before anything that writes: the file may be somebody else's.
    connection = _checked(sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None), path, layout)
    with _closed_on_error(connection):
        connection.execute("PRAGMA journal_mode = WAL")
        # No fsync per commit: after a power cut the newest commits may be missing, rows and position alike,
        # and are read from the ledger again.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES_MAX:d}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB:d}")
    return connection


def _checked(connection: sqlite3.Connection, path: Path, layout: Layout) -> sqlite3.Connection:
    with _closed_on_error(connection):
        ours = connection.execute("PRAGMA application_id").fetchone()[0] == layout.application_id
        if not ours:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise NotAProjectionError(path)
            raise DamagedProjectionError(path, "it has no tables")
        layout.check(connection, path)
        if connection.execute(SELECT_POSITION).fetchone() is None:
            raise DamagedProjectionError(path, "it has no position")
    return connection


@contextlib.contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Generator[None, None, None]:
    try:
        yield
    except BaseException:  # Ctrl-C, too: nobody else closes the connection
        connection.close()
        raise


def identity(path: Path) -> Identity | None:
    """Return an identity of the file at `path`, different for another file of that name; None when there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _is_there(path: Path) -> bool:
    return (path.exists() and path.stat().st_size > 0) or _ready(path).exists()


def _make_first(path: Path, environment: str, busy_timeout_s: float, layout: Layout) -> None:
    make_folder(path.parent)
    draft = draft_path(path)
    connection = open_draft(draft, environment, layout)
    try:
        layout.create_indexes(connection)
    finally:
        connection.close()
    seal_draft(draft)
    with _locked(path, fcntl.LOCK_EX, busy_timeout_s):
        if _is_there(path):  # another process made the file first
            draft.unlink()
        else:
            _replace(draft, path)


def draft_path(path: Path) -> Path:
    """Return where a new file for `path` is made, and remove drafts that dead processes left there."""
    prefix = f"{path.name}.rebuild-"
    for stale in path.parent.glob(f"{prefix}*"):
        owner = stale.name.removeprefix(prefix)
        if owner == str(os.getpid()) or (owner.isdecimal() and not is_alive(int(owner))):
            stale.unlink(missing_ok=True)
    return path.with_name(f"{prefix}{os.getpid()}")


def is_alive(process_id: int) -> bool:
    """Return whether a process of that id runs, or may run, on this machine."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def open_draft(draft: Path, environment: str, layout: Layout = LEDGER) -> sqlite3.Connection:
    """Make an empty projection without indexes at `draft`, for one writer and no reader: nothing survives a crash."""
    connection = database(draft, make=True)
    with _closed_on_error(connection):
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES:d}")
        connection.execute(f"PRAGMA journal_mode = {layout.draft_journal}")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB:d}")
        layout.create_tables(connection, environment)
    return connection


def seal_draft(draft: Path) -> None:
    """Make a finished draft complete in itself and safe on disk; every connection to it is closed."""
    connection = database(draft)
    try:
        # Written into the file's header now, so that nobody has to switch it under readers later. The last
        # connection to close takes the empty -wal and -shm away.
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()
    sync_path(draft)


def replace(draft: Path, path: Path, *, busy_timeout_s: float, layout: Layout = LEDGER) -> None:
    """Let a sealed draft take the place of `path`; processes that read the old file go on reading it.

    Raises: NotAProjectionError when `path` meanwhile belongs to something else; ProjectionBusyError,
        ProjectionStorageError.
    """
    with translated(path, busy_timeout_s), _locked(path, fcntl.LOCK_EX, busy_timeout_s):
        refuse_foreign(path, layout)
        _replace(draft, path)


def refuse_foreign(path: Path, layout: Layout = LEDGER) -> None:
    """Raise NotAProjectionError if `path` is another application's database, or no database and never was ours.

    Raises: also UnfitFileError if it is not a regular file.
    """
    _refuse_unfit(path)
    if not path.exists():
        return
    _refuse_never_ours(path)
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
    try:
        ours = connection.execute("PRAGMA application_id").fetchone()[0] == layout.application_id
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    except sqlite3.DatabaseError:
        return  # damaged: nobody can use it any more
    finally:
        connection.close()
    if tables and not ours:
        raise NotAProjectionError(path)


def require_beginning(path: Path, layout: Layout) -> None:
    """Raise DamagedProjectionError if something else was written over a projection that is open.

    The log is not read: its pages are not in the file yet. Only SQLite opens the file: closing it here would drop
    the locks that this process has on it.
    """
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] != layout.application_id:
            raise DamagedProjectionError(path, "something else was written over it")
    finally:
        connection.close()


def _refuse_never_ours(path: Path) -> None:
    """Raise NotAProjectionError for a file that is no database and has no lock of ours beside it.

    Whoever opens a projection leaves the lock there, so one that was damaged beyond its first bytes is still known.
    """
    if _lock(path).exists() or not path.exists():
        return
    with open_file(path) as file:
        first = file.read(len(_SQLITE_HEADER))
    if first and first != _SQLITE_HEADER:
        raise NotAProjectionError(path)


def _lock(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _ready(path: Path) -> Path:
    return path.with_name(f"{path.name}.ready")


def _replace(draft: Path, path: Path) -> None:
    rename_over(draft, _ready(path))
    sync_path(path.parent)
    _finish_replace(path)


def _finish_replace(path: Path) -> None:
    """Move `.ready` to `path`; the lock is exclusive, so no process has opened the file and not yet its -wal."""
    ready = _ready(path)
    if not ready.exists():
        return
    for suffix in _LOGS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    sync_path(path.parent)
    rename_over(ready, path)
    sync_path(path.parent)


@contextlib.contextmanager
def _opening(path: Path, busy_timeout_s: float) -> Generator[None, None, None]:
    """Hold the lock with the others who are opening the file, after finishing a replacement that crashed."""
    while True:
        with _locked(path, fcntl.LOCK_SH, busy_timeout_s):
            if not _ready(path).exists():
                yield
                return
        with _locked(path, fcntl.LOCK_EX, busy_timeout_s):
            _finish_replace(path)


@contextlib.contextmanager
def _locked(path: Path, kind: int, busy_timeout_s: float) -> Generator[None, None, None]:
    _refuse_never_ours(path)
    try:
        descriptor = open_to_lock(_lock(path))
    except (PermissionError, FileNotFoundError):
        if kind != fcntl.LOCK_SH:
            raise
        yield  # this reader may not make or open the lock: it reads without one
        return
    try:
        with contextlib.suppress(OSError):  # the lock file may be another user's
            # The lock's time says when the file was last used: SQLite leaves no trace of a reader.
            os.utime(descriptor)
        _wait_for_lock(descriptor, kind, path, busy_timeout_s)
        yield
    finally:
        os.close(descriptor)  # closing it releases the lock


def held_alone(path: Path, busy_timeout_s: float) -> AbstractContextManager[None]:
    """Keep everybody else from opening the file for the length of a block. Raises: ProjectionBusyError, OSError."""
    return _locked(path, fcntl.LOCK_EX, busy_timeout_s)


def _wait_for_lock(descriptor: int, kind: int, path: Path, busy_timeout_s: float) -> None:
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ProjectionBusyError(path, busy_timeout_s) from None
            time.sleep(_LOCK_POLL_S)
        else:
            return
