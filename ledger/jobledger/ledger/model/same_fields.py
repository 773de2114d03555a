"""Copies of the fields that two Structs have in common, so that no list of their names has to be maintained."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def copied(kind: type[S], source: msgspec.Struct, **more: Any) -> S:
    """Return a Struct of `kind` with the values of all fields shared with `source`; `more` are its other values.

    A value in `more` goes before one of `source`.
    """
    names, read = _in_common(kind, type(source))
    return kind(**{**dict(zip(names, read(source), strict=True)), **more})


@functools.cache
def _in_common(
    kind: type[msgspec.Struct], source: type[msgspec.Struct]
) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    """Return the names of the fields that two kinds have in common, and the getter of their values."""
    names = tuple(name for name in kind.__struct_fields__ if name in source.__struct_fields__)
    assert len(names) > 1, "a getter of one name returns a value alone"
    return names, operator.attrgetter(*names)
