"""One field of a JSON text as a condition in SQL: `field=value` with a name or a JSON pointer (RFC 6901)."""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

from jobledger.projections.errors import ProjectionConfigError

_TOKENS_MAX: Final = 16
_LENGTH_MAX: Final = 1_000
#: Each number in a pointer may be an index in a list or a name, so each doubles the paths to compare.
_NUMBERS_MAX: Final = 3
_LITERALS: Final = {"true", "false", "null"}
Condition = tuple[str, tuple[object, ...]]


def field_condition(column: str, field: str, value: str) -> Condition:
    """Return the condition that a field of the JSON text in `column` has a value, and what is bound in it.

    `field`: a name of the outermost object, or a pointer that begins with `/`. `value`: a string, or what is written so
    in JSON: `42`, `true`, `null`. A column that holds no JSON, or too deep one, does not fit.

    Raises: ProjectionConfigError.
    """
    found = [_equals(column, path, value) for path in _paths(field)]
    terms, values = " OR ".join(term for term, _ in found), [each for _, bound in found for each in bound]
    # CASE: SQLite may evaluate AND in any order, and a text that is not JSON fails the whole statement.
    return f"CASE WHEN json_valid({column}) THEN ({terms}) ELSE 0 END", tuple(values)


def _equals(column: str, path: str, value: str) -> Condition:
    """Return the comparison of one path: first by value, which excludes nearly every row, then by type."""
    found, kind = f"json_extract({column}, ?)", f"json_type({column}, ?)"
    if value in _LITERALS:
        return f"({found} = ? AND {kind} = 'text') OR {kind} = ?", (path, value, path, path, value)
    number = _number(value)
    if number is None:
        return f"({found} = ? AND {kind} = 'text')", (path, value, path)
    # SQLite has 1 for true, and takes no number for equal to a text.
    return f"({found} IN (?, ?) AND {kind} IN ('text', 'integer', 'real'))", (path, value, number, path)


def _number(value: str) -> int | float | None:
    try:
        found = msgspec.json.decode(value, type=int | float)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, float) or -(1 << 63) <= found < 1 << 63 else float(found)


def _paths(field: str) -> list[str]:
    """Return SQLite's paths to what a name or pointer means."""
    if len(field) > _LENGTH_MAX or not field:
        raise ProjectionConfigError(f"an input field has 1 to {_LENGTH_MAX} characters, got {len(field)}")
    if not field.startswith("/"):
        return [f"${_label(field, field)}"]
    tokens = [each.replace("~1", "/").replace("~0", "~") for each in field[1:].split("/")]
    numbers = sum(map(_is_place, tokens))
    if len(tokens) > _TOKENS_MAX or numbers > _NUMBERS_MAX:
        raise ProjectionConfigError(
            f"the pointer {field[:60]!r} goes too deep: at most {_TOKENS_MAX} names, {_NUMBERS_MAX} of them numbers"
        )
    ways = [
        [f"[{each}]", _label(each, field)] if _is_place(each) else [_label(each, field)] for each in tokens
    ]
    return ["$" + "".join(way) for way in itertools.product(*ways)]


def _is_place(token: str) -> bool:
    return token.isascii() and token.isdecimal() and (token == "0" or token[0] != "0") and len(token) < 10  # noqa: PLR2004


def _label(name: str, field: str) -> str:
    if not can_be_named(name):
        raise ProjectionConfigError(
            f"the input field {field[:60]!r} cannot be looked for: a name has a quote, backslash or NUL in it"
        )
    return f'."{name}"'


def can_be_named(name: str) -> bool:
    """Return whether SQLite's paths have a way to write a name."""
    return not {'"', "\\", "\0"}.intersection(name)
