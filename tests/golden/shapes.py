"""The shape of a JSON value: its types in place of its values, so that two runs give the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final, TypeGuard

#: Fields whose keys are names of things in the ledger, and not fields themselves.
_FREE: Final = frozenset(
    {"authors", "causes", "metadata", "overrides", "recorded", "simulated", "spread_us", "states", "types"}
)
#: Fields of what hurts. How long the machine took decides what there is, and some of it has no beginning.
_DIAGNOSIS: Final = frozenset({"level", "found", "since"})
_OR: Final = "or"
_NAMES: Final[Mapping[type, str]] = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}


def is_map(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def shape_of(value: Any, field: str = "") -> Any:
    """Return the types of a value: of a list one element that stands for all, of a map its fields."""
    if is_list(value):
        return [merged(shape_of(each) for each in value)] if value else []
    if is_map(value) and field in _FREE:
        return {"*": merged(shape_of(each) for each in value.values())} if value else {}
    if is_map(value):
        found = {key: shape_of(each, key) for key, each in value.items()}
        return found | ({"since": {_OR: ["null", "str"]}} if value.keys() >= _DIAGNOSIS else {})
    return _NAMES[type(value)]


def merged(shapes: Iterable[Any]) -> Any:
    """Return one shape for all of them; `?` ends the name of a field that some lack."""
    return reduce(_union, shapes)


def _union(one: Any, other: Any) -> Any:
    if one == other:
        return one
    if is_map(one) and is_map(other) and not _kinds(one)[1:] and not _kinds(other)[1:]:
        return _union_of_maps(one, other)
    if is_list(one) and is_list(other):
        return [_union(one[0], other[0])] if one and other else one or other
    kinds = [*_kinds(one), *_kinds(other)]
    maps = [each for each in kinds if is_map(each)]
    lists = [each for each in kinds if is_list(each)]
    words = sorted({each for each in kinds if isinstance(each, str)})
    found = [*words, *([merged(maps)] if maps else []), *([merged(lists)] if lists else [])]
    return found[0] if len(found) == 1 else {_OR: found}


def _kinds(shape: Any) -> list[Any]:
    """Return the shapes of which one holds."""
    return shape[_OR] if is_map(shape) and _OR in shape else [shape]


def _union_of_maps(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sorted({key.rstrip("?") for key in one.keys() | other.keys()}):
        there = [each[key] for each in (one, other) for key in (name, f"{name}?") if key in each]
        is_always = name == "*" or (name in one and name in other)
        found[name if is_always else f"{name}?"] = merged(there)
    return found
