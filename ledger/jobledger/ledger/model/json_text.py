"""JSON text that every reader can hold: values are written as inputs and results, or refused.

msgspec writes NaN as null, and nesting beyond a reader's stack breaks the reader; both are refused here, at the
entry, so that a stored value can always be read back as it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.foreign_types import is_model, to_builtin

DEPTH_MAX: Final = 100
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', flags=re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_encoder = msgspec.json.Encoder(enc_hook=to_builtin)
_sorted_encoder = msgspec.json.Encoder(enc_hook=to_builtin, order="deterministic")


def encode_value(value: Any, *, what: str) -> bytes:
    """Return `value` as JSON text.

    Raises: InvalidInputError for values that JSON cannot hold: NaN, infinities, lone surrogates, foreign types,
    nesting deeper than 100.
    """
    try:
        text = _encoder.encode(value)
        if text.count(b"[") + text.count(b"{") > DEPTH_MAX:
            _check_depth(text, what)
        if value is not None and b"null" in text:  # a null may stand for a NaN
            _check_numbers(value, what)
    except InvalidInputError:
        raise
    except Exception as error:  # the value may run user code, or be changed by a thread meanwhile
        message = f"the {what} cannot be written as JSON: {_reason(error)}"
        raise InvalidInputError(message) from error
    return text


def encode_sorted(value: Any, *, what: str) -> bytes:
    """Return `value` as JSON text that is the same for equal values: names of objects and members of sets are sorted.

    Raises: InvalidInputError.
    """
    try:
        return _sorted_encoder.encode(value)
    except Exception as error:  # the value may run user code
        message = f"the {what} cannot be written as JSON: {_reason(error)}"
        raise InvalidInputError(message) from error


def check_text(text: bytes, *, what: str) -> bytes:
    """Return `text` if it is one JSON value that every reader can hold.

    Raises: InvalidInputError.
    """
    if text.count(b"[") + text.count(b"{") > DEPTH_MAX:
        _check_depth(text, what)
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        message = f"the {what} is not valid JSON: {_reason(error)}"
        raise InvalidInputError(message) from error
    return text


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"it is nested deeper than {DEPTH_MAX} levels"
    if isinstance(error, UnicodeError):
        return "it holds a character that is not valid Unicode (a lone surrogate)"
    return str(error) or type(error).__name__


def _check_depth(text: bytes, what: str) -> None:
    """Count brackets outside strings; only texts with many of them come here."""
    depth = 0
    for byte in _STRINGS.sub(b"", text).translate(None, _NOT_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > DEPTH_MAX:
            message = f"the {what} is nested deeper than {DEPTH_MAX} levels"
            raise InvalidInputError(message)


def _check_numbers(value: Any, what: str) -> None:
    """Look for a float that JSON cannot write; depth was checked before, so recursion is safe."""
    if isinstance(value, float) and not math.isfinite(value):
        message = f"the {what} holds {value!r}, which JSON cannot say"
        raise InvalidInputError(message)
    if isinstance(value, Mapping):
        _check_each(value.values(), what)  # pyright: ignore[reportUnknownArgumentType] # of anything
    elif isinstance(value, list | tuple | set | frozenset):
        _check_each(value, what)  # pyright: ignore[reportUnknownArgumentType] # of anything
    elif isinstance(value, msgspec.Struct):
        _check_each([getattr(value, name) for name in value.__struct_fields__], what)
    elif is_model(value):  # pyright: ignore[reportUnknownArgumentType] # of anything
        _check_each(vars(value).values(), what)
    else:  # dataclasses and attrs classes are written as objects, too
        fields = [*getattr(value, "__dataclass_fields__", ()), *_attrs_names(value)]
        _check_each([getattr(value, name) for name in fields if hasattr(value, name)], what)


def _attrs_names(value: Any) -> list[str]:
    return [field.name for field in getattr(value, "__attrs_attrs__", ())]


def _check_each(values: Iterable[Any], what: str) -> None:
    for value in values:
        _check_numbers(value, what)
