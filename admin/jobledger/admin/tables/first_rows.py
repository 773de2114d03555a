"""The first rows of a table of a run, for a person who looks: bounded in what is fetched, decoded and returned."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Iterator
from typing import Any, Final

import anyio.to_thread
import msgspec

from jobledger.admin.errors import TableTooLargeError
from jobledger.admin.tables.files import RecordedTable, copy_table
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.tables.extra import load, need_tables

#: A Parquet file has its directory at its end, so it is fetched whole, into memory.
FILE_BYTES_MAX: Final = 16 << 20
#: The limit for one row group, whose pages are decoded one after the other.
DECODED_BYTES_MAX: Final = 256 << 20
ANSWER_BYTES_MAX: Final = 1 << 20  #: the limit for the rows as JSON
_ROWS_AT_ONCE: Final = 10


class FirstRows(msgspec.Struct, frozen=True, kw_only=True):
    """The first rows of a table."""

    step: str  #: key of the step that made it
    name: str  #: the name of the table
    rows: int  #: how many rows it has
    columns: dict[str, str]  #: Arrow types
    items: list[dict[str, Any]]  #: the first rows, by column; fewer if they take more than 1 MiB of JSON


async def first_rows(ledger: Ledger, made: RecordedTable, limit: int) -> FirstRows:
    """Return the first rows of a table; its file is fetched into memory and checked against its digest.

    Raises: TableTooLargeError; TableExpiredError; RefusedError for values that cannot be shown;
        ConfigurationError without the extra `tables`; ServerUnreachableError.
    """
    need_tables()
    record = made.record
    if record.bytes > FILE_BYTES_MAX:
        raise TableTooLargeError(made.run, made.step, "a file", FILE_BYTES_MAX)
    file = _Memory(record.bytes)
    await copy_table(ledger, made, file)
    items = await anyio.to_thread.run_sync(_read, file, made, limit)
    return FirstRows(step=made.step, name=record.name, rows=record.rows, columns=record.schema, items=items)


class _Memory(io.BytesIO):
    """A file in memory that keeps as many bytes as are recorded, and one more: a longer file is another one."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self._bytes_max = bytes_max

    def write(self, data: Any, /) -> int:
        """Keep the recorded number of bytes and one more, so that the digest of a longer file differs."""
        super().write(memoryview(data)[: max(0, self._bytes_max + 1 - self.tell())])
        return len(data)


def _read(file: io.BytesIO, made: RecordedTable, limit: int) -> list[dict[str, Any]]:
    """Return the first rows of a file as JSON has them. Raises: as `first_rows`."""
    if hashlib.sha256(file.getbuffer()).hexdigest() != made.record.sha256:
        raise made.expired("differs")
    file.seek(0)
    found: list[dict[str, Any]] = []
    room = ANSWER_BYTES_MAX
    for row in itertools.islice(_rows(file, made), limit):
        text = msgspec.json.encode(row, enc_hook=_as_text)
        room -= len(text)
        if room < 0:
            break
        found.append(msgspec.json.decode(text))
    if room < 0 and not found:
        raise TableTooLargeError(made.run, made.step, "a row", ANSWER_BYTES_MAX)
    return found


def _rows(file: io.BytesIO, made: RecordedTable) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file; of a row group no more than a few at a time. Raises: as `first_rows`."""
    with load("pyarrow.parquet").ParquetFile(file) as parquet:
        for group in range(parquet.num_row_groups):
            if parquet.metadata.row_group(group).total_byte_size > DECODED_BYTES_MAX:
                raise TableTooLargeError(made.run, made.step, "a row group", DECODED_BYTES_MAX)
            batches = parquet.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group], use_threads=False)
            for batch in batches:
                names = batch.schema.names
                columns = [
                    _values(column, name, made) for name, column in zip(names, batch.columns, strict=True)
                ]
                yield from (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(column: Any, name: str, made: RecordedTable) -> list[Any]:
    """Return the values of a column; those that Python cannot hold, such as the year 20000, as text.

    Raises: RefusedError.
    """
    failed = (load("pyarrow").ArrowException, ValueError, OverflowError)
    try:
        values: list[Any] = column.to_pylist()
    except failed:
        try:
            values = column.cast("string").to_pylist()
        except failed as error:
            command = f"`jobledger tables export {made.run} {made.step} FILE`"
            raise RefusedError(
                f"table {made.step!r} of run {made.run} has values of column {name!r}, of type {column.type}, that "
                f"cannot be shown: {command} copies it"
            ) from error
    return values


def _as_text(value: Any) -> str:
    """Return a value that JSON has no form for, such as a time of pandas, as text."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)
