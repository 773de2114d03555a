"""Parameters of an address or of a form as a Struct: empty ones count as absent, unknown ones are ignored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, get_origin

import msgspec

from jobledger.gateway.problems import ProblemError

T = TypeVar("T", bound=msgspec.Struct)


def read_query(kind: type[T], pairs: Iterable[tuple[str, str]]) -> T:
    """Return what the pairs say. Raises: ProblemError."""
    fields = {each.encode_name: each.type for each in msgspec.structs.fields(kind)}
    given: dict[str, Any] = {}
    for name, value in pairs:
        if value and name in fields:
            given[name] = [*given.get(name, []), value] if _is_many(fields[name]) else value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ProblemError("BAD_REQUEST", f"the address is not as it must be: {error}") from error


def _is_many(kind: Any) -> bool:
    while hasattr(kind, "__metadata__"):
        kind = kind.__origin__
    return get_origin(kind) is tuple
