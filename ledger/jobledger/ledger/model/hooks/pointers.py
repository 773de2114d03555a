"""JSON pointers (RFC 6901): a place in a JSON document, and the value there. Pure.

In one point it differs from the RFC: `/` is the whole document, as `""` is, because people write it so. A member with
an empty name at the top of a document has no pointer here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast

from jobledger.ledger.model.errors import InvalidInputError

#: The value of a place that the document does not have; its identity distinguishes it from a stored `null`.
NOTHING: Final = object()
#: Most words of one pointer, and most levels of one condition: more than people write, and quick to follow.
DEPTH_MAX: Final = 64
_CHARACTERS_MAX: Final = 1_000
_ESCAPED_WRONGLY: Final = re.compile(r"~(?![01])")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,9}", flags=re.ASCII)


def check_pointer(pointer: object) -> str:
    """Return `pointer` if it is one: "" or `/` for the whole document, or words that each begin with `/`.

    Raises: InvalidInputError.
    """
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise InvalidInputError(f"{_shown(pointer)} is no JSON pointer: write it as /repository/name")
    if _ESCAPED_WRONGLY.search(pointer):
        raise InvalidInputError(
            f"{_shown(pointer)} is no JSON pointer: write ~ as ~0 and a / inside of a name as ~1"
        )
    if pointer.count("/") > DEPTH_MAX or len(pointer) > _CHARACTERS_MAX:
        raise InvalidInputError(
            f"{_shown(pointer)} is too long for a JSON pointer: give at most {DEPTH_MAX} names "
            f"and {_CHARACTERS_MAX:,} characters"
        )
    return pointer


def value_at(document: Any, pointer: str) -> Any:
    """Return the value at `pointer`; `NOTHING` if the document has no such place."""
    found = document
    for word in words_of(pointer):
        found = _member(found, word)
    return found


def words_of(pointer: str) -> list[str]:
    """Return the keys and indexes of a pointer, as text and without escapes; [] for the whole document."""
    if pointer == "/":
        return []
    return [word.replace("~1", "/").replace("~0", "~") for word in pointer.split("/")[1:]]


def pointer_of(words: Iterable[str | int]) -> str:
    """Return the pointer that leads along keys and indexes; the inverse of `words_of`."""
    return "".join("/" + str(word).replace("~", "~0").replace("/", "~1") for word in words)


def index_in(value: Any, word: str) -> int | None:
    """Return the place in a list that a word of a pointer names; None if the value is no list, or a shorter one."""
    items: list[Any] = value
    if not isinstance(value, list) or not _INDEX.fullmatch(word):
        return None
    return int(word) if int(word) < len(items) else None


def _member(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name, NOTHING)
    index = index_in(value, name)
    return NOTHING if index is None else value[index]


def _shown(pointer: object) -> str:
    return ascii(pointer)[:80] if isinstance(pointer, str) else f"one of type {type(pointer).__name__}"
