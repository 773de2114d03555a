"""The columns of a table by the fields of a Struct: Arrow types of Python's."""

from __future__ import annotations

import types
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from jobledger.ledger.model.errors import InvalidInputError

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
