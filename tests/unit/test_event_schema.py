"""Schemas and the AsyncAPI document say what is stored: of every event, in every release, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.support.json_schema import resolved, violations
from tests.support.tables import each_row

from jobledger.ledger.model.aggregates import AGGREGATES, event_name
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Event, Order, Queued, Scheduled
from jobledger.ledger.model.reactor import REACTOR
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.schema.asyncapi import addresses_of, asyncapi_document
from jobledger.ledger.schema.events import (
    SchemaBuilder,
    all_events_schema,
    described,
    event_schema,
    field_notes,
)

GOLDEN_FOLDER = Path(__file__).parent / "golden"
GOLDEN = sorted(GOLDEN_FOLDER.rglob("*.jsonl"))
#: Each event's name among those of all aggregates: by its type and the folder of its golden lines.
NAMES = [event_name(aggregate, tag) for aggregate, tag, _ in described()]
OWNERS = {event_name(aggregate, tag): AGGREGATES[aggregate] for aggregate, tag, _ in described()}


def owner_of(path: Path) -> str:
    folder = path.parent.name
    return (
        "job"
        if folder == "golden"
        else next(name for name in AGGREGATES if folder in (name, f"{name}s", f"{name}es"))
    )


EVENTS = [
    (event_name(owner_of(path), json.loads(line)["type"]), line)
    for path in GOLDEN
    for line in path.read_text(encoding="utf-8").splitlines()
]


def one(name: str) -> dict[str, Any]:
    return next(json.loads(line) for named, line in EVENTS if named == name)


def test_every_event_of_every_release_fits_the_schema_of_its_type_and_no_other() -> None:
    assert {name for name, _ in EVENTS} == set(NAMES)
    of_any = all_events_schema()
    schemas = {name: event_schema(name) for name in NAMES}
    for name, line in EVENTS:
        event = json.loads(line)
        assert list(violations(event, schemas[name])) == [], line[:100]
        assert list(violations(event, of_any)) == [], line[:100]
        others = (other for other in NAMES if not any(violations(event, schemas[other])))
        assert {other.rpartition(".")[2] for other in others} == {event["type"]}, line[:100]


@each_row(
    ("change", "sentence"),
    [
        ({"attempt": "1"}, ".attempt is not of type integer"),
        ({"attempt": True}, ".attempt is not of type integer"),
        ({"type": "finished"}, ".type is 'finished', not 'failed'"),
        ({"queue": "a.b"}, ".queue is 'a.b', which does not match"),
        ({"prev": "XYZ"}, ".prev is 'XYZ', which does not match"),
        ({"at": "2026-01-02T03:04:05"}, ".at is a time without a zone"),
        ({"at": "0001-01-02T03:04:05Z"}, ".at is '0001-01-02T03:04:05Z', which does not match"),
        ({"attempt": -1}, ".attempt is -1, minimum 0"),
        ({"attempt": 2**63}, ".attempt is 9223372036854775808, maximum 9223372036854775807"),
        ({"error": {"kind": "bad", "type": "E", "message": ""}}, ".error.kind is 'bad', which is none of"),
        ({"retry_priority": "urgent"}, ".retry_priority fits 0 of anyOf"),
        ({"prev": None}, ".prev is not of type string"),
        ({"surprise": 1}, None),  # a later version's field
    ],
)
def test_what_is_no_such_event_does_not_fit(change: dict[str, Any], sentence: str | None) -> None:
    found = list(violations({**one("failed"), **change}, event_schema("failed")))
    assert not found if sentence is None else [each for each in found if sentence in each], found


@each_row("left_out", ["type", "v", "job", "queue", "task", "at", "by", "prev", "attempt", "error"])
def test_what_every_event_has_is_required(left_out: str) -> None:
    event = {name: value for name, value in one("failed").items() if name != left_out}
    assert list(violations(event, event_schema("failed"))) == [f".{left_out} is missing"]


@each_row("cls", [cls for _, _, cls in described()], ids=lambda cls: cls.__name__)
def test_every_event_and_each_of_its_fields_is_described(cls: type[msgspec.Struct]) -> None:
    assert set(cls.__struct_fields__) - set(field_notes(cls)) == set()
    (name,) = (event_name(aggregate, tag) for aggregate, tag, each in described() if each is cls)
    assert event_schema(name)["description"]


class _Noted(msgspec.Struct):
    first: int = 0  #: beside it
    #: Above it,
    #: in two lines.
    second: int = 0
    third: int = 0  #: where the formatter put it
    fourth: int = 0


def test_a_note_belongs_to_the_field_beside_it_or_below_it() -> None:
    notes = {"first": "beside it", "second": "Above it, in two lines.", "third": "where the formatter put it"}
    assert field_notes(_Noted) == notes


@pytest.mark.parametrize("tag", ["scheduled", "held", "queued"])
def test_a_first_event_has_each_field_of_an_order_in_the_same_form(tag: str) -> None:
    def form(of: type[msgspec.Struct]) -> dict[str, Any]:
        properties = SchemaBuilder("").of_struct(of)["properties"]
        return {name: {**field, "description": ""} for name, field in properties.items()}

    event = AGGREGATES["job"].types[tag]
    assert {name: form(event)[name] for name in form(Order)} == form(Order)
    flat = set(Scheduled.__struct_fields__) & set(Queued.__struct_fields__)
    assert flat - {"reason", *Event.__struct_fields__} == set(form(Order)) - {"trace", "correlation", "key"}


def test_types_and_identities_are_unique_and_every_aggregate_is_described() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({event_schema(name)["$id"] for name in NAMES}) == len(NAMES)
    assert event_schema("started")["$id"] == "urn:jobledger:event:job:started:v1"
    assert {aggregate for aggregate, _, _ in described()} == set(AGGREGATES)
    with pytest.raises(InvalidInputError, match="there is no event type 'begun'; the types: scheduled, held"):
        event_schema("begun")


# AsyncAPI.


DOCUMENT = asyncapi_document()


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in cast("dict[str, Any]", value).items():
            if name == "$ref":
                yield member
            else:
                yield from _references(member)
    elif isinstance(value, list):
        members = cast("Sequence[Any]", value)
        for member in members:
            yield from _references(member)


def test_the_document_holds_together() -> None:
    for reference in _references(DOCUMENT):
        assert resolved(DOCUMENT, reference)
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert set(DOCUMENT["info"]) >= {"title", "version"}
    names = [*DOCUMENT["channels"], *DOCUMENT["operations"], *DOCUMENT["components"]["schemas"]]
    assert [name for name in names if not re.fullmatch(r"[\w.-]+", name)] == []
    assert set(DOCUMENT["components"]["messages"]) == set(NAMES)
    for name, channel in DOCUMENT["channels"].items():
        assert re.findall(r"\{(\w+)\}", channel["address"]) == list(channel["parameters"])
        operation = DOCUMENT["operations"][f"append_{name}"]
        assert operation["channel"]["$ref"] == f"#/channels/{name}"
        (message,) = (resolved(DOCUMENT, each["$ref"]) for each in operation["messages"])
        payload = resolved(DOCUMENT, resolved(DOCUMENT, message["$ref"])["payload"]["$ref"])
        aggregate, _, tag = re.sub(r"_completed(_child)?(_limited)?$", "_completed", name).partition("_")
        assert list(violations(one(event_name(aggregate, tag)), payload, DOCUMENT)) == []


def test_every_event_is_stored_where_its_address_says() -> None:
    for name, line in EVENTS:
        said, of = json.loads(line), OWNERS[name]
        addresses = [
            address.format(**{"priority": "normal", "parent": said.get("member", {}).get("job"), **said})
            for address in addresses_of(of.name, said["type"])
        ]
        message = Message(data=line.encode(), stream_sequence=1, stored_at=datetime(2026, 1, 2, tzinfo=UTC))
        place = 2 * ("member" in said) + ("limited" in said) if said["type"] == "completed" else 0
        assert of.subject(Names(), of.decode(message)) == addresses[place]


@pytest.mark.parametrize("line", (GOLDEN_FOLDER / "reactors" / "0.1.0.jsonl").read_bytes().splitlines())
def test_reactor_events_of_every_release_decode_and_encode_to_the_same_bytes(line: bytes) -> None:
    stored = Message(data=line, stream_sequence=1, stored_at=datetime(2026, 1, 2, tzinfo=UTC))
    assert msgspec.json.encode(REACTOR.decode(stored)) == line
