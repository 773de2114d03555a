"""The events as a closed set: tags written out, one class each, the envelope first."""

from __future__ import annotations

import msgspec
from tests.support.tables import each_row

from jobledger.ledger.model import events
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import EVENT_CLASSES, EVENT_TYPES, Event, JobEvent, event_type

#: Released names, for ever: a class may be renamed, its tag may not.
TAGS = (
    "scheduled", "held", "queued", "started", "completed", "failed", "cancelled", "interrupted", "paused", "snoozed",
    "dead_lettered", "discarded", "checkpointed", "progressed", "cancel_requested", "fenced",
    "carried", "step_started", "step_completed", "step_failed", "joined", "signalled", "signal_refused",
    "pause_requested", "noted", "lost",
)  # fmt: skip


def test_the_tags_are_the_released_ones() -> None:
    assert EVENT_TYPES == TAGS


def test_every_event_class_is_in_the_union() -> None:
    defined = {cls for cls in vars(events).values() if isinstance(cls, type) and issubclass(cls, Event)}
    assert defined - set(EVENT_CLASSES) == {Event, vars(events)["_Order"], vars(events)["_Ready"]}


@each_row("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_events_are_frozen_and_tagged(cls: type[JobEvent]) -> None:
    config = cls.__struct_config__
    assert (config.frozen, config.tag_field, config.omit_defaults) == (True, "type", True)
    assert config.tag in TAGS


@each_row("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_events_carry_the_envelope_first(cls: type[JobEvent]) -> None:
    assert cls.__struct_fields__[: len(Event.__struct_fields__)] == Event.__struct_fields__


@each_row("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_annotations_of_events_are_no_text_that_each_start_reads_again(cls: type[JobEvent]) -> None:
    assert not [kind for kind in cls.__annotations__.values() if isinstance(kind, str)]


def test_the_type_of_an_event_is_its_tag() -> None:
    line = b'{"type":"held","v":1,"job":"j","queue":"q","task":"t","at":"2026-01-02T00:00:00Z","by":"w","prev":""}'
    assert event_type(msgspec.json.decode(line, type=JobEvent)) == "held"


def test_no_value_is_no_json() -> None:
    assert not bytes(NO_VALUE)
