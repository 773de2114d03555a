"""Reading an export from its first event to its last, every byte of it checked on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

from jobledger.audit.errors import ExportDamagedError
from jobledger.audit.export.files import EventFile, JsonLinesFile, Totals, as_message
from jobledger.audit.export.manifest import MANIFEST, ExportedFile, Manifest, export_folder, read_manifest
from jobledger.ledger.model.codec import Message


def event_file(folder: Path, entry: ExportedFile) -> EventFile:
    """Return one file of an export, not opened yet.

    Raises: ConfigurationError for Parquet without pyarrow.
    """
    if entry.name.endswith(".jsonl"):
        return JsonLinesFile(folder / entry.name, entry)
    from jobledger.audit.export.parquet import ParquetFile  # noqa: PLC0415 - an extra

    return ParquetFile(folder / entry.name, entry)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest.

    Raises: ExportDamagedError.
    """
    for entry in manifest.files:
        check_file(event_file(folder, entry))


def check_file(file: EventFile) -> None:
    """Compare a file with the manifest.

    Raises: ExportDamagedError.
    """
    problem = file.check()
    if problem is not None:
        raise ExportDamagedError(
            file.path,
            problem,
            stream_sequence=file.entry.first_sequence,
            next_sequence=file.entry.last_sequence + 1,
        )


def read_export(folder: Path) -> Iterator[Message]:
    """Yield every event of an export, in stream order, with the bytes and times it had in the ledger.

    Each file's checksum is looked at before its first event is handed out; the digest over all events can only be
    compared after the last one.

    Raises: as `read_manifest`; ExportDamagedError; UnknownEventError, MalformedEventError for what is no event.
    """
    folder = export_folder(folder)
    manifest = read_manifest(folder)
    totals = Totals()
    for entry in manifest.files:
        for message in _events_of(event_file(folder, entry)):
            totals.add(message.sha256)
            yield message
    if totals.figures != (manifest.count, manifest.digest, manifest.head_hash):
        raise ExportDamagedError(
            folder / MANIFEST, "its count, digest or head hash is not that of the events in its files"
        )


def _events_of(file: EventFile) -> Iterator[Message]:
    """Yield one file's events, which must be those of its line of the manifest."""
    check_file(file)
    entry, position, count = file.entry, file.entry.first_sequence - 1, 0
    with contextlib.closing(_closable(file)) as messages:
        for number, message in enumerate(messages, 1):
            check_place(file, number, position, message.stream_sequence)
            position = message.stream_sequence
            count += 1
            yield message
    if count != entry.count or position != entry.last_sequence:
        raise ExportDamagedError(
            file.path, f"it has {count:,} events up to {position}, and the manifest says otherwise"
        )


def _closable(file: EventFile) -> Generator[Message, None, None]:
    for row in file.rows():
        yield as_message(file, row)


def check_place(file: EventFile, number: int, position: int, stream_sequence: int) -> None:
    """Refuse an event that is out of order or not in the file's range.

    Raises: ExportDamagedError.
    """
    if position < stream_sequence <= file.entry.last_sequence:
        return
    raise ExportDamagedError(
        file.path,
        f"it comes after {position}, in a file that ends at {file.entry.last_sequence}",
        line=number,
        stream_sequence=stream_sequence,
    )
