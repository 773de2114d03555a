"""The files of an export as JSON Lines: an event a line, its stored bytes verbatim; written, checked and read.

What is common to both formats is here too: a row, and what is wrong where there is none. Parquet is in
`export.parquet`.
"""

from __future__ import annotations

import contextlib
import hashlib
from bisect import bisect_right
from collections.abc import Generator, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec

from jobledger.audit.errors import ExportDamagedError
from jobledger.audit.export.manifest import ExportedFile, FileFormat, file_name
from jobledger.audit.export.remote import at_hand
from jobledger.ledger.files import open_file, open_to_write, sync_file
from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.codec import Message, is_digest
from jobledger.ledger.model.errors import CorruptLedgerError
from jobledger.ledger.model.times import time_text

#: A file is full when it holds this many bytes.
FILE_BYTES_MAX: Final = 64 << 20
#: The largest message any server takes is 64 MiB, which base64 makes a third larger.
LINE_BYTES_MAX: Final = 96 << 20
_BUFFER_BYTES: Final = 1 << 20
_INDEX_EVERY: Final = 512  # lines; at most this many are read to find one event
_DRAFT_SUFFIX: Final = ".part"
_READ_ROWS: Final = 256
_READ_BYTES: Final = 4 << 20


class Row(msgspec.Struct, frozen=True, gc=False):
    """One event as a file of an export has it."""

    number: int  #: line or row, from 1
    stream_sequence: int
    stored_at: datetime
    subject: str
    data: bytes
    redacted: str = ""  #: hex sha256 of the bytes before the values were taken out; "": they are as stored

    @property
    def sha256(self) -> bytes:
        """The sha256 of the event as the ledger had it."""
        return bytes.fromhex(self.redacted) if self.redacted else hashlib.sha256(self.data).digest()


class Damage(msgspec.Struct, frozen=True, gc=False):
    """A line or row that cannot be read."""

    number: int
    problem: str


class Totals:
    """What an export says of all its events, computed as they go by."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._newest = b""
        self.count = 0

    def add(self, sha256: bytes) -> None:
        """Take in the sha256 of the next event as it is stored."""
        self._newest = sha256
        self._digest.update(self._newest)
        self.count += 1

    @property
    def figures(self) -> tuple[int, str, str]:
        """Count, digest and head hash; the last is "" before the first event."""
        return self.count, self._digest.hexdigest(), self._newest.hex()


class Redactions:
    """What an export says of its events that have no values any more, computed as they go by."""

    def __init__(self) -> None:
        self._lines = hashlib.sha256()
        self.count = 0

    def add(self, message: Message) -> None:
        """Take in the next event, if it is such a one."""
        if message.redacted:
            self._lines.update(encode_line(message))
            self.count += 1

    @property
    def figures(self) -> tuple[int, str]:
        """How many there are, and the hex sha256 over their lines; 0 and "" without any."""
        return (self.count, self._lines.hexdigest()) if self.count else (0, "")


class EventFile(Protocol):
    """A file of an export, to be read."""

    path: Path
    entry: ExportedFile

    def check(self) -> str | None:
        """Read all of it, and return how it differs from the manifest, or None.

        Raises: ArchiveAbsentError, where it lies elsewhere and cannot be fetched.
        """
        ...

    def rows(self, from_sequence: int = 0) -> Generator[Row | Damage, None, None]:
        """Yield its events from a sequence on; close it when leaving early."""
        ...


class EventFileWriter(Protocol):
    """A file of an export, being written."""

    size: int  #: bytes so far, about

    def add(self, message: Message) -> None:
        """Append one event."""
        ...

    def close(self) -> ExportedFile:
        """Bring everything to the disk under the file's own name, and return its line of the manifest."""
        ...

    def abandon(self) -> None:
        """Let go of the file; what is in it is worth nothing."""
        ...


