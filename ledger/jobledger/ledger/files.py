"""Functions that open and create files: the product opens every file here, or checks it here first.

Only regular files, and without waiting: a device has no end, and the other end of a pipe may never come. No symlink is
followed to a file to be written: in a folder of other users it could lead anywhere. Only the owner can read a new
file, whatever the umask is, since it may hold inputs of jobs. The check is made on the open file (`fstat`), so that
nobody can replace it between check and use. This module is below all others, so that each may use it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
import stat
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO, BinaryIO, Final, Literal

from jobledger.ledger.model.errors import NoDataFolderError, UnsafeFolderError

__all__ = [
    "UnfitFileError",
    "data_folder",
    "make_folder",
    "need_own_folder",
    "open_file",
    "open_to_lock",
    "open_to_write",
    "refuse_unfit",
    "rename_over",
    "sync_file",
    "sync_path",
    "write_once",
    "write_whole",
]

_FILE: Final = 0o600
_FOLDER: Final = 0o700
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link, which is not followed to a file that is written"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
#: x: make it, and refuse an existing file; w: empty it; a: append to it; r+: it must exist.
Writing = Literal["xb", "wb", "ab", "ab+", "rb+"]


class UnfitFileError(OSError):
    """The name belongs to no regular file, or to a link to one that would be written; it was not touched."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))


def open_file(path: Path, *, bytes_max: int | None = None, buffer_bytes: int = 128 << 10) -> BinaryIO:
    """Open a file to be read.

    Raises: UnfitFileError; OSError, also for a file that is larger than `bytes_max`.
    """
    file = open(path, "rb", buffering=buffer_bytes, opener=_opened)  # noqa: SIM115 - the caller's to close
    size = os.fstat(file.fileno()).st_size
    if bytes_max is not None and size > bytes_max:
        file.close()
        why = f"it has {size:,} bytes, more than the {bytes_max:,} there can be"
        raise OSError(errno.EFBIG, why, str(path))
    return file


def open_to_write(
    path: Path, mode: Writing, *, permissions: int = _FILE, buffer_bytes: int = -1
) -> IO[bytes]:
    """Open a file to be written; a new file gets these permissions, an existing one keeps its own.

    Raises: UnfitFileError; FileExistsError with "xb"; OSError.
    """
    opener = functools.partial(_opened_to_write, permissions)
    file = open(path, mode, buffering=buffer_bytes, opener=opener)  # noqa: SIM115 - the caller's to close
    if mode == "wb":
        file.truncate(0)  # only now it is known that this is a regular file
    return file


def open_to_lock(path: Path) -> int:
    """Return a descriptor of a file that is only used as a lock; a missing file is created.

    Raises: UnfitFileError, OSError.
    """
    return _opened_to_write(_FILE, str(path), os.O_RDWR | os.O_CREAT)


def open_folder(folder: Path) -> int:
    """Return a descriptor of an existing folder, for a lock on it. Raises: OSError."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _opened_to_write(permissions: int, path: str, flags: int) -> int:
    return _opened(path, (flags & ~os.O_TRUNC) | os.O_NOFOLLOW, permissions)


def _opened(path: str, flags: int, permissions: int = _FILE) -> int:
    try:
        made = _made(path, flags, permissions)
        descriptor = (
            os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, permissions) if made is None else made
        )
    except OSError as error:
        refuse_unfit(Path(path), links=not flags & os.O_NOFOLLOW)  # its error tells more than the system's
        raise OSError(error.errno, error.strerror, path) from error
    try:
        _refuse_kind(Path(path), os.fstat(descriptor).st_mode)
    except BaseException:  # Ctrl-C, too: nobody else closes it
        os.close(descriptor)
        raise
    return descriptor


def _made(path: str, flags: int, permissions: int) -> int | None:
    """Create the file if wanted, with these permissions whatever the umask is; return None if it exists."""
    if not flags & os.O_CREAT:
        return None
    try:
        descriptor = os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, permissions)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return None
    os.fchmod(descriptor, permissions)
    return descriptor


def refuse_unfit(path: Path, *, links: bool = False) -> None:
    """Refuse a path that is no regular file, before other code opens or replaces it, as SQLite does. A missing file is fit.

    `links`: a link to a regular file is fit, too. Raises: UnfitFileError, OSError.
    """
    if not path.name:
        raise UnfitFileError(path, "it is a folder: name a file in it")
    with contextlib.suppress(FileNotFoundError):
        _refuse_kind(path, (path.stat() if links else path.lstat()).st_mode)


def _refuse_kind(path: Path, mode: int) -> None:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), None)
    if kind is not None:
        raise UnfitFileError(path, f"it is {kind}: name a regular file")


def rename_over(draft: Path, path: Path) -> None:
    """Rename a finished file to its name, which a regular file or nothing has.

    Raises: UnfitFileError, OSError.
    """
    refuse_unfit(path)
    draft.replace(path)


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to a file: a regular file of that name is replaced whole, or not at all. It is then on the disk.

    Raises: UnfitFileError, OSError.
    """
    refuse_unfit(path)
    with _draft(path, data) as draft:
        rename_over(draft, path)
    sync_path(path.parent)


