"""Rows into Parquet files and out of them, with pyarrow. What is held in memory is bounded."""

from __future__ import annotations

import contextlib
import hashlib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import (
    IO,
    Any,
    Final,
    Literal,
    Protocol,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)
from uuid import UUID

import msgspec

from jobledger.ledger.files import open_file
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.tables.extra import load
from jobledger.ledger.tables.record import ProducedFile

# The columns of a table by the fields of a Struct: Arrow types of Python's.

_UNION: Final = (Union, types.UnionType)
_DECIMAL_DIGITS: Final = (38, 10)  # in all, and behind the point


def columns_of(pa: Any, row: type[Any]) -> Any:
    """Return the Arrow schema of a Struct's fields; every column may have no value.

    `pa`: the module pyarrow. Raises: InvalidInputError for what is no Struct, and for a field that no column can hold.
    """
    given = cast("object", row)
    if not (isinstance(given, type) and issubclass(given, msgspec.Struct)):
        raise InvalidInputError(f"row must be a msgspec.Struct, got {row!r}")
    return pa.schema(_fields(pa, given))


def _fields(pa: Any, row: type[msgspec.Struct]) -> list[Any]:
    hints = get_type_hints(row)
    return [
        pa.field(name, _arrow(pa, hints[name], f"{row.__name__}.{name}")) for name in row.__struct_fields__
    ]


def _arrow(pa: Any, hint: Any, where: str) -> Any:
    """Return the Arrow type of an annotation. Raises: InvalidInputError."""
    origin, given = get_origin(hint), get_args(hint)
    if origin in _UNION:
        left = [each for each in given if each is not type(None)]
        if len(left) == 1:
            return _arrow(pa, left[0], where)
    elif origin in (list, tuple, set, frozenset) and given:
        return pa.list_(_arrow(pa, given[0], where))
    elif origin is Literal:
        return _arrow(pa, type(given[0]), where)
    elif isinstance(hint, type):
        found = _of_class(pa, hint)
        if found is not None:
            return found
    raise InvalidInputError(
        f"{where}: no column can hold {hint!r}: use bool, int, float, str, bytes, date, datetime, time, timedelta, "
        "Decimal, UUID, an enum, a Struct, or a list of one of them"
    )


def _of_class(pa: Any, kind: type[Any]) -> Any:
    if issubclass(kind, msgspec.Struct):
        return pa.struct(_fields(pa, kind))
    if issubclass(kind, Enum):
        return pa.int64() if issubclass(kind, int) else pa.string()
    return {
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        str: pa.string(),
        bytes: pa.binary(),
        datetime: pa.timestamp("us", tz="UTC"),
        date: pa.date32(),
        time: pa.time64("us"),
        timedelta: pa.duration("us"),
        Decimal: pa.decimal128(*_DECIMAL_DIGITS),
        UUID: pa.string(),
    }.get(kind)


T = TypeVar("T")

#: Rows turned into columns at once; rows of a row group; bytes of columns after which a row group is written.
ROWS_AT_ONCE: Final = 2_000
ROW_GROUP_ROWS: Final = 100_000
_ROW_GROUP_BYTES: Final = 32 << 20
_READ_ROWS: Final = 10_000
_CHUNK_BYTES: Final = 1 << 20


@runtime_checkable
class ArrowRows(Protocol):
    """A table or a batch of pyarrow."""

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        ...

    @property
    def schema(self) -> Any:
        """The columns."""
        ...


#: What `run.write` takes: rows, or tables and batches of pyarrow.
RowLike = msgspec.Struct | Mapping[str, Any] | ArrowRows


