"""Which fields of answers and events not everybody may see, marked in their types, and what stands in their place. Pure.

A field is marked where it is declared: `input: Annotated[dict[str, Any], PAYLOAD]`. One of the type `msgspec.Raw` is a
payload without a mark. Whatever answers somebody hands it to `hide` once, at the end, with what is hidden from them.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

import msgspec

from jobledger.ledger.model.rights.authority import Principal

#: `payload`: what jobs are given, keep and return, for who has `payloads`; `secret`: what may open something elsewhere, as
#: a URL or a header, for who has `manage`.
Mark = Literal["payload", "secret"]

HIDDEN: Final = "hidden: who asks lacks the permission 'payloads'"
VALUES: Final[frozenset[Mark]] = frozenset({"payload"})
_HIDDEN_RAW: Final = msgspec.Raw(msgspec.json.encode(HIDDEN))
_NOTHING: Final[frozenset[Mark]] = frozenset()

T = TypeVar("T")


class Marked(NamedTuple):
    """A mark of a field, as metadata of its type."""

    mark: Mark
    instead: Callable[[Any], Any]  #: what stands in the place of a value, which has the same type


class JsonOf(NamedTuple):
    """Says that a field is JSON text of a type, within which marks count."""

    kind: type[msgspec.Struct]


def _without_query(url: str) -> str:
    path, asks, _ = url.partition("?")
    return f"{path}?..." if asks else path


def _named(words: str) -> Callable[[Any], Any]:
    def instead(values: Mapping[str, Any] | None) -> dict[str, str] | None:
        return None if values is None else dict.fromkeys(values, words)

    return instead


def _instead_of_any(value: Any) -> Any:
    return value if value is msgspec.UNSET else HIDDEN


def _instead_of_raw(value: Any) -> Any:
    if value is None or value is msgspec.UNSET:
        return value
    return _HIDDEN_RAW if isinstance(value, msgspec.Raw) else type(value)()


#: Any JSON value; an object, whose names are told; headers likewise, and a URL.
PAYLOAD: Final = Marked("payload", _instead_of_any)
PAYLOADS: Final = Marked("payload", _named(HIDDEN))
SAID_HEADERS: Final = Marked("payload", _named("hidden"))
SECRET_HEADERS: Final = Marked("secret", _named("hidden"))
SECRET_URL: Final = Marked("secret", _without_query)
_RAW: Final = Marked("payload", _instead_of_raw)


def hidden_from(principal: Principal) -> frozenset[Mark]:
    """Return the marks of what somebody may not see."""
    if principal.permissions >= {"payloads", "manage"}:
        return _NOTHING
    secret: frozenset[Mark] = _NOTHING if principal.may("manage") else frozenset({"secret"})
    return secret if principal.may("payloads") else secret | VALUES


def hide(value: T, hidden: frozenset[Mark], *, by_default: bool = False) -> T:
    """Return an answer without what is hidden, at any depth of structures, lists, tuples and dictionaries.

    `by_default`: a hidden field becomes what it is when nobody gives it, so that an event's is left out.
    """
    return cast("T", _Hiding(hidden, by_default)(value)) if hidden else value


class _Hiding(NamedTuple):
    """What is hidden, and how."""

    hidden: frozenset[Mark]
    by_default: bool

    def __call__(self, value: Any) -> Any:
        if _is(value, msgspec.Struct):
            return self._struct(value)
        if _is(value, dict):
            found = {name: self(each) for name, each in value.items()}
            return found if _differ(found.values(), value.values()) else value
        if _is(value, list, tuple):
            many = [self(each) for each in value]
            made: Callable[[list[Any]], Any] = getattr(
                value, "_make", cast("Any", type(value))
            )  # of a named tuple
            return made(many) if _differ(many, value) else value
        return value

    def _struct(self, value: msgspec.Struct) -> msgspec.Struct:
        changed: dict[str, Any] = {}
        for field, how in _plan(type(value)):
            before = getattr(value, field.name)
            after = self._field(before, field, how)
            if after is not before:
                changed[field.name] = after
        return msgspec.structs.replace(value, **changed) if changed else value

    def _field(self, before: Any, field: msgspec.structs.FieldInfo, how: Marked | JsonOf | None) -> Any:
        if how is None:
            return self(before)
        if isinstance(how, JsonOf):
            read = msgspec.json.decode(before, type=how.kind)
            return msgspec.Raw(msgspec.json.encode(_Hiding(self.hidden, by_default=True)(read)))
        if how.mark not in self.hidden:
            return before
        if self.by_default and field.default is not msgspec.NODEFAULT:
            return field.default
        if self.by_default and field.default_factory is not msgspec.NODEFAULT:
            return field.default_factory()
        return how.instead(before)


def _is(value: object, *kinds: type[object]) -> bool:
    return isinstance(value, kinds)


def _differ(one: Collection[Any], other: Collection[Any]) -> bool:
    return any(a is not b for a, b in zip(one, other, strict=True))


_Plan = tuple[tuple[msgspec.structs.FieldInfo, Marked | JsonOf | None], ...]


@functools.cache
def _plan(kind: type[msgspec.Struct]) -> _Plan:
    """Return the fields of a structure that are marked, and those within which there may be marks."""
    found: list[tuple[msgspec.structs.FieldInfo, Marked | JsonOf | None]] = []
    for field in msgspec.structs.fields(kind):
        how = _mark_of(field.type)
        if how is not None or _may_hold(field.type, {kind}):
            found.append((field, how))
    return tuple(found)


def _mark_of(annotation: Any) -> Marked | JsonOf | None:
    """Return the mark of a type, None without one."""
    for said in getattr(annotation, "__metadata__", ()):
        if isinstance(said, Marked | JsonOf):
            return said
    is_raw = annotation is msgspec.Raw or msgspec.Raw in typing.get_args(annotation)
    return _RAW if is_raw else None


def _may_hold(annotation: Any, seen: set[Any]) -> bool:
    """Return whether a value of a type may have marked fields at any depth; `seen`: the structures looked at already."""
    if inspect.isclass(annotation):
        if annotation in seen:
            return True
        seen.add(annotation)
        kind: Any = annotation
        if issubclass(annotation, msgspec.Struct):
            fields = [each.type for each in msgspec.structs.fields(annotation)]
        elif hasattr(kind, "_make"):
            fields = list(typing.get_type_hints(kind, include_extras=True).values())
        else:
            return False
        # A structure that stands within itself counts: whoever looks there finds the marks of the one around it.
        return any(_mark_of(each) is not None or _may_hold(each, seen) for each in fields)
    return any(_may_hold(each, seen) for each in typing.get_args(annotation) if each is not Ellipsis)