def next_rows(rows: Iterator[Row | Damage], limit: int = _READ_ROWS) -> list[Row | Damage]:
    """Return the next rows, up to a number of them and a number of bytes; [] at the end."""
    taken: list[Row | Damage] = []
    size = 0
    for row in islice(rows, limit):
        taken.append(row)
        size += len(row.data) if isinstance(row, Row) else 0
        if size >= _READ_BYTES:
            break
    return taken


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stream_sequence: int
    stored_at: datetime
    subject: str
    redacted: str = ""
    data: msgspec.Raw = msgspec.Raw()
    data_base64: bytes | None = None


class _Place(msgspec.Struct):
    stream_sequence: int


_line_decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)
_place_decoder: msgspec.json.Decoder[_Place] = msgspec.json.Decoder(_Place)
_encode = msgspec.json.Encoder().encode


def encode_line(message: Message) -> bytes:
    """Return an event's line with its line end; the stored bytes stand in it as they are where JSON can hold them."""
    head = b'{"stream_sequence":%d,"stored_at":"%s","subject":%s,' % (
        message.stream_sequence,
        time_text(message.stored_at).encode(),
        _encode(message.subject),
    )
    if message.redacted:
        head += b'"redacted":"%s",' % message.redacted.encode()
    line = b'%s"data":%s}\n' % (head, message.data)
    if _is_verbatim(line, message.data):
        return line
    return b'%s"data_base64":%s}\n' % (head, _encode(message.data))


def _is_verbatim(line: bytes, data: bytes) -> bool:
    """Whether a reader gets back from the line exactly the bytes that were put in."""
    if b"\n" in data or b"\r" in data:
        return False
    try:
        line.decode()
        return bytes(_line_decoder.decode(line).data) == data
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False


def decode_line(line: bytes, number: int) -> Row | Damage:
    """Return the event of a line."""
    if len(line) > LINE_BYTES_MAX:
        return Damage(number, f"the line has more than {LINE_BYTES_MAX:,} bytes")
    if not line.endswith(b"\n"):
        return Damage(number, "the line has no end: the file was cut off")
    try:
        found = _line_decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return Damage(number, f"the line cannot be read: {error}")
    data = bytes(found.data)
    if bool(data) == (found.data_base64 is not None):
        return Damage(number, "the line has to have either `data` or `data_base64`")
    if found.stored_at.tzinfo is None or found.stream_sequence < 1:
        return Damage(number, "the line's time has no zone, or its stream sequence is none")
    if found.redacted and not is_digest(found.redacted):
        return Damage(number, "what it says of the bytes before its redaction is no sha256")
    if found.data_base64 is not None:
        data = found.data_base64
    return Row(number, found.stream_sequence, found.stored_at, found.subject, data, found.redacted)


class JsonLinesWriter:
    """Writes one file; its name follows from the events, so it gets it at the end."""

    file_format: FileFormat = "jsonl"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"events.{self.file_format}{_DRAFT_SUFFIX}"
        self._file: IO[bytes] = open_to_write(self._path, "xb", buffer_bytes=_BUFFER_BYTES)
        self._hash = hashlib.sha256()
        self._count = self._first = self._last = 0
        self.size = 0

    def add(self, message: Message) -> None:
        """Append one event; see `EventFileWriter.add`."""
        line = encode_line(message)
        self._file.write(line)
        self._hash.update(line)
        self.size += len(line)
        self._count += 1
        self._first = self._first or message.stream_sequence
        self._last = message.stream_sequence

    def close(self) -> ExportedFile:
        """Finish the file; see `EventFileWriter.close`."""
        with self._file as file:
            sync_file(file)
        name = file_name(self._first, self._last, self.file_format)
        self._path.rename(self._folder / name)
        return ExportedFile(
            name=name,
            sha256=self._hash.hexdigest(),
            bytes=self.size,
            count=self._count,
            first_sequence=self._first,
            last_sequence=self._last,
        )

    def abandon(self) -> None:
        """Let go of the file; see `EventFileWriter.abandon`."""
        with contextlib.suppress(OSError):  # the rest of the buffer may not fit on the disk
            self._file.close()


