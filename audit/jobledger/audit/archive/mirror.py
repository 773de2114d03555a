"""An archive behind a URI, and the folder of this machine that stands for it: see `audit.export.remote`.

Files of an export are sent first, and each is read back. Its manifest is sent last: without it the export is not there.
Only then the ledger names the export, and loses the events. Source: ADR 073.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from jobledger.audit.errors import ArchiveAbsentError, NotAnExportError
from jobledger.audit.export.manifest import MANIFEST, Manifest, manifest_sha256, parse_manifest, read_manifest
from jobledger.audit.export.payloads import PAYLOAD_LIST, PAYLOADS, listed
from jobledger.audit.export.remote import DRAFTS, REMOTE, Remote, opened, remote_of
from jobledger.ledger.files import (
    data_folder,
    make_folder,
    open_file,
    rename_over,
    sync_path,
    write_once,
    write_whole,
)
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.retention import check_uri, is_uri

#: In the folder of an archive: which ledger it belongs to; see `jobledger.admin.archive_place`.
MARK: Final = ".jobledger-archive"
_ARCHIVES: Final = "archives"  #: in the user's data folder
_DIGITS: Final = 24
#: Files that were fetched are removed this long after that.
_KEPT_S: Final = 86_400.0
_AT_ONCE: Final = 8  #: manifests that are fetched at a time: an old archive has thousands

OnProgress = Callable[[int, int], None]

logger = logging.getLogger("jobledger.archive")


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
    known = set(_known(folder))
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="manifests")
    try:
        for _ in pool.map(partial(_take, remote, folder), set(remote.folders()) - known):
            pass
    finally:  # where the place is away, nobody waits for the others
        pool.shutdown(cancel_futures=True)
    # Also where one is here: another ledger may have begun at the same time, and written its own over it.
    with contextlib.suppress(FileNotFoundError):
        remote.fetch(MARK, folder / MARK, folder / DRAFTS)
    long_ago = time.time() - _KEPT_S
    _remove(_files(folder / DRAFTS), long_ago)
    old = [name for name in sorted(known) if _is_old(folder / name, long_ago)]
    for each in remote.present([f"{name}/{MANIFEST}" for name in old]):  # what is half sent is needed here
        drop_files((folder / each).parent, before=long_ago)


def _take(remote: Remote, folder: Path, name: str) -> None:
    """Fetch the manifest of an export, unless it is not there yet, or is none."""
    with contextlib.suppress(FileNotFoundError):
        data = b"".join(remote.read(f"{name}/{MANIFEST}"))
        try:
            parse_manifest(folder / name / MANIFEST, data)
        except (
            CorruptLedgerError,
            NotAnExportError,
        ) as error:  # it is being sent at this moment, or was never sent
            logger.debug("%s: %s", remote.name, error)
            return
        make_folder(folder / name)
        write_whole(folder / name / MANIFEST, data)


def _exports(folder: Path) -> list[Path]:
    """Return the exports in a folder, without drafts, whose manifest may be half written."""
    return sorted(
        each.parent for each in folder.glob(f"*/{MANIFEST}") if not each.parent.name.startswith(".")
    )


def _known(folder: Path) -> Generator[str, None, None]:
    """Yield the name of each export that is here. One that this disk damaged is put aside: it lies elsewhere, too."""
    for each in _exports(folder):
        try:
            read_manifest(each)
            yield each.name
        except CorruptLedgerError as error:
            aside = folder / f".damaged.{each.name}"
            logger.warning("%s; it is %s now", error, aside)
            shutil.rmtree(aside, ignore_errors=True)
            rename_over(each, aside)


def send_export(export: Path, on_progress: OnProgress = lambda _done, _total: None) -> None:
    """Send an export's files, read each back, and then its manifest; nothing where it lies in a folder of its own.

    One that was cut off goes on where it was.

    Raises: ArchiveAbsentError, ExportDamagedError, OSError.
    """
    remote = remote_of(export.parent)
    if remote is None:
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
    return remote.sha256(f"{export.name}/{MANIFEST}") == manifest_sha256(export)


def unlike(export: Path) -> list[str]:
    """Return how an export that lies elsewhere is otherwise there than what of it is here, for people.

    What is here would hide what became of the archive itself. A file that only here is damaged is removed, to be fetched.

    Raises: ArchiveAbsentError, NotAnExportError, ExportDamagedError, OSError.
    """
    remote = remote_of(export.parent)
    if remote is None:
        return []
    place = f"{remote.name}/{export.name}"
    found: list[str] = []
    if not lies_there(export):
        found.append(f"{place}/{MANIFEST} is missing there, or was altered")
    for path, sha256 in _here(export, read_manifest(export)):
        name = path.relative_to(export).as_posix()
        if remote.sha256(f"{export.name}/{name}") != sha256:
            found.append(f"{place}/{name} is missing there, or was altered")
        elif _sha256(path) != sha256:
            path.unlink(missing_ok=True)
    return found


def _sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _here(export: Path, manifest: Manifest) -> Generator[tuple[Path, str], None, None]:
    """Yield the files of an export that are on this machine, but its manifest, and the sha256 that each should have."""
    known = {each.name: each.sha256 for each in manifest.files}
    if not isinstance(manifest.payloads, msgspec.UnsetType):
        known[PAYLOAD_LIST] = manifest.payloads.sha256
    for path in _files(export):
        if path.name in known:
            yield path, known[path.name]
    for path in _files(export / PAYLOADS):
        yield path, path.name


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


def drop_past(folder: Path, through: int) -> None:
    """Remove the files of the exports that begin at or before `through`, which the ledger has lost now; see `drop_files`.

    Also those of a run on this machine that another one overtook before it sent them: the events lie in another export.
    """
    for export in _exports(folder):
        if read_manifest(export).first_sequence <= through:
            drop_files(export)


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


def is_stripped(export: Path) -> bool:
    """Return whether nothing of an export is on this machine but its manifest. Raises: OSError."""
    return all(each.name == MANIFEST for each in export.iterdir())


def is_bare(export: Path) -> bool:
    """Return whether an export has no file but its manifest, here and where its archive is.

    Raises: ArchiveAbsentError, OSError.
    """
    remote = remote_of(export.parent)
    return is_stripped(export) and (remote is None or remote.files(export.name) in ([], [MANIFEST]))


def strip_export(export: Path) -> None:
    """Remove all files of an export but its manifest, here and where its archive is.

    Raises: ArchiveAbsentError, OSError.
    """
    remote = remote_of(export.parent)
    if remote is not None:
        remote.remove(f"{export.name}/{each}" for each in remote.files(export.name) if each != MANIFEST)
    for each in sorted(export.iterdir()):
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != MANIFEST:
            each.unlink()
    sync_path(export)


def send_mark(folder: Path) -> None:
    """Send the mark of an archive that lies elsewhere. Raises: ArchiveAbsentError, OSError."""
    remote = remote_of(folder)
    if remote is not None:
        remote.send(folder / MARK, MARK, _sha256(folder / MARK))


def has_mark(folder: Path) -> bool:
    """Return whether the place that a folder stands for has the same mark; True for a folder of its own.

    Raises: ArchiveAbsentError, OSError.
    """
    remote = remote_of(folder)
    return remote is None or remote.sha256(MARK) == _sha256(folder / MARK)


def shown(path: Path) -> str:
    """Return an archive or an export for a person: its path, or its URI."""
    for folder in (path, path.parent):
        with contextlib.suppress(ArchiveAbsentError):
            remote = remote_of(folder)
            if remote is not None:
                return remote.name if folder == path else f"{remote.name}/{path.name}"
    return str(path)
