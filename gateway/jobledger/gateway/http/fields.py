"""The fields of the Structs that hold parameters and bodies."""

from __future__ import annotations

import functools

import msgspec


@functools.cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a Struct; they are looked up once, since msgspec evaluates every annotation each time."""
    return msgspec.structs.fields(kind)
