"""Values of options: simple ones are read here, without typer's slow reader.

That reader imports pydantic and builds an adapter for each option, given or not: it takes longer than typer itself.
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast, get_args, get_origin

_TYPERS: Final = object()  #: returned for a value that typer is to read
_DIGITS_MAX: Final = 18  #: a longer number is left to typer


class _Reader:
    """What typer asks for the value of one option or argument."""

    def __init__(self, parameter: Any) -> None:
        self._typers = parameter.get_runtime_param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as the command gets it. Raises: what typer's reader raises, for a value that cannot be read."""
        found = _read(value, param)
        return self._typers().coerce(value, param=param, ctx=ctx) if found is _TYPERS else found


def read_quickly(parameter: Any) -> None:
    """Let typer ask for this parameter's values here first."""
    if "get_runtime_param" not in vars(parameter):
        reader = _Reader(parameter)
        parameter.get_runtime_param = lambda: reader


def _read(value: Any, parameter: Any) -> Any:
    """Return what typer's reader would, or `_TYPERS` to ask that reader."""
    descriptor = parameter.type_descriptor
    if value is None:
        return () if parameter.multiple or parameter.nargs == -1 else None
    if descriptor.parameter_info.parser is not None or descriptor.is_path or descriptor.is_file:
        return _TYPERS
    kind = descriptor.annotation
    if get_origin(kind) is list:
        if not isinstance(value, list | tuple):
            return _TYPERS
        (kind_of_each,) = get_args(kind)
        each = [_read_one(item, kind_of_each, parameter) for item in cast("list[Any]", value)]
        return _TYPERS if _TYPERS in each else each
    return _read_one(value, kind, parameter)


def _read_one(value: Any, kind: Any, parameter: Any) -> Any:
    is_given = (kind is str and isinstance(value, str) and _is_text(value)) or (
        get_origin(kind) is Literal and value in get_args(kind)
    )
    if is_given:
        return value
    return _whole_number(value, parameter) if kind is int else _TYPERS


def _whole_number(value: Any, parameter: Any) -> Any:
    is_typed = isinstance(value, str) and len(value) <= _DIGITS_MAX and value.isascii() and value.isdigit()
    if not is_typed and type(value) is not int:
        return _TYPERS
    number, told = int(value), parameter.type_descriptor.parameter_info
    fits = (told.min is None or number >= told.min) and (told.max is None or number <= told.max)
    return number if fits else _TYPERS


def _is_text(value: str) -> bool:
    """Return whether the value is valid UTF-8: typer refuses any other."""
    return value.isascii() or value == value.encode(errors="replace").decode()
