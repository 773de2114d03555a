"""What an export says of itself: the fields and bytes of `manifest.json`, and what must hold between them.

The manifest's own checksum is over its bytes, and those are always the same for the same fields: whatever byte of it
changes, it is seen. That guards against accidents; who alters an export on purpose can compute it again.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from jobledger.audit.errors import ExportDamagedError, NotAnExportError
from jobledger.ledger.files import open_file
from jobledger.ledger.model.errors import NotFoundError
from jobledger.ledger.model.subjects import JobRef, Names, is_token

#: The version of the format; a field more or less makes another one. The first one had no `payloads`.
FORMAT: Final = 2
#: Of an export that has lines without values: an earlier release would call it damaged.
FORMAT_REDACTED: Final = 3
_FORMATS: Final = (1, FORMAT, FORMAT_REDACTED)
MANIFEST: Final = "manifest.json"
#: About 60,000 files, which is 4 TB of events.
_MANIFEST_BYTES_MAX: Final = 16 << 20
_HASH: Final = re.compile(r"[0-9a-f]{64}", flags=re.ASCII)
_FILE_NAME: Final = re.compile(r"events-([0-9]{20})-([0-9]{20})\.(jsonl|parquet)", flags=re.ASCII)

FileFormat = Literal["jsonl", "parquet"]


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events of a range are wanted; nothing chosen is every one."""

    queue: str | None = None  #: jobs of this queue alone
    job: str | None = None  #: jobs of this id alone, in every queue unless `queue` names one

    @property
    def is_all(self) -> bool:
        """Whether every event of the range is wanted, those of locks and reactors too."""
        return self.queue is None and self.job is None

    def subject(self, names: Names) -> str | None:
        """Return the filter that these events fit; None for all of them."""
        if self.job is not None:
            if self.queue is None:
                return names.chains_of_id(self.job)
            return names.chain(JobRef(queue=self.queue, job_id=self.job))
        return None if self.queue is None else f"{names.jobs_root}{self.queue}.>"


