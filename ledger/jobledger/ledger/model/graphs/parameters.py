"""Places in a stored graph whose values come from the input of each of its runs: `{"$input": "/customer"}`. Pure.

Such an object stands for the value at its JSON pointer in the run's input; the pointer `""` is the whole input. It may
have a `default`, for an input without that place. The pointers are those of routes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.hooks.pointers import NOTHING, check_pointer, value_at

WORD: Final = "$input"
_DEFAULT: Final = "default"


def check_parameters(value: object) -> bool:
    """Return whether a value is or holds a place for a run's input. Raises: InvalidInputError for a malformed one."""
    found = list(_places(value))
    for place in found:
        if not place.keys() <= {WORD, _DEFAULT}:
            raise InvalidInputError(
                f'a place for the input has "{WORD}" and perhaps "{_DEFAULT}", got {ascii(place)[:80]}'
            )
        check_pointer(place[WORD])
    return bool(found)


def has_constant(value: object) -> bool:
    """Return whether a value has a part that no run's input and no result gives; null stands for a result."""
    if isinstance(value, list | tuple):
        return any(map(has_constant, cast("list[object]", value)))
    if not isinstance(value, dict):
        return value is not None
    words = cast("dict[str, Any]", value)
    return _DEFAULT in words if WORD in words else any(map(has_constant, words.values()))


def pointers_in(value: object) -> list[str]:
    """Return the pointers of the places in a value, each once, in their order."""
    return list(dict.fromkeys(str(each[WORD]) for each in _places(value)))


def filled(value: Any, given: Mapping[str, Any]) -> Any:
    """Return a JSON value with its places filled from the run's input.

    Raises: InvalidInputError for a place without default that the input does not have.
    """
    if isinstance(value, list):
        return [filled(each, given) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, dict):
        return value
    words = cast("dict[str, Any]", value)
    if WORD not in words:
        return {name: filled(each, given) for name, each in words.items()}
    found = value_at(given, words[WORD])
    if found is not NOTHING:
        return found
    if _DEFAULT not in words:
        raise InvalidInputError(f"the input must have a value at {words[WORD]!r}")
    return words[_DEFAULT]


def _places(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, list | tuple):
        for each in cast("list[object]", value):
            yield from _places(each)
    elif isinstance(value, dict):
        words = cast("dict[str, Any]", value)
        if WORD in words:
            yield words
            return
        for each in words.values():
            yield from _places(each)
