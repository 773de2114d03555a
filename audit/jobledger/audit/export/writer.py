"""Writing an export: a range of the log, whole or selected, into a folder that is there as a whole or not at all.

Everything is written into a draft beside the folder, brought to the disk, and renamed. A draft that a killed
process left is begun again; the lock on it ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Final

import anyio.to_thread
import msgspec

from jobledger.audit.errors import ExportExistsError, NotAnExportError
from jobledger.audit.export.files import FILE_BYTES_MAX, EventFileWriter, JsonLinesWriter, Totals
from jobledger.audit.export.manifest import (
    FORMAT,
    MANIFEST,
    ExportedFile,
    ExportedPayloads,
    FileFormat,
    Manifest,
    Previous,
    Selection,
    is_file_name,
    manifest_bytes,
    read_manifest,
    sealed,
)
from jobledger.audit.export.payloads import PayloadSource, check_payloads, clear_payloads, write_payloads
from jobledger.audit.export.reader import check_files
from jobledger.audit.verify.references import References
from jobledger.ledger.files import make_folder, open_to_write, sync_file, sync_path
from jobledger.ledger.model.clock import SYSTEM_CLOCK, Clock
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import InvalidInputError, LedgerError, NotFoundError, SequenceGapError
from jobledger.ledger.model.log import Log
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.model.version import VERSION

_EVERYTHING: Final = Selection()
_LOCK_TRIES_MAX: Final = 10

Progress = Callable[[int, int], None]


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The export that is wanted; one that is there and meets it need not be written."""

    environment: str
    first: int
    last: int
    selection: Selection
    previous: Previous | None
    file_format: FileFormat
    with_payloads: bool | None  #: None: as it lies there, if it does

    def is_met_by(self, found: Manifest) -> bool:
        """Whether an export is this one, as far as its manifest says."""
        range_of = (found.environment, found.first_sequence, found.last_sequence)
        return (
            self.with_payloads in (None, _has_payloads(found))
            and range_of == (self.environment, self.first, self.last)
            and (found.selection, found.previous) == (self.selection, self.previous)
            and (not found.files or found.file_format == self.file_format)
        )


class _Writer:
    """Distributes the events over files of bounded size."""

    def __init__(
        self, folder: Path, file_format: FileFormat, file_bytes_max: int, references: References
    ) -> None:
        self._folder = folder
        self._references = references
        self._format: FileFormat = file_format
        self._file_bytes_max = file_bytes_max
        self._open: EventFileWriter | None = None
        self._files: list[ExportedFile] = []

    def add(self, batch: list[Message]) -> None:
        self._references.add(batch)
        for message in batch:
            if message.redacted:
                sequence = message.stream_sequence
                raise InvalidInputError(
                    f"the values of the event at {sequence} were redacted: it cannot be exported again"
                )
            if self._open is None:
                self._open = self._begin()
            self._open.add(message)
            if self._open.size >= self._file_bytes_max:
                self._finish_file()

    def _begin(self) -> EventFileWriter:
        if self._format == "jsonl":
            return JsonLinesWriter(self._folder)
        from jobledger.audit.export.parquet import ParquetWriter  # noqa: PLC0415 - an extra

        return ParquetWriter(self._folder)

    def _finish_file(self) -> None:
        if self._open is not None:
            self._files.append(self._open.close())
            self._open = None

    def finish(self) -> tuple[ExportedFile, ...]:
        self._finish_file()
        return tuple(self._files)

    def abandon(self) -> None:
        if self._open is not None:
            self._open.abandon()