class RowWriter:
    """Writes rows into one file; all of them have the same columns."""

    def __init__(self, file: IO[bytes], *, name: str, row: type[Any] | None) -> None:
        """`name`: of the table, for messages. `row`: a Struct whose fields are the columns; None: as the first rows are."""
        self._pa, self._pq = load("pyarrow"), load("pyarrow.parquet")
        self._file = file
        self._name = name
        self._schema: Any = ()  # until the columns are known
        self._fields: tuple[str, ...] = ()
        self._writer: Any = None
        self._waiting: list[Any] = []  #: record batches of the next row group
        self._waiting_rows = self._waiting_bytes = 0
        if row is not None:
            self._begin(columns_of(self._pa, row))

    def _begin(self, schema: Any) -> None:
        if not len(schema):
            raise InvalidInputError(f"table {self._name!r}: its rows have no columns")
        self._schema = schema
        self._fields = tuple(schema.names)
        self._writer = self._pq.ParquetWriter(self._file, schema, compression="zstd")

    def add(self, rows: Sequence[RowLike]) -> None:
        """Write some rows. Raises: InvalidInputError for those that do not fit; OSError."""
        plain: list[Any] = []
        for row in rows:
            if isinstance(row, msgspec.Struct | Mapping):
                plain.append(row)
            elif isinstance(row, self._pa.Table | self._pa.RecordBatch):
                self._add_plain(plain)
                plain = []
                self._add_arrow(row)
            else:
                raise InvalidInputError(
                    f"table {self._name!r}: a row is a msgspec.Struct, a dict, or rows of pyarrow, got {type(row).__name__}"
                )
        self._add_plain(plain)

    def _add_plain(self, rows: Sequence[Any]) -> None:
        if not rows:
            return
        if self._writer is None:
            self._begin(self._schema_of(rows))
        try:
            columns = [
                self._pa.array([_value(row, name) for row in rows], type=self._schema.field(name).type)
                for name in self._fields
            ]
            _refuse_unknown(rows, self._fields)
        except (
            self._pa.ArrowException,
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            OverflowError,
        ) as error:
            raise self._unfit(error) from error
        self._keep(self._pa.record_batch(columns, schema=self._schema))

    def _schema_of(self, rows: Sequence[Any]) -> Any:
        first = rows[0]
        if isinstance(first, msgspec.Struct):
            return columns_of(self._pa, type(first))
        try:
            names = list(dict.fromkeys(str(key) for row in rows for key in row))
            columns = {name: self._pa.array([_value(row, name) for row in rows]) for name in names}
        except (self._pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._unfit(error) from error
        nothing = [name for name, column in columns.items() if self._pa.types.is_null(column.type)]
        if nothing:
            raise InvalidInputError(
                f"table {self._name!r}: column {nothing[0]!r} has no value in the first {len(rows):,} rows, so its type "
                "is not known: name a Struct of the rows, run.write(..., row=Row)"
            )
        return self._pa.schema([(name, column.type) for name, column in columns.items()])

    def _add_arrow(self, rows: Any) -> None:
        if self._writer is None:
            self._begin(rows.schema.remove_metadata())
        try:
            table = self._pa.Table.from_batches([rows]) if isinstance(rows, self._pa.RecordBatch) else rows
            table = table.select(list(self._fields)).cast(self._schema)
        except (self._pa.ArrowException, KeyError, ValueError) as error:
            raise self._unfit(error) from error
        for batch in table.to_batches(max_chunksize=ROW_GROUP_ROWS):
            self._keep(batch)

    def _unfit(self, error: Exception) -> InvalidInputError:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        return InvalidInputError(
            f"table {self._name!r}: a row does not fit its columns ({', '.join(self._fields[:20]) or 'not known yet'}): {said[:300]}"
        )

    def _keep(self, batch: Any) -> None:
        """Keep rows until there are enough for a row group: its borders follow from the rows alone."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = self._pa.Table.from_batches(self._waiting, schema=self._schema)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def __enter__(self) -> Self:
        """Write within the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the file, unless the block failed. Raises: as `close`."""
        if kind is None:
            self.close()
        elif self._writer is not None:
            with contextlib.suppress(Exception):  # what was written is thrown away
                self._writer.close()

    def close(self) -> None:
        """Finish the file. Raises: InvalidInputError where nothing says what its columns are, OSError."""
        if self._writer is None:
            raise InvalidInputError(
                f"table {self._name!r} has no rows, so its columns are not known: name a Struct of them, "
                "run.write(..., row=Row)"
            )
        self._flush()
        self._writer.close()


def _value(row: Any, name: str) -> Any:
    value: Any = getattr(row, name) if isinstance(row, msgspec.Struct) else row.get(name)
    return value if type(value) in _PLAIN else _plain(value)


def _plain(value: Any) -> Any:
    """Return what Arrow takes for a value: Structs, enums and the like as what they are in JSON, times as they are."""
    return msgspec.to_builtins(value, builtin_types=_BUILTIN)


_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
_BUILTIN: Final = (bytes, datetime, date, time, timedelta, Decimal)


def _refuse_unknown(rows: Sequence[Any], fields: tuple[str, ...]) -> None:
    known = frozenset(fields)
    for row in rows:
        if isinstance(row, Mapping) and not known.issuperset(cast("Mapping[str, Any]", row)):
            unknown = next(str(key) for key in cast("Mapping[str, Any]", row) if key not in known)
            raise ValueError(f"column {unknown!r} is not among them")


def batches_of(rows: Iterable[RowLike]) -> Iterator[list[RowLike]]:
    """Yield rows in bounded lists; a table or batch of pyarrow ends its list."""
    some: list[RowLike] = []
    for row in rows:
        some.append(row)
        if len(some) >= ROWS_AT_ONCE or not isinstance(row, msgspec.Struct | Mapping):
            yield some
            some = []
    if some:
        yield some


def describe(path: Path) -> ProducedFile:
    """Return what a finished file is. Raises: OSError."""
    digest, size = hashlib.sha256(), 0
    with open_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
        file.seek(0)
        with load("pyarrow.parquet").ParquetFile(file) as parquet:
            schema = {field.name: str(field.type) for field in parquet.schema_arrow}
            rows = parquet.metadata.num_rows
    return ProducedFile(sha256=digest.hexdigest(), rows=rows, bytes=size, schema=schema)


def read_rows(path: Path, row: type[T], *, name: str) -> list[T]:
    """Return all rows of a file as values of a type. Raises: InvalidInputError for one that is not, OSError."""
    found: list[T] = []
    with open_file(path) as file, load("pyarrow.parquet").ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(batch_size=_READ_ROWS):
            try:
                found += msgspec.convert(batch.to_pylist(), list[row])  # type: ignore[valid-type]
            except msgspec.ValidationError as error:
                raise InvalidInputError(
                    f"table {name!r} has rows that are no {row.__name__}: {error}"
                ) from error
    return found


def read_arrow(path: Path) -> Any:
    """Return a file as a table of pyarrow. Raises: OSError."""
    with open_file(path) as file:
        return load("pyarrow.parquet").read_table(file)