class JsonLinesFile:
    """Reads one file; after a check it has an index of the places of some events."""

    def __init__(self, path: Path, entry: ExportedFile) -> None:
        self.path = path
        self.entry = entry
        self._places: list[tuple[int, int, int]] = []  # stream sequence, number and offset of some lines

    def check(self) -> str | None:
        """Compare the file with its manifest; see `EventFile.check`."""
        total, number, offset = hashlib.sha256(), 0, 0
        places: list[tuple[int, int, int]] = []
        try:
            at_hand(self.path)
            with open_file(self.path, buffer_bytes=_BUFFER_BYTES) as file:
                while line := file.readline(LINE_BYTES_MAX + 1):
                    if number % _INDEX_EVERY == 0:
                        sequence = _sequence_of(line)
                        if sequence:
                            places.append((sequence, number, offset))
                    total.update(line)
                    offset += len(line)
                    number += 1
        except OSError as error:
            return unreadable(error)
        if total.hexdigest() == self.entry.sha256:
            self._places = places  # sorted by sequence, since the file is as it was written
            return None
        return altered(offset, self.entry)

    def rows(self, from_sequence: int = 0) -> Generator[Row | Damage, None, None]:
        """Yield the events; see `EventFile.rows`."""
        number, offset = self._place_before(from_sequence)
        if (problem := gone(self)) is not None:
            yield Damage(number + 1, problem)
            return
        try:
            with open_file(self.path, buffer_bytes=_BUFFER_BYTES) as file:
                file.seek(offset)
                while line := file.readline(LINE_BYTES_MAX + 1):
                    number += 1
                    row = decode_line(line, number)
                    if isinstance(row, Damage) or row.stream_sequence >= from_sequence:
                        yield row
        except OSError as error:
            yield Damage(number + 1, unreadable(error))

    def _place_before(self, sequence: int) -> tuple[int, int]:
        at = bisect_right(self._places, sequence, key=lambda place: place[0])
        return self._places[at - 1][1:] if at else (0, 0)


def gone(file: EventFile) -> str | None:
    """Return what is wrong with a file that is not here any more, None where nothing is.

    One that lies elsewhere may have been removed here since it was checked: it is fetched, and checked again.
    """
    return None if file.path.exists() else file.check()


def _sequence_of(line: bytes) -> int:
    try:
        return _place_decoder.decode(line).stream_sequence
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return 0


def unreadable(error: OSError) -> str:
    """Return what is wrong with a file that the system does not give."""
    return "it is missing" if isinstance(error, FileNotFoundError) else f"it cannot be read: {error.strerror}"


def altered_size(size: int, wanted: int) -> str:
    """Return what is wrong with files that have another size."""
    return f"it has {size:,} bytes, and the manifest says {wanted:,}"


def altered(size: int, entry: ExportedFile) -> str:
    """Return what is wrong with a file whose checksum is another one."""
    if size != entry.bytes:
        return altered_size(size, entry.bytes)
    return "it was altered: its checksum is not what the manifest says"


def as_message(file: EventFile, row: Row | Damage) -> Message:
    """Return the event of a row.

    Raises: ExportDamagedError for what cannot be read as a row; UnknownEventError or MalformedEventError, with file and
        line, for what is no event of this ledger.
    """
    if isinstance(row, Damage):
        raise ExportDamagedError(file.path, row.problem, line=row.number)
    try:
        message = read_message(row.subject, row.data, row.stream_sequence, row.stored_at)
        return msgspec.structs.replace(message, redacted=row.redacted) if row.redacted else message
    except CorruptLedgerError as error:
        sentence = f"{file.path}, line {row.number:,}: {error}"
        raise type(error)(
            sentence, stream_sequence=error.stream_sequence, next_sequence=error.next_sequence
        ) from error
