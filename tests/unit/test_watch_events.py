"""Watches as facts: their wire form, what can be watched, who is believed of several gateways, and what is checked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.golden import golden_lines
from tests.support.stories import Story, check, found
from tests.support.tables import each_row

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Remove, Stamp
from jobledger.ledger.model.errors import InvalidError, LedgerError
from jobledger.ledger.model.hooks.errors import WatchNotFoundError
from jobledger.ledger.model.hooks.watch import (
    WATCH,
    Judge,
    SetWatch,
    Watch,
    WatchCommand,
    WatchDefinition,
    WatchFiring,
    WatchResolved,
    WatchSet,
    decide,
    evolve,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
STAMP = Stamp(at=NOW, by="ann", trace="t")
LINES = [line.data for line in golden_lines() if line.aggregate == "watch"]
DEEP = WatchDefinition(figure="depth", above=10)
OTHER = msgspec.structs.replace(DEEP, above=20)
QUIET = Watch(name="deep", definition=DEEP, at=NOW, by="ann", sequence=5, position=40)
FIRING = msgspec.structs.replace(QUIET, firing=True, value=11.0)
REMOVED = msgspec.structs.replace(QUIET, removed=True)


def stored(data: bytes, sequence: int = 9) -> Message:
    return Message(data=data, stream_sequence=sequence, stored_at=NOW, subject="ledger.watch.deep.set")


@each_row("line", LINES)
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    assert msgspec.json.encode(WATCH.decode(stored(line))) == line


@each_row("cls", WATCH.types.values())
def test_every_field_of_every_event_has_a_golden_line(cls: type[msgspec.Struct]) -> None:
    lines = [line for line in LINES if type(WATCH.decode(stored(line))) is cls]
    written = {name for line in lines for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
    assert written == {"type", *cls.__struct_fields__}


# One line per case: the watch as it is, the command, and the fields of the event, None for no event, or the refusal.
DECISIONS: list[tuple[Watch | None, WatchCommand, dict[str, object] | type[LedgerError] | None]] = [
    (None, SetWatch(definition=DEEP, reason="r"), {"type": "set", "definition": DEEP, "reason": "r"}),
    (REMOVED, SetWatch(definition=DEEP), {"type": "set"}),
    (QUIET, SetWatch(definition=DEEP), None),
    (FIRING, SetWatch(definition=OTHER), {"type": "set", "firing": False, "position": 0}),
    (QUIET, Judge(value=11.0, position=40, sequence=5, fires=True), {"type": "firing", "firing": True, "value": 11.0, "position": 40}),
    (FIRING, Judge(value=11.0, position=41, sequence=5, fires=True), None),
    (FIRING, Judge(value=2.0, position=41, sequence=5, fires=False), {"type": "resolved", "firing": False, "value": 2.0}),
    (FIRING, Judge(value=None, position=41, sequence=5, fires=False), {"type": "resolved", "value": None}),
    (FIRING, Judge(value=2.0, position=39, sequence=5, fires=False), None),  # by a gateway that is behind
    (FIRING, Judge(value=2.0, position=41, sequence=4, fires=False), None),  # of what the watch was before
    (None, Judge(value=2.0, position=41, sequence=4, fires=True), None),
    (REMOVED, Judge(value=2.0, position=41, sequence=5, fires=True), None),
    (FIRING, Remove(reason="r"), {"type": "removed", "firing": False, "reason": "r"}),
    (None, Remove(), WatchNotFoundError),
    (REMOVED, Remove(), WatchNotFoundError),
]  # fmt: skip


@each_row(("watch", "command", "expected"), DECISIONS)
def test_decide(
    watch: Watch | None, command: WatchCommand, expected: dict[str, object] | type[LedgerError] | None
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide("deep", watch, command, STAMP)
        return
    event = decide("deep", watch, command, STAMP)
    if event is None or expected is None:
        assert (event, expected) == (None, None)
        return
    said = {"type": WATCH.type_of(event), **msgspec.structs.asdict(event)}
    assert {name: said[name] for name in expected} == expected
    assert (event.watch, event.at, event.by, event.trace) == ("deep", NOW, "ann", "t")


@each_row(
    ("differs", "said"),
    [
        ({"figure": "size"}, "there is no figure 'size'"),
        ({"above": None}, "needs a bound"),
        ({"above": float("nan")}, "above is nan"),
        ({"below": float("inf")}, "below is inf"),
        ({"above": -1}, "depth is never less than 0, so a watch with above -1 would fire always or never"),
        ({"above": None, "below": 0}, "with below 0"),
        ({"figure": "error_rate", "above": 3}, "a share from 0 to 1 (write 0.05 for 5 %)"),
        ({"figure": "success_rate", "above": 1}, "with above 1 would"),
        ({"figure": "success_rate", "above": None, "below": 95}, "with below 95 would"),
        ({"for_s": -1}, "for_s must be"),
        ({"for_s": float("nan")}, "for_s must be"),
        ({"window_s": 59}, "window_s must be"),
        ({"queue": "a b"}, "queue 'a b' is not valid"),
        ({"queue": "webhooks-out"}, "deliveries of webhooks"),
        ({"figure": "lag", "queue": "q"}, "no queue and no task"),
    ],
)
def test_what_cannot_be_watched_is_refused_with_a_sentence(differs: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidError) as refused:
        SetWatch(definition=msgspec.structs.replace(DEEP, **differs))
    assert said in str(refused.value)


@each_row(
    "differs",
    [
        {"above": 0},
        {"above": 3, "below": 0.5},
        {"figure": "error_rate", "above": 0},
        {"figure": "success_rate", "above": None, "below": 1},
    ],
)
def test_a_bound_that_the_figure_can_reach_is_taken(differs: dict[str, Any]) -> None:
    SetWatch(definition=msgspec.structs.replace(DEEP, **differs))


@each_row(
    ("bounds", "value", "expected"),
    [
        ({"above": 1}, 1.0, False), ({"above": 1}, 1.1, True), ({"below": 1}, 1.0, False), ({"below": 1}, 0.9, True),
        ({"above": 2, "below": 1}, 0.0, True), ({"above": 2, "below": 1}, 1.5, False), ({"above": 0}, None, False),
    ],
)  # fmt: skip
def test_a_figure_is_held_against_both_bounds(
    bounds: dict[str, Any], value: float | None, expected: bool
) -> None:
    assert WatchDefinition(figure="depth", **bounds).is_breached(value) is expected


def test_what_a_watch_cannot_have_said_is_found() -> None:
    said: dict[str, Any] = {"watch": "deep", "at": NOW, "by": "g", "definition": DEEP}
    story = Story()
    story.record(WatchSet(**said))
    story.record(WatchFiring(**said, firing=True, value=11.0, position=7))
    story.record(
        WatchFiring(**said, firing=True, value=11.0, position=7)
    )  # once more, as archive runs say it
    story.record(WatchResolved(**said, value=1.0, position=9))
    assert check(story.messages).sound
    story.record(WatchFiring(**said, firing=True, value=3.0, position=10))
    story.record(WatchResolved(**said, value=1.0, position=8))
    story.record(WatchResolved(watch="deep", at=NOW, by="g", definition=OTHER, value=1.0, position=10))
    assert {sequence for sequence, *_ in found(check(story.messages))} == {5, 6, 7}


def test_the_newest_event_alone_is_the_state() -> None:
    event = decide("deep", QUIET, Judge(value=11.0, position=40, sequence=5, fires=True), STAMP)
    assert event is not None
    assert evolve(None, event, 6) == evolve(QUIET, event, 6)
    assert evolve(None, event, 6).firing