def write_once(path: Path, data: bytes) -> None:
    """Write `data` to a file, unless one of that name exists: a reader finds the whole data of the first writer.

    Raises: OSError.
    """
    with _draft(path, data) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, path)
    sync_path(path.parent)


@contextlib.contextmanager
def _draft(path: Path, data: bytes) -> Generator[Path, None, None]:
    """Yield a file beside `path` with `data`, which is on the disk; at the end of the block its name is removed."""
    import secrets  # noqa: PLC0415 - slow to load, and most processes write no file

    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open_to_write(draft, "xb") as file:
            file.write(data)
            sync_file(file)
        yield draft
    finally:  # also after Ctrl-C: no half file is left
        with contextlib.suppress(OSError):
            draft.unlink()


def data_folder(variables: Mapping[str, str], platform: str) -> Path:
    """Return our folder for a user's data on a system; `variables` are the user's environment.

    Raises: NoDataFolderError for a user without a home folder, as in containers.
    """
    try:
        if platform == "darwin":
            return Path.home() / "Library" / "Application Support" / "jobledger"
        given = variables.get("XDG_DATA_HOME", "")
        # The specification says that a relative path counts as none.
        return (Path(given) if given.startswith("/") else Path.home() / ".local" / "share") / "jobledger"
    except RuntimeError as error:
        raise NoDataFolderError from error


def make_folder(folder: Path, *, on_the_disk: bool = False) -> None:
    """Create a folder and missing parents, each for its owner alone; an existing folder does not change.

    `on_the_disk`: they survive a power cut. Raises: OSError.
    """
    folder = folder.absolute()
    for each in reversed(list(_missing(folder))):
        try:
            each.mkdir(mode=_FOLDER)
        except FileExistsError:  # another process created it meanwhile
            continue
        each.chmod(_FOLDER)
        if on_the_disk:
            sync_path(each.parent)
    if not folder.is_dir():
        raise UnfitFileError(folder, "it is no folder: name one")


def _missing(folder: Path) -> Generator[Path, None, None]:
    for each in (folder, *folder.parents):
        if os.path.lexists(each):
            return
        yield each


def need_own_folder(folder: Path) -> None:
    """Create a folder, or make sure that only this user can put files into an existing one.

    Raises: UnsafeFolderError, which names the command that mends it; OSError.
    """
    make_folder(folder)
    found, user = folder.stat(), os.geteuid()
    named = shlex.quote(str(folder))
    if found.st_uid != user:
        raise UnsafeFolderError(folder, f"belongs to user {found.st_uid}", f"chown -R {user} {named}")
    if found.st_mode & _OTHERS_WRITE:
        raise UnsafeFolderError(folder, "can be written by others", f"chmod go-w {named}")


def sync_file(file: IO[bytes]) -> None:
    """Return once the written data of a file is on the disk. Raises: OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Return once a file, or a change of a folder's entries, is on the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
