"""The files of an export as Parquet, for tools that read tables: the stored bytes as binary, and typed columns beside.

The only module that knows pyarrow, which is an extra. Row groups are bounded, so is what a writer or reader holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
from collections.abc import Generator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from jobledger.audit.export.files import Damage, Row, altered, gone, unreadable
from jobledger.audit.export.manifest import ExportedFile, FileFormat, file_name
from jobledger.audit.export.remote import at_hand
from jobledger.ledger.files import open_file, open_to_write, sync_file
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import ConfigurationError

# What the rows of an export in Parquet say beside the stored bytes, for tools that read tables.
# The columns follow from the bytes alone: whoever checks an export computes them again. An event of a newer version has
# them too, as far as it has the fields.

_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Columns(NamedTuple):
    """An event's own fields; None where it has none, and everywhere for bytes that are no event."""

    type: str | None = None
    job: str | None = None
    queue: str | None = None
    task: str | None = None
    attempt: int | None = None
    worker: str | None = None
    at: datetime | None = None
    error_type: str | None = None
    tenant: str | None = None
    correlation: str | None = None


class _Error(msgspec.Struct, gc=False):
    type: str


class _Event(msgspec.Struct, gc=False):
    type: str | None = None
    job: str | None = None
    queue: str | None = None
    task: str | None = None
    attempt: _Number | None = None
    worker: str | None = None
    at: _Time | None = None
    error: _Error | None = None
    tenant: str | None = None
    correlation: str | None = None

    @property
    def error_type(self) -> str | None:
        """The type of its error."""
        return None if self.error is None else self.error.type


_NOTHING: Final = Columns()
_read: Final = operator.attrgetter(*Columns._fields)
_decode: Final = msgspec.json.Decoder(_Event).decode


def columns_of(data: bytes) -> Columns:
    """Return the columns of a stored event."""
    try:
        event = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _NOTHING
    return Columns(*_read(event))


_ROW_GROUP_ROWS: Final = 4_096
_ROW_GROUP_BYTES: Final = 8 << 20
_READ_ROWS: Final = 512
_STORED: Final = 4  # columns for what the ledger holds; the others follow from the last of these
_CHUNK_BYTES: Final = 1 << 20
_DRAFT_SUFFIX: Final = ".part"