class Previous(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The export that this one continues."""

    manifest_sha256: str  #: hex; of its manifest's bytes
    last_sequence: int
    head_hash: str


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of events."""

    name: str  #: `events-<first>-<last>.jsonl` or `.parquet`
    sha256: str  #: hex; of the file's bytes
    bytes: int
    count: int  #: events in it, at least 1
    first_sequence: int  #: sequence of its first event
    last_sequence: int  #: sequence of its last event


class ExportedPayloads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The large inputs, results and checkpoints that the events refer to; each is counted once."""

    included: bool  #: whether they are in the export
    count: int  #: payloads that events refer to, in the export or not
    gone: int  #: payloads that the object store lacked when the export was written
    differs: int  #: payloads that it then stored with another sha256
    bytes: int  #: size of the files
    sha256: str  #: hex; of `payloads.jsonl`, "" without one

    @property
    def stored(self) -> int:
        """How many are in the export."""
        return self.count - self.gone - self.differs if self.included else 0


class ExportRedaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an export says of the events whose values were taken out of it."""

    manifest_sha256: (
        str  #: hex; of the manifest before the first time: by this the ledger and later exports name it
    )
    events: int  #: how many events have no values
    lines_sha256: str  #: hex; over their lines, in stream order


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an export holds."""

    format: int
    jobledger: str  #: the version that wrote it
    environment: str
    created_at: datetime
    selection: Selection
    complete: bool  #: every sequence of the range is in it
    first_sequence: int  #: of the range that was asked for; a selection need not have an event there
    last_sequence: int  #: of the range; one less than `first_sequence` when the ledger was empty
    count: int
    head_hash: str  #: hex sha256 of the last event, "" when there is none
    digest: (
        str  #: hex sha256 over the hashes of all events in stream order, as a report of the checker has it
    )
    files: tuple[ExportedFile, ...]
    payloads: ExportedPayloads | msgspec.UnsetType = msgspec.UNSET  #: unset in format 1 alone
    previous: Previous | None = None
    redacted: ExportRedaction | msgspec.UnsetType = msgspec.UNSET  #: unset in any other format than 3
    checksum: str = ""  #: hex sha256 of this manifest's bytes with an empty checksum

    @property
    def redacted_figures(self) -> tuple[int, str]:
        """How many of its events have no values, and the sha256 over their lines; 0 and "" without any."""
        redacted = self.redacted
        return (
            (0, "") if isinstance(redacted, msgspec.UnsetType) else (redacted.events, redacted.lines_sha256)
        )

    @property
    def file_format(self) -> FileFormat:
        """How the events are written."""
        return "parquet" if self.files and self.files[0].name.endswith(".parquet") else "jsonl"


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the one way to write these fields."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def sealed(manifest: Manifest) -> Manifest:
    """Return the manifest with its checksum."""
    bare = msgspec.structs.replace(manifest, checksum="")
    return msgspec.structs.replace(bare, checksum=hashlib.sha256(manifest_bytes(bare)).hexdigest())


def file_name(first_sequence: int, last_sequence: int, file_format: FileFormat) -> str:
    """Return what a file of events is called."""
    return f"events-{first_sequence:020}-{last_sequence:020}.{file_format}"


def is_file_name(name: str) -> bool:
    """Return whether `name` is that of a file of events."""
    return _FILE_NAME.fullmatch(name) is not None


def export_folder(path: Path) -> Path:
    """Return the folder of an export, which may also be named by its manifest or one of its files."""
    return path.parent if path.name == MANIFEST or is_file_name(path.name) else path


def manifest_sha256(folder: Path) -> str:
    """Return the hex sha256 of an export's manifest as it lies there.

    Raises: as `read_manifest`, but for what is in it.
    """
    return hashlib.sha256(_read(export_folder(folder))).hexdigest()


def named_sha256(folder: Path, manifest: Manifest) -> str:
    """Return by which sha256 the ledger and later exports name an export: of its manifest before any redaction.

    Raises: as `manifest_sha256`.
    """
    redacted = manifest.redacted
    return manifest_sha256(folder) if isinstance(redacted, msgspec.UnsetType) else redacted.manifest_sha256


def previous_of(folder: Path) -> Previous:
    """Return how the next export names the one in `folder`.

    Raises: as `read_manifest`.
    """
    manifest = read_manifest(folder)
    return Previous(
        manifest_sha256=named_sha256(folder, manifest),
        last_sequence=manifest.last_sequence,
        head_hash=manifest.head_hash,
    )


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the export in `folder`, after checking that it is whole and agrees with itself.

    The files it names are not looked at.

    Raises: NotFoundError for no such folder, NotAnExportError for one without a manifest or of a newer format,
        ExportDamagedError.
    """
    folder = export_folder(folder)
    return parse_manifest(folder / MANIFEST, _read(folder))


def parse_manifest(path: Path, data: bytes) -> Manifest:
    """Return the manifest in the bytes of a file, after the same checks. Raises: NotAnExportError, ExportDamagedError."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        _refuse_newer(path, data)
        raise ExportDamagedError(path, f"it is not the manifest of an export: {error}") from error
    if manifest.format not in _FORMATS:
        raise _newer(path, manifest.format)
    if sealed(manifest).checksum != manifest.checksum:
        raise ExportDamagedError(path, "it was altered: its checksum is another one")
    if manifest_bytes(manifest) != data:
        raise ExportDamagedError(path, "it was altered: its bytes are not those that were written")
    problem = _contradiction(manifest)
    if problem is not None:
        raise ExportDamagedError(path, f"it contradicts itself: {problem}")
    return manifest


def _read(folder: Path) -> bytes:
    path = folder / MANIFEST
    try:
        with open_file(path) as file:
            data = file.read(_MANIFEST_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not folder.exists():
            raise NotFoundError(f"there is no export {folder}") from error
        raise NotAnExportError(f"{folder} is no export, or not a whole one: it has no {MANIFEST}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NotAnExportError(f"{path} cannot be read: {reason}") from error
    if len(data) > _MANIFEST_BYTES_MAX:
        raise ExportDamagedError(path, f"it is larger than {_MANIFEST_BYTES_MAX:,} bytes")
    return data


class _Format(msgspec.Struct):
    format: int = 0


def _refuse_newer(path: Path, data: bytes) -> None:
    """Tell a newer format, whose fields we do not know, from damage."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return
    if found > _FORMATS[-1]:
        raise _newer(path, found)


def _newer(path: Path, found: int) -> NotAnExportError:
    return NotAnExportError(
        f"{path} says that the export has format {found}, and this version reads up to {_FORMATS[-1]}: "
        "read it with a newer jobledger"
    )


def _contradiction(manifest: Manifest) -> str | None:
    """Return what cannot be true in a manifest whose bytes are as they were written."""
    first, last, files = manifest.first_sequence, manifest.last_sequence, manifest.files
    for name in (manifest.selection.queue, manifest.selection.job, manifest.environment or None):
        if name is not None and not is_token(name):
            return f"{name[:80]!r} is no name"
    if manifest.environment != manifest.environment.lower():
        return f"{manifest.environment!r} is no environment"
    if not 1 <= first <= last + 1:
        return f"a range from {first} to {last}"
    if manifest.complete != manifest.selection.is_all:
        return "it is complete exactly when nothing was selected"
    if manifest.complete and manifest.count != last - first + 1:
        return f"it is called complete, and has {manifest.count:,} events of {last - first + 1:,}"
    if manifest.count != sum(file.count for file in files):
        return f"{manifest.count:,} events, and its files have {sum(file.count for file in files):,}"
    if _HASH.fullmatch(manifest.digest) is None or (_HASH.fullmatch(manifest.head_hash) is None) == bool(
        files
    ):
        return "its digest or head hash is none"
    return _wrong_redaction(manifest) or _wrong_payloads(manifest) or _wrong_file(manifest, first, last)


def _wrong_redaction(manifest: Manifest) -> str | None:
    redacted = manifest.redacted
    if (manifest.format == FORMAT_REDACTED) == isinstance(redacted, msgspec.UnsetType):
        return "what it says of redacted events is not of its format"
    if isinstance(redacted, msgspec.UnsetType):
        return None
    if not 0 < redacted.events <= manifest.count:
        return f"{redacted.events:,} redacted events of {manifest.count:,}"
    if _HASH.fullmatch(redacted.manifest_sha256) is None or _HASH.fullmatch(redacted.lines_sha256) is None:
        return "what it says of redacted events has no sha256"
    return None


def _wrong_payloads(manifest: Manifest) -> str | None:
    payloads = manifest.payloads
    if (manifest.format == 1) != isinstance(payloads, msgspec.UnsetType):
        return "what it says of large values is not of its format"
    if isinstance(payloads, msgspec.UnsetType):
        return None
    listed = payloads.included and payloads.count > 0
    lacking = payloads.gone + payloads.differs
    if min(payloads.gone, payloads.differs, payloads.bytes) < 0 or lacking > payloads.count:
        return f"{lacking:,} large values gone or different of {payloads.count:,}"
    if (_HASH.fullmatch(payloads.sha256) is not None) != listed or (payloads.bytes and not listed):
        return "it lists large values exactly when there are some in it"
    return None


def _wrong_file(manifest: Manifest, first: int, last: int) -> str | None:
    position = first - 1
    for file in manifest.files:
        name = file_name(file.first_sequence, file.last_sequence, manifest.file_format)
        if file.name != name or not is_file_name(name):
            return f"file {file.name[:80]!r} is not called {name}"
        if not position < file.first_sequence <= file.last_sequence <= last:
            return f"{name} is out of order or beyond the range"
        if not 1 <= file.count <= file.last_sequence - file.first_sequence + 1:
            return f"{name} cannot have {file.count:,} events"
        if _HASH.fullmatch(file.sha256) is None or file.bytes < 1:
            return f"{name} has no checksum or no bytes"
        position = file.last_sequence
    return None
