"""The archive: a folder of exports, each naming the one before it, and the event in the ledger that names the newest.

Reads only. `archiver` decides what is moved into it, and in which order. Source: ADR 011.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from jobledger.audit.archive.mirror import is_stripped, shown, unlike
from jobledger.audit.errors import ArchiveIncompleteError, NotAnExportError
from jobledger.audit.export import ExportLog, JoinedLog
from jobledger.audit.export.manifest import MANIFEST, export_folder
from jobledger.audit.export.remote import remote_of
from jobledger.ledger.model.archive_record import forgotten_past, newest_archived
from jobledger.ledger.model.errors import NotFoundError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.reactor import Archived, ForgottenPast
from jobledger.ledger.model.subjects import Names


def export_name(first: int, last: int) -> str:
    """Return what the export of a range is called in an archive."""
    return f"{first:020}-{last:020}"


def place_of(folder: Path) -> str:
    """Return how the ledger names an archive, for people who look for it: `<host>:<path>`, or its URI."""
    remote = remote_of(folder)
    return f"{socket.gethostname()}:{folder.absolute()}" if remote is None else remote.uri


def exports_in(folder: Path, names: Names) -> dict[str, ExportLog]:
    """Return the exports in an archive's folder, by the sha256 of their manifests: one of those that are copies.

    Raises: as `all_exports_in`.
    """
    return {export.previous.manifest_sha256: export for export in all_exports_in(folder, names)}


def all_exports_in(folder: Path, names: Names) -> list[ExportLog]:
    """Return the exports in an archive's folder, without drafts and selections, by their names.

    Raises: NotFoundError for no such folder, ExportDamagedError, NotAnExportError for one of another environment.
    """
    try:
        places = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"there is no archive folder {folder}") from error
    exports = (ExportLog(place, names) for place in places if (place / MANIFEST).exists())
    return [export for export in exports if export.manifest.complete]


async def archive_chain(log: Log, folder: Path, *, may_lack: bool = False) -> list[ExportLog]:
    """Return the exports of an archive from the first event that is not forgotten on, the oldest first.

    None where nothing was ever archived. `may_lack`: a missing folder counts as one without exports.

    Raises: ArchiveIncompleteError when one of them is not there, or another one in its place; NotFoundError,
        NotAnExportError, ExportDamagedError, UnreachableError.
    """
    newest = await newest_archived(log)
    if newest is None:
        return []
    forgotten = await forgotten_past(log)

    def found() -> dict[str, ExportLog]:
        return {} if may_lack and not folder.exists() else exports_in(folder, log.names)

    exports = await anyio.to_thread.run_sync(found)
    chain, problems = _chain(exports, newest, forgotten, folder)
    if problems:
        raise ArchiveIncompleteError(problems[0].sentence)
    return chain


class Problem(NamedTuple):
    """A fault in how an archive's exports follow each other, apart from their events."""

    stream_sequence: int  #: the first one that it is about
    sentence: str


class Past(NamedTuple):
    """A ledger with its archived events before it, to be checked."""

    log: Log
    exports: tuple[ExportLog, ...]  #: the oldest first; none where nothing was ever taken away
    problems: tuple[Problem, ...]
    strangers: tuple[str, ...]  #: exports in the folder that are no part of the archive
    forgotten: ForgottenPast | None = None  #: what was taken out of the archive for good
    returned: tuple[str, ...] = ()  #: forgotten exports whose files are in the folder all the same


def _chain(
    exports: Mapping[str, ExportLog], newest: Archived, forgotten: ForgottenPast | None, folder: Path
) -> tuple[list[ExportLog], list[Problem]]:
    """Follow the manifests back from the one that the ledger names, up to what is forgotten.

    Where the named export is missing and another ends where it should, that one is taken, and reported as a problem.
    """
    chain: list[ExportLog] = []
    problems: list[Problem] = []
    wanted: str | None = newest.manifest_sha256
    through = newest.through_sequence
    while wanted is not None:
        if forgotten is not None and through <= forgotten.through_sequence:
            if wanted != forgotten.manifest_sha256:
                problems.append(_unlike_forgotten(forgotten, wanted, chain))
            break
        export = exports.get(wanted)
        if export is None:
            export = _in_place(exports, through)
            if export is None:
                raise ArchiveIncompleteError(_missing(exports, newest, folder, chain))
            problems.append(_replaced(export, wanted, chain))
        chain.append(export)
        previous = export.manifest.previous
        wanted = None if previous is None else previous.manifest_sha256
        # Always below this one, even if a manifest was forged, so that the loop ends.
        through = 0 if previous is None else min(previous.last_sequence, export.manifest.first_sequence - 1)
    return chain[::-1], problems[::-1]


def _unlike_forgotten(forgotten: ForgottenPast, wanted: str, chain: Sequence[ExportLog]) -> Problem:
    by = chain[-1].folder.name if chain else "the ledger"
    return Problem(
        forgotten.through_sequence + 1,
        f"{by} names another export before it than the one up to {forgotten.through_sequence} that was forgotten: the "
        f"sha256 of its manifest is {wanted}, and that of the forgotten one {forgotten.manifest_sha256}",
    )


def _in_place(exports: Mapping[str, ExportLog], through: int) -> ExportLog | None:
    found = (export for export in exports.values() if through and export.manifest.last_sequence == through)
    # Of several, one that leads further back: it can be compared with more.
    return min(found, key=lambda export: (export.manifest.previous is None, export.folder), default=None)