async def write_export(
    log: Log,
    folder: Path,
    *,
    first: int | None = None,
    last: int | None = None,
    selection: Selection = _EVERYTHING,
    previous: Previous | None = None,
    file_format: FileFormat = "jsonl",
    file_bytes_max: int = FILE_BYTES_MAX,
    payloads: PayloadSource | None = None,
    resumed: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    on_progress: Progress | None = None,
    on_payload: Progress | None = None,
) -> Manifest:
    """Export the stream sequences `first` to `last`, by default all that the log holds now, into `folder`.

    When this returns, the export is on the disk; when it does not, the folder is as it was. Where the same
    export lies already (same range and selection, and the ledger still says the same), that one is checked
    and left as it is, and its manifest returned. The large values that these events refer to are copied from
    `payloads`; without it they are left out, and the manifest says so. `on_progress` gets the events
    (sequences, without a selection) done and the number of all, `on_payload` the large values.

    Raises: ExportExistsError when something else lies in `folder`, or another process writes it;
        InvalidInputError for a range that the ledger does not hold; ConfigurationError without pyarrow;
        UnreachableError, CorruptLedgerError, OSError.
    """
    begin, end = await _range(log, first, last, selection)
    wanted = _Plan(
        environment=log.names.environment,
        first=begin,
        last=end,
        selection=selection,
        previous=previous,
        file_format=file_format,
        with_payloads=None if resumed else payloads is not None,
    )
    if file_format == "parquet":
        from jobledger.audit.export.parquet import need_pyarrow  # noqa: PLC0415 - an extra

        need_pyarrow()
    folder = _named(folder)
    existing = _existing(folder)
    if existing is not None:
        return await _unchanged(log, folder, existing, wanted, on_progress)
    with _drafted(folder) as draft, contextlib.closing(References()) as references:
        writer, totals = _Writer(draft, file_format, file_bytes_max, references), Totals()
        try:
            await _read(log, wanted, totals, on_progress, writer)
            files = await anyio.to_thread.run_sync(writer.finish)
        finally:
            writer.abandon()
        values = await write_payloads(draft, references, payloads, on_payload)
        manifest = _manifest(wanted, totals, files, values, clock)
        _write_synced(draft / MANIFEST, manifest_bytes(manifest))
        _move_into_place(draft, folder)
    return manifest


def _named(folder: Path) -> Path:
    """Return the folder by its own name, which `.` and `..` are not: its draft is named after it."""
    return Path(os.path.abspath(folder))  # noqa: PTH100 - symbolic links stay as they are


def _manifest(
    plan: _Plan, totals: Totals, files: tuple[ExportedFile, ...], payloads: ExportedPayloads, clock: Clock
) -> Manifest:
    count, digest, head_hash = totals.figures
    return sealed(
        Manifest(
            format=FORMAT,
            jobledger=VERSION,
            environment=plan.environment,
            created_at=clock.now(),
            selection=plan.selection,
            complete=plan.selection.is_all,
            first_sequence=plan.first,
            last_sequence=plan.last,
            count=count,
            head_hash=head_hash,
            digest=digest,
            files=files,
            payloads=payloads,
            previous=plan.previous,
        )
    )


async def _range(log: Log, first: int | None, last: int | None, selection: Selection) -> tuple[int, int]:
    for name, value in (("queue", selection.queue), ("job id", selection.job)):
        if value is not None:
            check_token(name, value)
    head = await log.head()
    held_from = max(1, head.first_sequence)
    begin = held_from if first is None else first
    end = head.last_sequence if last is None else last
    if begin > head.last_sequence + 1:
        raise InvalidInputError(
            f"the export is to begin at stream sequence {begin}, and the ledger ends at {head.last_sequence}"
        )
    if begin < held_from:
        raise InvalidInputError(
            f"the export is to begin at stream sequence {begin}, and the ledger begins at {held_from}"
        )
    if end > head.last_sequence:
        raise InvalidInputError(
            f"the export is to end at stream sequence {end}, and the ledger ends at {head.last_sequence}"
        )
    if end < begin - 1 or (end < begin and (first, last) != (None, None)):
        raise InvalidInputError(f"the export is to begin at stream sequence {begin} and to end at {end}")
    return begin, end


async def _read(
    log: Log, wanted: _Plan, totals: Totals, on_progress: Progress | None, writer: _Writer | None = None
) -> None:
    """Take in every event of the range that was selected, and nothing else."""
    number = wanted.last - wanted.first + 1
    async with contextlib.aclosing(_selected(log, wanted)) as batches:
        async for batch in batches:
            await anyio.to_thread.run_sync(_take, batch, totals, writer)
            if on_progress is not None:
                on_progress(batch[-1].stream_sequence - wanted.first + 1, number)
    if wanted.selection.is_all and totals.count != number:
        message = (
            f"the ledger gave {totals.count:,} events of stream sequence {wanted.first} to {wanted.last}, "
            f"which are {number:,}: it was cut off meanwhile"
        )
        raise SequenceGapError(message, stream_sequence=wanted.first + totals.count)


def _take(batch: list[Message], totals: Totals, writer: _Writer | None) -> None:
    for message in batch:
        totals.add(message.sha256)
    if writer is not None:
        writer.add(batch)