def need_pyarrow() -> tuple[Any, Any]:
    """Return the modules `pyarrow` and `pyarrow.parquet`.

    Raises: ConfigurationError when they are not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.parquet as pq  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            "exports in Parquet need pyarrow: pip install 'jobledger[parquet]'"
        ) from error
    return pa, pq


def _schema(pa: Any) -> Any:
    time = pa.timestamp("us", tz="UTC")
    of_columns = {"attempt": pa.int64(), "at": time}
    return pa.schema(
        [
            pa.field("stream_sequence", pa.int64(), nullable=False),
            pa.field("stored_at", time, nullable=False),
            pa.field("subject", pa.string(), nullable=False),
            pa.field("data", pa.binary(), nullable=False),
            *(pa.field(name, of_columns.get(name, pa.string())) for name in Columns._fields),
        ]
    )


def _is_known(pa: Any, found: Any) -> bool:
    """Whether a file has the columns of an export, or of one that was written before it had more than the bytes."""
    known = _schema(pa)
    return bool(found.equals(known) or found.equals(pa.schema(list(known)[:_STORED])))


class ParquetWriter:
    """Writes one file, a row group at a time; its name follows from the events, so it gets it at the end."""

    file_format: FileFormat = "parquet"

    def __init__(self, folder: Path) -> None:
        self._pa, pq = need_pyarrow()
        self._folder = folder
        self._path = folder / f"events.{self.file_format}{_DRAFT_SUFFIX}"
        self._schema = _schema(self._pa)
        self._file = open_to_write(self._path, "xb")
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        self._rows: list[Message] = []
        self._waiting_bytes = 0
        self._count = self._first = self._last = 0
        self.size = 0

    def add(self, message: Message) -> None:
        """Append one event; see `EventFileWriter.add`."""
        self._rows.append(message)
        self._waiting_bytes += len(message.data)
        self.size += len(message.data) + len(message.subject)
        self._count += 1
        self._first = self._first or message.stream_sequence
        self._last = message.stream_sequence
        if len(self._rows) >= _ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows, self._waiting_bytes = self._rows, [], 0
        if not rows:
            return
        columns = [
            [row.stream_sequence for row in rows],
            [row.stored_at for row in rows],
            [row.subject for row in rows],
            [row.data for row in rows],
            *zip(*(columns_of(row.data) for row in rows), strict=True),
        ]
        arrays = [
            self._pa.array(column, type=field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        batch = self._pa.record_batch(arrays, schema=self._schema)
        self._writer.write_batch(batch, row_group_size=_ROW_GROUP_ROWS)

    def close(self) -> ExportedFile:
        """Finish the file; see `EventFileWriter.close`."""
        self._flush()
        self._writer.close()
        sync_file(self._file)
        self._file.close()
        digest, size = hash_file(self._path)
        name = file_name(self._first, self._last, self.file_format)
        self._path.rename(self._folder / name)
        return ExportedFile(
            name=name,
            sha256=digest,
            bytes=size,
            count=self._count,
            first_sequence=self._first,
            last_sequence=self._last,
        )

    def abandon(self) -> None:
        """Let go of the file; see `EventFileWriter.abandon`."""
        with contextlib.suppress(Exception):  # the disk may be full: nothing of it is kept anyway
            self._writer.close()
            self._file.close()


def hash_file(path: Path) -> tuple[str, int]:
    """Return the sha256 (hex) and the size of a file, read in pieces. Raises: OSError."""
    total, size = hashlib.sha256(), 0
    with open_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            total.update(chunk)
            size += len(chunk)
    return total.hexdigest(), size


class ParquetFile:
    """Reads one file; row groups before the events that are wanted are passed over."""

    def __init__(self, path: Path, entry: ExportedFile) -> None:
        self._pa, self._pq = need_pyarrow()
        self.path = path
        self.entry = entry

    def check(self) -> str | None:
        """Compare the file with its manifest; see `EventFile.check`."""
        try:
            at_hand(self.path)
            found, size = hash_file(self.path)
        except OSError as error:
            return unreadable(error)
        return None if found == self.entry.sha256 else altered(size, self.entry)

    def rows(self, from_sequence: int = 0) -> Generator[Row | Damage, None, None]:
        """Yield the events; see `EventFile.rows`.

        What pyarrow raises for a damaged file is of many kinds; each is told as damage, after which nothing comes.
        """
        number = 0
        if (problem := gone(self)) is not None:
            yield Damage(1, problem)
            return
        try:
            with self._pq.ParquetFile(self.path) as file:
                if not _is_known(self._pa, file.schema_arrow):
                    yield Damage(0, "its columns are not those of an export")
                    return
                for group in range(file.metadata.num_row_groups):
                    about = file.metadata.row_group(group)
                    if not self._may_hold(about, from_sequence):
                        number += about.num_rows
                        continue
                    for batch in file.iter_batches(batch_size=_READ_ROWS, row_groups=[group]):
                        for row in _rows_of(batch, number):
                            if isinstance(row, Damage) or row.stream_sequence >= from_sequence:
                                yield row
                        number += batch.num_rows
        except OSError as error:
            problem = (
                unreadable(error) if error.errno else f"it is not a Parquet file that can be read: {error}"
            )
            yield Damage(number + 1, problem)
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes pyarrow raise
            yield Damage(number + 1, f"it is not a Parquet file that can be read: {error}")

    def _may_hold(self, group: Any, from_sequence: int) -> bool:
        statistics = group.column(0).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        return bool(statistics.max >= from_sequence)


def _rows_of(batch: Any, before: int) -> Iterator[Row | Damage]:
    columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
    for number, values in enumerate(zip(*columns, strict=True), before + 1):
        yield _row(number, values)


def _row(number: int, values: tuple[Any, ...]) -> Row | Damage:
    sequence, stored_at, subject, data = values[:_STORED]
    if not (
        isinstance(sequence, int)
        and sequence > 0
        and isinstance(stored_at, datetime)
        and isinstance(subject, str)
        and isinstance(data, bytes)
    ):
        return Damage(number, "a value is missing in the row")
    if len(values) > _STORED and values[_STORED:] != columns_of(data):
        return Damage(number, "its columns do not say what its stored bytes say")
    return Row(number, sequence, stored_at, subject, data)
