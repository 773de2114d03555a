"""An archive behind a URI, and the folder of this machine that stands for it: see `audit.export.remote`.

Files of an export are sent first, and each is read back. Its manifest is sent last: without it the export is not there.
Only then the ledger names the export, and loses the events. Source: ADR 073.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import msgspec

from jobledger.audit.errors import ArchiveAbsentError, ExportDamagedError, NotAnExportError
from jobledger.audit.export.manifest import MANIFEST, Manifest, manifest_sha256, parse_manifest, read_manifest
from jobledger.audit.export.payloads import PAYLOAD_LIST, PAYLOADS, listed
from jobledger.audit.export.remote import DRAFTS, REMOTE, Remote, opened, remote_of
from jobledger.ledger.files import data_folder, make_folder, open_file, sync_path, write_once, write_whole
from jobledger.ledger.model.retention import check_uri, is_uri

#: In the folder of an archive: which ledger it belongs to; see `jobledger.admin.archive_place`.
MARK: Final = ".jobledger-archive"
_ARCHIVES: Final = "archives"  #: in the user's data folder
_DIGITS: Final = 24
#: Files that were fetched are removed this long after that.
_KEPT_S: Final = 86_400.0

OnProgress = Callable[[int, int], None]


def local_folder(place: str, *, is_read: bool = True) -> Path:
    """Return the folder of an archive: the one that is named or, for a URI, the one that stands for it on this machine.

    That one then has the manifest of each export that is there. `is_read` False: as it was found when it was read last.

    Raises: InvalidInputError for a URI with a secret, ArchiveAbsentError, ConfigurationError without pyarrow,
        NoDataFolderError, OSError.
    """
    if not is_uri(place):
        return Path(place)
    check_uri(place)
    remote = opened(place)
    digits = hashlib.sha256(remote.uri.encode()).hexdigest()[:_DIGITS]
    folder = data_folder(os.environ, sys.platform) / _ARCHIVES / digits
    if is_read or not (folder / REMOTE).exists():
        make_folder(folder, on_the_disk=True)
        if not (folder / REMOTE).exists():
            write_once(folder / REMOTE, f"{remote.uri}\n{secrets.token_hex(4)}\n".encode())
        _read_remote(remote, folder)
    return folder


def own_name(folder: Path, name: str) -> str:
    """Return what an export is called that is made in a folder: `name`, with a word of the folder where it is sent elsewhere.

    So two machines that send the same events never write to one name. Raises: OSError.
    """
    try:
        with open_file(folder / REMOTE) as file:
            return f"{name}.{file.read().decode().split()[1]}"
    except FileNotFoundError:
        return name


def _read_remote(remote: Remote, folder: Path) -> None:
    """Fetch the manifests that are missing here, and the mark; remove what was fetched long ago."""
    known, there = {each.name for each in _exports(folder)}, remote.folders()
    for each in remote.present([f"{name}/{MANIFEST}" for name in there if name not in known]):
        name, data = each.partition("/")[0], b"".join(remote.read(each))
        with contextlib.suppress(ExportDamagedError, NotAnExportError):  # it is being sent at this moment
            parse_manifest(folder / name / MANIFEST, data)
            make_folder(folder / name)
            write_whole(folder / name / MANIFEST, data)
    if not (folder / MARK).exists():
        with contextlib.suppress(FileNotFoundError):
            remote.fetch(MARK, folder / MARK, folder / DRAFTS)
    long_ago = time.time() - _KEPT_S
    _remove(_files(folder / DRAFTS), long_ago)
    old = [name for name in sorted(known) if _is_old(folder / name, long_ago)]
    for each in remote.present([f"{name}/{MANIFEST}" for name in old]):  # what is half sent is needed here
        drop_files((folder / each).parent, before=long_ago)


def _exports(folder: Path) -> list[Path]:
    return sorted(each.parent for each in folder.glob(f"*/{MANIFEST}"))


def send_export(export: Path, on_progress: OnProgress = lambda _done, _total: None) -> None:
    """Send an export's files, read each back, and then its manifest; nothing where it lies in a folder of its own.

    One that was cut off goes on where it was.

    Raises: ArchiveAbsentError, ExportDamagedError, OSError.
    """
    remote = remote_of(export.parent)
    if remote is None or lies_there(export):
        return
    contents = list(_contents(export, read_manifest(export)))
    for done, (each, sha256) in enumerate(contents):
        on_progress(done, len(contents) + 1)
        remote.send(export / each, f"{export.name}/{each}", sha256)
    remote.send(export / MANIFEST, f"{export.name}/{MANIFEST}", manifest_sha256(export))


def lies_there(export: Path) -> bool:
    """Return whether an export is where its archive is: always, unless its place is a URI that lacks its manifest.

    Raises: ArchiveAbsentError.
    """
    remote = remote_of(export.parent)
    if remote is None:
        return True
    try:
        data = b"".join(remote.read(f"{export.name}/{MANIFEST}"))
        return hashlib.sha256(data).hexdigest() == manifest_sha256(export)
    except FileNotFoundError:
        return False


def _contents(export: Path, manifest: Manifest) -> Generator[tuple[str, str], None, None]:
    """Yield the name and the sha256 of each file of an export but its manifest."""
    for file in manifest.files:
        yield file.name, file.sha256
    payloads = manifest.payloads
    if not isinstance(payloads, msgspec.UnsetType) and payloads.sha256:
        yield PAYLOAD_LIST, payloads.sha256
    for line in listed(export, manifest):
        if line.state == "stored":
            yield f"{PAYLOADS}/{line.sha256}", line.sha256


def drop_files(export: Path, *, before: float | None = None) -> None:
    """Remove the files of an export that lies elsewhere, but its manifest: the next reader fetches them.

    `before`: only those written before this time, in seconds since 1970. One that cannot be removed stays.
    """
    if (export.parent / REMOTE).exists():
        _remove(_files(export), before)
        _remove(_files(export / PAYLOADS), before)


def _is_old(export: Path, before: float) -> bool:
    """Return whether an export has a file that may be removed."""
    found = (each for each in (*_files(export), *_files(export / PAYLOADS)) if each.name != MANIFEST)
    return any(each.stat().st_mtime < before for each in found)


def _files(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_file()] if folder.is_dir() else []


def _remove(files: list[Path], before: float | None) -> None:
    for each in files:
        if each.name != MANIFEST:
            with contextlib.suppress(OSError):
                if before is None or each.stat().st_mtime < before:
                    each.unlink()


def remove_export(export: Path) -> None:
    """Remove an export that no ledger names, here and where its archive is; its manifests first.

    Raises: ArchiveAbsentError, ExportDamagedError, OSError.
    """
    remote = remote_of(export.parent)
    if remote is not None:
        contents = _contents(export, read_manifest(export))
        remote.remove(f"{export.name}/{each}" for each in [MANIFEST, *(each for each, _ in contents)])
    # Without its manifest it is no export any more, whatever of it is removed before this process ends.
    (export / MANIFEST).unlink()
    sync_path(export)
    shutil.rmtree(export)


def send_mark(folder: Path) -> None:
    """Send the mark of an archive that lies elsewhere. Raises: ArchiveAbsentError, OSError."""
    remote = remote_of(folder)
    if remote is not None:
        with open_file(folder / MARK) as file:
            sha256 = hashlib.sha256(file.read()).hexdigest()
        remote.send(folder / MARK, MARK, sha256)


def has_mark(folder: Path) -> bool:
    """Return whether the place that a folder stands for has its mark, too; True for a folder of its own.

    Raises: ArchiveAbsentError.
    """
    remote = remote_of(folder)
    return remote is None or bool(remote.present([MARK]))


def shown(path: Path) -> str:
    """Return an archive or an export for a person: its path, or its URI."""
    for folder in (path, path.parent):
        with contextlib.suppress(ArchiveAbsentError):
            remote = remote_of(folder)
            if remote is not None:
                return remote.name if folder == path else f"{remote.name}/{path.name}"
    return str(path)