def _missing(
    exports: Mapping[str, ExportLog], newest: Archived, folder: Path, chain: Sequence[ExportLog]
) -> str:
    previous = chain[-1].manifest.previous if chain else None
    if previous is None:
        wanted, through, by = newest.manifest_sha256, newest.through_sequence, "the ledger"
        begin = through - newest.count + 1
    else:
        wanted, through, by = previous.manifest_sha256, previous.last_sequence, chain[-1].folder.name
        ends = (export.manifest.last_sequence for export in exports.values())
        begin = 1 + max((end for end in ends if end < through), default=0)
    where = f"; the newest run wrote to {newest.folder}" if newest.folder else ""
    return (
        f"{shown(folder)} lacks the export of stream sequence {begin} to {through} whose manifest has the sha256 {wanted}, "
        f"as {by} says: put it beside the others, or name the folder that it is in{where}"
    )


def _replaced(export: ExportLog, wanted: str, chain: Sequence[ExportLog]) -> Problem:
    manifest = export.manifest
    by = chain[-1].folder.name if chain else "the ledger"
    return Problem(
        manifest.first_sequence,
        f"{export.folder} of stream sequence {manifest.first_sequence} to {manifest.last_sequence} is not the export "
        f"that {by} names: its manifest has the sha256 {export.previous.manifest_sha256}, and the named one {wanted}",
    )


async def open_archive(log: Log, folder: Path) -> Log:
    """Return the ledger with its archived events before it, but for forgotten ones; alone when nothing was archived.

    The newest export is compared with what the ledger records of it.

    Raises: ArchiveIncompleteError, NotFoundError, NotAnExportError, ExportDamagedError, UnreachableError.
    """
    newest = await newest_archived(log)
    if newest is None:
        return log
    chain = await archive_chain(log, folder)
    manifest = chain[-1].manifest
    said = (newest.through_sequence, newest.head_hash, newest.digest, newest.count)
    if (manifest.last_sequence, manifest.head_hash, manifest.digest, manifest.count) != said:
        raise NotAnExportError(f"{chain[-1].folder} is not what the ledger says that its archive is")
    return JoinedLog(chain, log)


async def with_past(log: Log, places: Sequence[Path]) -> Log:
    """Return the ledger with its past in front: the folder of its archive, or exports one by one, the oldest first.

    Raises: as `open_archive`; NotFoundError for a place that is not there, also where nothing was archived.
    """
    if is_archive(places):
        return await open_archive(log, places[0])
    return JoinedLog(await _named_exports(log, places), log)


async def _named_exports(log: Log, places: Sequence[Path]) -> list[ExportLog]:
    """Return exports that are named one by one. Raises: ArchiveIncompleteError for one that was forgotten."""
    exports = [ExportLog(place, log.names) for place in places]
    forgotten = await forgotten_past(log)
    for export in exports:
        is_forgotten = forgotten is not None and export.manifest.last_sequence <= forgotten.through_sequence
        if forgotten is not None and is_forgotten and is_stripped(export.folder):
            raise ArchiveIncompleteError(f"{export.folder} is no more: {forgotten.words}; leave it out")
    return exports


async def read_past(log: Log, places: Sequence[Path]) -> Past:
    """Return the same for a check: an export in the place of the named one is taken, and reported as a problem.

    Raises: as `with_past`; ArchiveIncompleteError only where nothing lies in the place of an export.
    """
    if not is_archive(places):
        exports = tuple(await _named_exports(log, places))
        return Past(JoinedLog(exports, log), exports, (), ())
    newest = await newest_archived(log)
    if newest is None:
        return Past(log, (), (), ())
    found, folder, forgotten = exports_in(places[0], log.names), places[0], await forgotten_past(log)
    chain, problems = _chain(found, newest, forgotten, folder)
    gone = 0 if forgotten is None else forgotten.through_sequence
    strangers = [
        each.folder.name
        for each in found.values()
        if each not in chain and each.manifest.last_sequence > gone
    ]
    returned = [
        each.folder.name
        for each in all_exports_in(folder, log.names)
        if each.manifest.last_sequence <= gone and not is_stripped(each.folder)
    ]
    joined = JoinedLog(chain, log, linked=not problems)
    problems += await anyio.to_thread.run_sync(_unlike, chain)
    return Past(joined, tuple(chain), tuple(problems), tuple(sorted(strangers)), forgotten, tuple(returned))


def _unlike(chain: Sequence[ExportLog]) -> list[Problem]:
    return [
        Problem(export.manifest.first_sequence, sentence)
        for export in chain
        for sentence in unlike(export.folder)
    ]


def is_archive(places: Sequence[Path]) -> bool:
    """Return whether these are the folder of an archive, and not exports. Raises: NotFoundError."""
    missing = next((place for place in places if not place.exists()), None)
    if missing is not None:
        raise NotFoundError(f"there is no archive folder {missing}")
    return len(places) == 1 and not (export_folder(places[0]) / MANIFEST).exists()


def export_folders(places: Sequence[Path]) -> list[Path]:
    """Return the folder of every export in an archive, or of those that are named one by one.

    Raises: NotFoundError.
    """
    if is_archive(places):
        return sorted(each.parent for each in places[0].glob(f"*/{MANIFEST}"))
    return [export_folder(place) for place in places]