async def _selected(log: Log, wanted: _Plan) -> AsyncGenerator[list[Message], None]:
    if wanted.last < wanted.first:
        return
    subject = wanted.selection.subject(log.names)
    async with contextlib.aclosing(log.read_messages(from_sequence=wanted.first, subject=subject)) as batches:
        async for batch in batches:
            fitting = [message for message in batch if message.stream_sequence <= wanted.last]
            if fitting:
                yield fitting
            if batch[-1].stream_sequence >= wanted.last:
                return


def _existing(folder: Path) -> Manifest | None:
    """Return the manifest of an export that lies there already, None where one can be written.

    Raises: ExportExistsError for anything else.
    """
    try:
        return read_manifest(folder)
    except NotFoundError:
        return None
    except LedgerError as error:
        with contextlib.suppress(OSError):
            if isinstance(error, NotAnExportError) and folder.is_dir() and not any(folder.iterdir()):
                return None
        raise ExportExistsError(
            f"{folder} is there and is not an export that could be continued ({error}): choose another folder"
        ) from error


async def _unchanged(
    log: Log, folder: Path, existing: Manifest, wanted: _Plan, on_progress: Progress | None
) -> Manifest:
    """Return the manifest of an export that is there already, if it is whole and says what the ledger says.

    Raises: ExportExistsError, ExportDamagedError.
    """
    if not wanted.is_met_by(existing):
        kind = "with" if _has_payloads(existing) else "without"
        raise ExportExistsError(
            f"{folder} holds another export, of stream sequence {existing.first_sequence} to "
            f"{existing.last_sequence} as {existing.file_format}, {kind} large values: choose another folder"
        )
    totals = Totals()
    await _read(log, wanted, totals, on_progress)
    if totals.figures != (existing.count, existing.digest, existing.head_hash):
        raise ExportExistsError(
            f"{folder} holds an export of the same range of another ledger, or of this one before it was altered: "
            "choose another folder"
        )
    await anyio.to_thread.run_sync(check_files, folder, existing)
    await anyio.to_thread.run_sync(check_payloads, folder, existing)
    return existing


def _has_payloads(found: Manifest) -> bool:
    return not isinstance(found.payloads, msgspec.UnsetType) and found.payloads.included


@contextlib.contextmanager
def _drafted(folder: Path) -> Generator[Path, None, None]:
    """Yield an empty folder beside the one to be made, locked by this process; it is removed at the end.

    Raises: ExportExistsError when another process holds it; OSError.
    """
    make_folder(folder.parent)
    draft = folder.with_name(f".{folder.name}.draft")
    descriptor = _lock(draft)
    try:
        _clear(draft)
        try:
            yield draft
        finally:
            if _is_same(draft, descriptor):
                _clear(draft)
                draft.rmdir()
    finally:
        os.close(descriptor)


def _lock(draft: Path) -> int:
    """Open and lock the draft's folder; the lock ends with the process."""
    for _ in range(_LOCK_TRIES_MAX):
        make_folder(draft)
        try:
            descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            break
        except BaseException:  # Ctrl-C, too: nobody else closes it
            os.close(descriptor)
            raise
        if _is_same(draft, descriptor):
            return descriptor
        os.close(descriptor)  # whoever had it has finished meanwhile
    raise ExportExistsError(f"another process writes this export now, in {draft}: wait for it to end")


def _is_same(draft: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(draft.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _clear(draft: Path) -> None:
    """Remove what a writer left; nothing else is touched."""
    if clear_payloads(draft):
        raise ExportExistsError(f"{draft} holds what is not of our making: remove it if nobody needs it")
    for file in draft.iterdir():
        if not (is_file_name(file.name) or file.name == MANIFEST or file.name.endswith(".part")):
            raise ExportExistsError(f"{file} is not of our making: remove {draft} if nobody needs it")
        file.unlink()


def _write_synced(path: Path, data: bytes) -> None:
    with open_to_write(path, "xb") as file:
        file.write(data)
        sync_file(file)


def _move_into_place(draft: Path, folder: Path) -> None:
    sync_path(draft)
    try:
        draft.rename(folder)  # takes the place of an empty folder, and of nothing else
    except OSError as error:
        if folder.exists():
            raise ExportExistsError(
                f"{folder} was made by somebody else meanwhile: choose another one"
            ) from error
        raise
    sync_path(folder.parent)
