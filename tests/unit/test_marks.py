"""What is marked in the types of answers and events is hidden at every depth, and nothing else is touched."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pytest

from jobledger.ledger.model.events import EVENT_CLASSES, Cancelled, CarriedJob, Event, Member, Order, Queued
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.lifecycle import VALUE_FIELDS
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import PERMISSIONS, Permission
from jobledger.ledger.model.rights.marks import (
    HIDDEN,
    NOTHING,
    PAYLOAD,
    PAYLOADS,
    VALUES,
    FieldMark,
    Hidden,
    JsonOf,
    Mark,
    hidden_from,
    hide,
)
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.ledger.model.schedules.ticks import Spec

AT = datetime(2026, 1, 1, tzinfo=UTC)
RAW = msgspec.Raw(b'"gold"')


class Inner(msgspec.Struct, frozen=True):
    """A value, and what is said of it."""

    value: Annotated[Any, PAYLOAD]
    raw: msgspec.Raw | None = None
    many: list[msgspec.Raw] = []
    word: str = "word"
    below: Inner | None = None


class Named(NamedTuple):
    """A tuple with names."""

    inner: Inner


class Outer(msgspec.Struct, frozen=True):
    """What holds values in every kind of collection."""

    by_name: dict[str, Inner]
    in_order: tuple[Inner, ...]
    named: Named
    given: Annotated[dict[str, int], PAYLOADS]
    text: Annotated[msgspec.Raw, JsonOf(Definition)]
    plain: dict[str, int] = {}


def test_marked_fields_are_hidden_at_every_depth() -> None:
    below = Inner("gold", RAW, [RAW], below=Inner("gold", RAW))
    text = Definition(
        spec=Spec(every_s=60), task="t", queue="q", order=Order(input=msgspec.Raw(b'{"a":"gold"}'))
    )
    whole = Outer(
        {"a": below}, (below,), Named(below), {"a": 1}, msgspec.Raw(msgspec.json.encode(text)), {"b": 2}
    )
    shown = hide(whole, VALUES)
    assert b"gold" not in msgspec.json.encode(shown)
    assert msgspec.to_builtins(shown.given) == {"a": HIDDEN}
    assert (shown.plain, shown.named.inner.word) == ({"b": 2}, "word")
    assert msgspec.json.decode(shown.text) == {
        "spec": {"every_s": 60},
        "task": "t",
        "queue": "q",
        "order": {},
    }
    assert hide(whole, NOTHING) is whole
    assert hide(shown.plain, VALUES) is shown.plain


@pytest.mark.parametrize(
    ("permissions", "expected"),
    [
        ({"view"}, {"payload", "secret"}),
        ({"view", "payloads"}, {"secret"}),
        ({"view", "manage"}, {"payload"}),
        ({"view", "payloads", "manage"}, set[str]()),
    ],
)
def test_what_is_hidden_follows_from_the_permissions(
    permissions: set[Permission], expected: set[Mark]
) -> None:
    assert hidden_from(Principal(name="eve", permissions=frozenset(permissions))).marks == expected


def test_a_webhook_keeps_what_is_no_secret() -> None:
    hidden = Hidden(marks=frozenset({"secret"}))
    for url in ("https://shop.example/hooks?key=gold", "https://ann:gold@shop.example/T000/B000/gold"):
        shown = hide(WebhookDefinition(target=WebhookTarget(url=url), headers={"X-Key": "gold"}), hidden)
        assert (shown.target.url, shown.headers) == ("https://shop.example/...", {"X-Key": "hidden"})


def test_names_of_other_jobs_are_told_to_who_may_see_the_queue() -> None:
    member = Member(queue="vault", job="gold", step="gold")
    begun = Queued(at=AT, by="w", job="own", queue="mail", task="send", causation="gold", member=member)
    everybody = Principal(name="eve", permissions=frozenset({"view", "payloads", "manage"}))
    bound = {
        "queue": msgspec.structs.replace(everybody, queues=("mail",)),
        "task": msgspec.structs.replace(everybody, tasks=("send",)),
        "queue and task": msgspec.structs.replace(everybody, queues=("vault", "mail"), tasks=("send",)),
    }
    for who in bound.values():
        for by_default in (True, False):
            shown = hide(begun, hidden_from(who), by_default=by_default)
            assert b"gold" not in msgspec.json.encode(shown)
            assert shown.member is not None, "that it is a child is told"
    both = hidden_from(msgspec.structs.replace(everybody, queues=("mail", "va*")))
    assert hide(begun, both).member == member
    assert hide(begun, hidden_from(everybody)) is begun


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("its run gold was cancelled", "its run (hidden) was cancelled"),
        ("superseded by job gold-1", "superseded by job (hidden)"),
        ("superseded by gold, limit api", "superseded by (hidden), limit api"),
        ("its runway was closed", "its runway was closed"),
        ("no house", "no house"),
    ],
)
def test_a_reason_names_no_job_that_is_not_there(reason: str, told: str) -> None:
    bound = hidden_from(Principal(name="eve", permissions=frozenset(PERMISSIONS), queues=("mail",)))
    event = Cancelled(at=AT, by="w", job="own", queue="mail", task="send", reason=reason)
    assert hide(event, bound, by_default=True).reason == told


def test_every_value_of_an_event_is_left_out() -> None:
    held = datetime(2026, 1, 1, tzinfo=UTC)
    tried: set[str] = set()
    for kind in (*EVENT_CLASSES, CarriedJob, Order):
        for field in msgspec.structs.fields(kind):
            if field.type is msgspec.Raw:
                given = {
                    each.name: _given(each.type, held)
                    for each in msgspec.structs.fields(kind)
                    if each.required
                }
                make: Any = kind
                event = make(**{**given, field.name: RAW})
                assert b"gold" not in msgspec.json.encode(hide(event, VALUES, by_default=True))
                tried.add(field.name)
    assert tried == VALUE_FIELDS


def _given(annotation: Any, at: datetime) -> Any:
    """Return any value for a required field; nothing checks it."""
    return at if "datetime" in str(annotation) else None


#: Fields of events that name no other job, or one of the same queue and task, and why.
_OWN: Final = {
    "RerunOf.job": "a rerun is of the same queue and task",
    "CopiedEnd.run": "a rerun's",
    "CopiedEnds.job": "a rerun's",
    "Origin.job": "a rerun's",
    "Completed.successor": "the run goes on in the same queue, as the same task",
    "SignalFact.id": "chosen by the sender",
    "Signalled.id": "chosen by the sender",
    "SignalRefused.id": "chosen by the sender",
    "CarriedSignal.id": "chosen by the sender",
}
_NAMES: Final = frozenset({"job", "id", "run", "parent", "successor", "causation", "holder", "by_job"})


def test_each_field_of_an_event_that_names_another_job_is_marked() -> None:
    found: dict[str, bool] = {}
    for kind in EVENT_CLASSES:
        for owner, field in _fields(kind, set()):
            if field.name in _NAMES and not (field.name == "job" and issubclass(owner, Event)):
                found[f"{owner.__name__}.{field.name}"] = _is_name(field.type)
    kinds = {name.partition(".")[2] for name in found}
    assert kinds >= {"causation", "job", "id", "run", "successor"}, "else nothing was looked at"
    assert {name for name, is_marked in found.items() if not is_marked} == set(_OWN)


def _is_name(annotation: Any) -> bool:
    said = getattr(annotation, "__metadata__", ())
    return any(isinstance(each, FieldMark) and each.mark == "job" for each in said)


def _fields(kind: Any, seen: set[Any]) -> Iterator[tuple[Any, msgspec.structs.FieldInfo]]:
    """Yield the fields of a structure, and of those that stand within it at any depth."""
    if not inspect.isclass(kind):
        for each in typing.get_args(kind):
            yield from _fields(each, seen)
    elif issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        for field in msgspec.structs.fields(kind):
            yield kind, field
            yield from _fields(field.type, seen)
