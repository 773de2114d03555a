"""Marks of fields that not everybody may see, in the types of answers and events, and the values shown instead. Pure.

A field is marked where it is declared: `input: Annotated[dict[str, Any], PAYLOAD]`. A field of the type `msgspec.Raw`
is a payload without a mark. Code that makes an answer passes it to `hide` once, at the end.

A name of another job is marked, too. Whether somebody may see that job follows from its queue, if a field beside the
name has it; a principal that is bound to tasks may see none, since no event has the task of another job.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import matches

#: `payload`: inputs, checkpoints and results of jobs, shown with `payloads`; `secret`: URLs, headers and the like that
#: may give access elsewhere, shown with `manage`; `job`: names of other jobs, shown to those who may see these jobs.
Mark = Literal["payload", "secret", "job"]

HIDDEN: Final = "hidden: who asks lacks the permission 'payloads'"
#: The text in the place of another job's name.
HIDDEN_JOB: Final = "hidden"
_HIDDEN_RAW: Final = msgspec.Raw(msgspec.json.encode(HIDDEN))
#: Names of other jobs in reasons of the ledger itself: a child's run, and the job that superseded another one by its
#: unique key or limit.
_NAMED_IN_REASON: Final = re.compile(
    r"^(its run|superseded by job|superseded by) [A-Za-z0-9_-]{1,64}(?=[ ,]|$)"
)

T = TypeVar("T")


class Hidden(NamedTuple):
    """The fields that somebody may not see."""

    marks: frozenset[Mark] = frozenset()
    queues: tuple[str, ...] = ()  #: if names of jobs are hidden: patterns of the queues whose jobs are shown


NOTHING: Final = Hidden()
_SEE_ALL: Final = frozenset({"payloads", "manage"})
#: Only inputs, results and the like.
VALUES: Final = Hidden(marks=frozenset({"payload"}))


class FieldMark(NamedTuple):
    """A mark of a field, as metadata of its type."""

    mark: Mark
    instead: Callable[[Any], Any]  #: returns the value shown instead, of the same type
    queue: str = ""  #: of another job's name: the field beside it with its queue; "": none


class JsonOf(NamedTuple):
    """The mark of a field that is JSON text of a type, in which marks count."""

    kind: type[msgspec.Struct]


def host_of(url: str) -> str:
    """Return a URL without parts that may be a token: all after its host, and the name and password before it."""
    try:
        parts = urlsplit(url)
        host = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "hidden" if url else ""
    return f"{host}/..." if url else ""


def _nameless(reason: str) -> str:
    return _NAMED_IN_REASON.sub(r"\1 (hidden)", reason)


def _hidden_job(name: str | None) -> str | None:
    return name and HIDDEN_JOB


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


#: Marks for any JSON value; for an object, whose keys are shown; for headers, likewise; for a URL.
PAYLOAD: Final = FieldMark("payload", _instead_of_any)
PAYLOADS: Final = FieldMark("payload", _named(HIDDEN))
SAID_HEADERS: Final = FieldMark("payload", _named("hidden"))
SECRET_HEADERS: Final = FieldMark("secret", _named("hidden"))
SECRET_URL: Final = FieldMark("secret", host_of)
#: The name of another job, or of what it is part of; one whose queue is told by the field `queue` beside it, or by
#: `parent_queue`; and a reason, which may name one.
OTHER_JOB: Final = FieldMark("job", _hidden_job)
OTHER_JOB_HERE: Final = FieldMark("job", _hidden_job, "queue")
PARENT: Final = FieldMark("job", _hidden_job, "parent_queue")
REASON: Final = FieldMark("job", _nameless)
_RAW: Final = FieldMark("payload", _instead_of_raw)


def hidden_from(principal: Principal) -> Hidden:
    """Return the fields that somebody may not see."""
    if principal.permissions >= _SEE_ALL and principal.is_everywhere:
        return NOTHING
    marks: set[Mark] = set()
    if not principal.may("payloads"):
        marks.add("payload")
    if not principal.may("manage"):
        marks.add("secret")
    names = names_hidden_from(principal)
    return Hidden(frozenset(marks | names.marks), names.queues)


def names_hidden_from(principal: Principal) -> Hidden:
    """Return the names of other jobs that somebody may not see."""
    if principal.is_everywhere:
        return NOTHING
    return Hidden(frozenset({"job"}), principal.queues if principal.is_of_all_tasks else ())


def hide(value: T, hidden: Hidden, *, by_default: bool = False) -> T:
    """Return an answer without hidden values, at any depth of structures, lists, tuples and dictionaries.

    `by_default`: a hidden field gets its default, so that an event leaves it out; but not names of jobs.
    """
    return cast("T", _Mask(hidden, by_default)(value)) if hidden.marks else value


class _Mask(NamedTuple):
    """The hidden fields, and the way of hiding."""

    hidden: Hidden
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
            after = self._field(value, before, field, how)
            if after is not before:
                changed[field.name] = after
        return msgspec.structs.replace(value, **changed) if changed else value

    def _field(
        self,
        owner: msgspec.Struct,
        before: Any,
        field: msgspec.structs.FieldInfo,
        how: FieldMark | JsonOf | None,
    ) -> Any:
        if how is None:
            return self(before)
        if isinstance(how, JsonOf):
            read = msgspec.json.decode(before, type=how.kind)
            return msgspec.Raw(msgspec.json.encode(_Mask(self.hidden, by_default=True)(read)))
        if how.mark not in self.hidden.marks or self._is_in_sight(owner, how):
            return before
        if how.mark == "job" or not self.by_default:
            return how.instead(before)
        if field.default is not msgspec.NODEFAULT:
            return field.default
        if field.default_factory is not msgspec.NODEFAULT:
            return field.default_factory()
        return how.instead(before)

    def _is_in_sight(self, owner: msgspec.Struct, how: FieldMark) -> bool:
        """Return whether the job that a field names may be seen."""
        queue = getattr(owner, how.queue) if how.queue else None
        return queue is not None and any(matches(each, queue) for each in self.hidden.queues)


def _is(value: object, *kinds: type[object]) -> bool:
    return isinstance(value, kinds)


def _differ(one: Collection[Any], other: Collection[Any]) -> bool:
    return any(a is not b for a, b in zip(one, other, strict=True))


_Plan = tuple[tuple[msgspec.structs.FieldInfo, FieldMark | JsonOf | None], ...]


@functools.cache
def _plan(kind: type[msgspec.Struct]) -> _Plan:
    """Return the fields of a structure that are marked, and those within which there may be marks."""
    found: list[tuple[msgspec.structs.FieldInfo, FieldMark | JsonOf | None]] = []
    for field in msgspec.structs.fields(kind):
        how = _mark_of(field.type)
        if how is not None or _may_hold(field.type, {kind}):
            found.append((field, how))
    return tuple(found)


def _mark_of(annotation: Any) -> FieldMark | JsonOf | None:
    """Return the mark of a type, None without one."""
    for said in getattr(annotation, "__metadata__", ()):
        if isinstance(said, FieldMark | JsonOf):
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
        # A structure within one of its own type counts as marked: the look into it finds the outer one's marks.
        return any(_mark_of(each) is not None or _may_hold(each, seen) for each in fields)
    return any(_may_hold(each, seen) for each in typing.get_args(annotation) if each is not Ellipsis)
