"""Taking the values out of an event of a job: what people and code put in goes, the course of things stays. Pure.

Ids, types, times, numbers, queues, tasks, names and sizes of groups stay, and so does what is sealed under an owner's key.
The same value leaves the same behind wherever it stands, so that `carried` still agrees with the events before it.
Source: ADR 070.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from jobledger.ledger.model.envelope import NO_VALUE, ErrorInfo, Event, PayloadRef
from jobledger.ledger.model.events import DeadLettered
from jobledger.ledger.model.runs.orders import WITH_ITS_RUN, Callback
from jobledger.ledger.model.seals import OWN_ERRORS, OWN_TEXTS, TEXTS, is_sealed
from jobledger.ledger.model.unique import Taken

#: What stands where a text was.
REDACTED: Final = "redacted"
#: What stands where a JSON value was; an object, since an input is one.
REDACTED_VALUE: Final = msgspec.Raw(b'{"redacted":true}')
_REASONS: Final = frozenset({"reason", "cancel_reason", "pause_reason"})
_REF: Final = (
    "_ref"  # how the field is called that refers to a large value, behind the name of the value's own
)

T = TypeVar("T", bound=msgspec.Struct)


def redact(event: Event) -> Event:
    """Return an event without values; the same object where there is none, or where they are sealed."""
    return event if event.key else _without_values(event)


def redact_key(event: Taken) -> Taken:
    """Return the event of a unique key without the arguments of its job."""
    return _without_values(event)


def _without_values(value: T) -> T:
    changed = dict(_changed(value))
    return msgspec.structs.replace(value, **changed) if changed else value


def _changed(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """Yield the fields that become others."""
    text = TEXTS.get(type(value).__name__)
    for name in value.__struct_fields__:
        field: Any = getattr(value, name)
        if isinstance(field, PayloadRef) and name.endswith(_REF):
            yield name, None
            yield name.removesuffix(_REF), REDACTED_VALUE
        elif name == text or (name in _REASONS and not isinstance(value, DeadLettered)):
            if (after := _word(str(field))) != field:
                yield name, after
        elif (after := _after(field)) is not field:
            yield name, after


def _after(field: Any) -> Any:
    """Return what stands in the place of what a field has; the same object where that is no value."""
    match field:
        case msgspec.Raw():
            is_kept = field in (NO_VALUE, REDACTED_VALUE) or is_sealed(bytes(field))
            return field if is_kept else REDACTED_VALUE
        case ErrorInfo():
            return _error(field)
        case Callback():
            return field  # words of the code, which are no data
        case msgspec.Struct():
            return _without_values(field)
        case tuple():
            members: tuple[Any, ...] = field  # pyright: ignore[reportUnknownVariableType]
            after = tuple(map(_after, members))
            return after if any(a is not b for a, b in zip(after, members, strict=True)) else members
        case dict():
            return _words(field)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return field


def _words(pairs: Mapping[str, str]) -> Mapping[str, str]:
    return pairs if all(each == REDACTED for each in pairs.values()) else dict.fromkeys(pairs, REDACTED)


def _word(text: str) -> str:
    """Return what stands in the place of a text; the ledger's own words stay, as that a child follows its run."""
    return text if text in OWN_TEXTS or text.startswith(WITH_ITS_RUN) else REDACTED


def _error(error: ErrorInfo) -> ErrorInfo:
    """Return an error by its type alone: its place in the code is told by the traceback, which `carried` may lack."""
    is_bare = error.message in ("", REDACTED) and not error.traceback
    if is_bare or error.sealed or error.kind in OWN_ERRORS:
        return error
    return msgspec.structs.replace(error, message=REDACTED, traceback="")
