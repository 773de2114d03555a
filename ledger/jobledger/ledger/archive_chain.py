"""The archive: a folder of exports, each naming the one before it, and the event in the ledger that names the newest.

Reads only. What is moved into it, and in which order, is `archive`'s business. Source: ADR 011.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobledger.ledger.errors import ArchiveIncompleteError, NotAnExportError, NotFoundError
from jobledger.ledger.export import ExportLog, JoinedLog
from jobledger.ledger.export_manifest import MANIFEST, export_folder
from jobledger.ledger.log import Log
from jobledger.ledger.reactor_events import ARCHIVE, Archived, decode_reactor_event
from jobledger.ledger.subjects import Names


def export_name(first: int, last: int) -> str:
    """Return what the export of a range is called in an archive."""
    return f"{first:020}-{last:020}"


def make_folder(folder: Path) -> None:
    """Make the folder of an archive where it is missing, so that it is there after a power cut.

    Raises: OSError.
    """
    folder = folder.absolute()
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for place in reversed(missing):
        place.mkdir(exist_ok=True)
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Return when what was put into a folder, or renamed in it, is on the disk. Raises: OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def newest_archived(log: Log) -> Archived | None:
    """Return what the newest archive run recorded, None when there was none.

    Raises: CorruptLedgerError, UnreachableError.
    """
    message = await log.last(log.names.reactor_chain(ARCHIVE))
    if message is None:
        return None
    event = decode_reactor_event(message)
    assert isinstance(event, Archived), "the chain of this reactor has nothing else"
    return event


def exports_in(folder: Path, names: Names) -> dict[str, ExportLog]:
    """Return every export in the folder of an archive by the sha256 of its manifest; half ones are passed over.

    Raises: NotFoundError for no such folder, ExportDamagedError, NotAnExportError for one of another environment.
    """
    try:
        places = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no archive folder {folder}") from error
    found: dict[str, ExportLog] = {}
    for place in places:
        if (place / MANIFEST).exists():
            export = ExportLog(place, names)
            if export.manifest.complete:
                found[export.previous.manifest_sha256] = export
    return found


def chained(exports: Mapping[str, ExportLog], newest: str, folder: Path) -> list[ExportLog]:
    """Return the exports from the ledger's first event up to the one with the manifest `newest`, the oldest first.

    Raises: ArchiveIncompleteError when one of them is not there.
    """
    chain: list[ExportLog] = []
    wanted: str | None = newest
    while wanted is not None:
        export = exports.get(wanted)
        if export is None:
            before = f" before {chain[-1].manifest.first_sequence}" if chain else ""
            raise ArchiveIncompleteError(
                f"{folder} lacks the export{before} whose manifest has the sha256 {wanted}: "
                "put it beside the others, or name the folder that it is in"
            )
        chain.append(export)
        previous = export.manifest.previous
        wanted = None if previous is None else previous.manifest_sha256
    return chain[::-1]


async def open_archive(log: Log, folder: Path) -> Log:
    """Return the ledger with what was taken away in front of it again; as it is when nothing ever was.

    What the ledger says of its archive is compared with what lies there.

    Raises: ArchiveIncompleteError, NotFoundError, NotAnExportError, ExportDamagedError, UnreachableError.
    """
    newest = await newest_archived(log)
    if newest is None:
        return log
    chain = chained(exports_in(folder, log.names), newest.manifest_sha256, folder)
    manifest = chain[-1].manifest
    said = (newest.through_sequence, newest.head_hash, newest.digest, newest.count)
    if (manifest.last_sequence, manifest.head_hash, manifest.digest, manifest.count) != said:
        raise NotAnExportError(f"{chain[-1].folder} is not what the ledger says that its archive is")
    return JoinedLog(chain, log)


async def with_past(log: Log, places: Sequence[Path]) -> Log:
    """Return the ledger with its past in front: the folder of its archive, or exports one by one, the oldest first.

    Raises: as `open_archive`; NotFoundError for a place that is not there, also where nothing was archived.
    """
    missing = next((place for place in places if not place.exists()), None)
    if missing is not None:
        raise NotFoundError(f"there is no archive folder {missing}")
    if len(places) == 1 and not (export_folder(places[0]) / MANIFEST).exists():
        return await open_archive(log, places[0])
    return JoinedLog([ExportLog(place, log.names) for place in places], log)
