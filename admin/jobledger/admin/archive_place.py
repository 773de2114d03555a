"""The folder of an archive, as a keeper finds it: whether it belongs to the ledger.

A disk that is not mounted leaves an empty folder behind. A keeper that took it for a new archive would fill the disk
below, so the folder of an archive holds a mark, which is required once an archive was begun. Source: ADR 062.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from jobledger.audit.archive.chain import exports_in
from jobledger.audit.archive.mirror import MARK, has_mark, lies_there, send_mark, shown
from jobledger.audit.errors import ArchiveAbsentError
from jobledger.ledger.files import make_folder, open_file, write_whole
from jobledger.ledger.model.errors import LedgerError, RefusedError
from jobledger.ledger.model.log import Head
from jobledger.ledger.model.reactor import Archived
from jobledger.ledger.model.subjects import Names

_BYTES_MAX: Final = 64 << 10


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The facts in the mark of an archive."""

    environment: str
    ledger_made_at: datetime | None  #: by the server's clock; None if the server does not tell


def require_place(
    folder: Path, names: Names, head: Head, newest: Archived | None, *, makes: bool = False
) -> None:
    """Require that the folder is the archive of this ledger, and marked as such; a first archive is marked here.

    Raises: as `is_marked`.
    """
    if is_marked(folder, names, head, newest, makes=makes):
        return
    if not folder.is_dir():
        make_folder(folder, on_the_disk=True)
    write_whole(folder / MARK, msgspec.json.encode(_mark_of(names, head)))
    send_mark(folder)


def is_marked(
    folder: Path, names: Names, head: Head, newest: Archived | None, *, makes: bool = False
) -> bool:
    """Return whether the folder is marked as the archive of this ledger; False: not yet, and it may be marked.

    `newest`: what the newest archive run recorded. `makes`: a missing folder is made, for a first archive.

    Raises: ArchiveAbsentError; RefusedError for the archive of another ledger; OSError.
    """
    found = _mark_in(folder)
    if found == _mark_of(names, head) and has_mark(folder):
        return True
    if newest is not None:
        # It was begun by hand, or the ledger was restored: the newest export proves whose archive it is.
        if not _holds(folder, names, newest.manifest_sha256):
            raise ArchiveAbsentError(
                f"{shown(folder)} is not the archive of this ledger, which the newest run wrote to {newest.folder or 'another folder'}: "
                "mount its disk, or say with `jobledger retention set --to DIR` where it is; nothing is moved until then"
            )
    elif found not in {None, _mark_of(names, head)}:
        raise RefusedError(f"{shown(folder)} is the archive of another ledger: name another folder")
    elif not makes and not folder.is_dir():
        raise ArchiveAbsentError(
            f"there is no folder {folder}: make it, on the disk where the archive is to be; nothing is moved until then"
        )
    return False


def _mark_of(names: Names, head: Head) -> Mark:
    return Mark(environment=names.environment, ledger_made_at=head.made_at)


def _holds(folder: Path, names: Names, manifest_sha256: str) -> bool:
    """Return whether an archive has the export of this manifest; False if it is absent or cannot be read."""
    found = None
    with contextlib.suppress(LedgerError):
        found = exports_in(folder, names).get(manifest_sha256)
    return found is not None and lies_there(found.folder)


def _mark_in(folder: Path) -> Mark | None:
    """Return the mark in a folder, None without one. Raises: RefusedError for a damaged one; OSError."""
    try:
        with open_file(folder / MARK, bytes_max=_BYTES_MAX) as file:
            return msgspec.json.decode(file.read(), type=Mark)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise RefusedError(
            f"{folder / MARK} is damaged ({error}): remove it if this is the archive of the ledger"
        ) from error
