"""What is marked in the types of answers and events is hidden at every depth, and nothing else is touched."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest

from jobledger.ledger.model.events import EVENT_CLASSES, CarriedJob, Order
from jobledger.ledger.model.hooks.definition import WebhookDefinition, WebhookTarget
from jobledger.ledger.model.lifecycle import VALUE_FIELDS
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import Permission
from jobledger.ledger.model.rights.marks import (
    HIDDEN,
    PAYLOAD,
    PAYLOADS,
    VALUES,
    JsonOf,
    Mark,
    hidden_from,
    hide,
)
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.ledger.model.schedules.ticks import Spec

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
    assert hide(whole, frozenset()) is whole
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
    assert hidden_from(Principal(name="eve", permissions=frozenset(permissions))) == expected


def test_a_webhook_keeps_what_is_no_secret() -> None:
    target = WebhookTarget(url="https://shop.example/hooks?key=gold")
    shown = hide(WebhookDefinition(target=target, headers={"X-Key": "gold"}), frozenset({"secret"}))
    assert (shown.target.url, shown.headers) == ("https://shop.example/hooks?...", {"X-Key": "hidden"})


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
