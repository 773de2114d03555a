"""Queues as facts: their wire form, what may follow what, and a state that the newest event alone tells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.support.golden import golden_lines
from tests.support.stories import Story, check, found
from tests.support.tables import each_row

from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import InvalidInputError, LedgerError, RefusedError
from jobledger.ledger.model.queue_pause import (
    QUEUE,
    PauseQueue,
    QueueCommand,
    QueuePaused,
    QueueResumed,
    QueueState,
    ResumeQueue,
    decide,
    evolve,
)
from jobledger.ledger.model.subjects import Names

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
STAMP = Stamp(at=NOW, by="ann", trace="t")
LINES = [line.data for line in golden_lines() if line.aggregate == "queue"]
PAUSED = QueueState(paused=True, since=NOW, by="ann", sequence=7)
OVER = msgspec.structs.replace(PAUSED, until=NOW - timedelta(seconds=1))
RESUMED = QueueState(since=NOW, by="ann", sequence=9)


def stored(data: bytes, sequence: int = 9) -> Message:
    return Message(data=data, stream_sequence=sequence, stored_at=NOW, subject="ledger.queue.email.paused")


@each_row("line", LINES)
def test_every_released_line_decodes_and_comes_out_byte_for_byte(line: bytes) -> None:
    assert msgspec.json.encode(QUEUE.decode(stored(line))) == line


@each_row("cls", QUEUE.types.values())
def test_every_field_of_every_event_has_a_golden_line(cls: type[msgspec.Struct]) -> None:
    lines = [line for line in LINES if type(QUEUE.decode(stored(line))) is cls]
    written = {name for line in lines for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw])}
    assert written == {"type", *cls.__struct_fields__}


# One line per case: the queue as it is, the command, and the fields of the event, or the refusal.
DECISIONS: list[tuple[QueueState | None, QueueCommand, dict[str, object] | type[LedgerError]]] = [
    (None, PauseQueue(), {"type": "paused", "until": None, "interrupt": False, "reason": ""}),
    (None, PauseQueue(until=LATER, reason="r", interrupt=True), {"until": LATER, "reason": "r", "interrupt": True}),
    (RESUMED, PauseQueue(), {"type": "paused"}),
    (PAUSED, PauseQueue(until=LATER), {"type": "paused", "until": LATER}),
    (None, PauseQueue(until=NOW), InvalidInputError),
    (PAUSED, ResumeQueue(reason="r"), {"type": "resumed", "reason": "r"}),
    (OVER, ResumeQueue(), {"type": "resumed"}),
    (RESUMED, ResumeQueue(), RefusedError),
    (None, ResumeQueue(), RefusedError),
]  # fmt: skip


@each_row(("state", "command", "expected"), DECISIONS)
def test_decide(
    state: QueueState | None, command: QueueCommand, expected: dict[str, object] | type[LedgerError]
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide("email", state, command, STAMP)
        return
    event = decide("email", state, command, STAMP)
    said = {"type": QUEUE.type_of(event), **msgspec.structs.asdict(event)}
    assert {name: said[name] for name in expected} == expected
    assert (event.queue, event.at, event.by, event.trace) == ("email", NOW, "ann", "t")
    assert QUEUE.subject(Names("staging"), event) == f"staging_ledger.queue.email.{said['type']}"


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="until has no time zone"):
        PauseQueue(until=LATER.replace(tzinfo=None))


def test_the_newest_event_alone_is_the_state_and_a_pause_ends_by_itself() -> None:
    assert not QueueState().is_paused(NOW)
    paused = decide("email", None, PauseQueue(until=LATER, reason="r"), STAMP)
    state = evolve(None, paused, 5)
    assert state == QueueState(paused=True, since=NOW, by="ann", reason="r", until=LATER, sequence=5)
    assert [state.is_paused(LATER + timedelta(seconds=each)) for each in (-1, 0, 1)] == [True, False, False]
    resumed = evolve(state, decide("email", state, ResumeQueue(), STAMP), 8)
    assert (resumed.is_paused(NOW), resumed.sequence) == (False, 8)
    assert evolve(None, decide("email", resumed, PauseQueue(), STAMP), 9).is_paused(LATER)


def test_what_a_queue_cannot_have_been_is_found() -> None:
    story = Story()
    story.record(QueuePaused(queue="email", at=NOW, by="ann"))
    story.record(QueueResumed(queue="email", at=NOW, by="ann"))
    assert check(story.messages).sound
    story.record(QueueResumed(queue="email", at=NOW, by="ann"))
    story.record(QueuePaused(queue="email", at=NOW, by="ann", until=NOW))
    assert found(check(story.messages)) == [
        (3, "queue email", "transition"),
        (4, "queue email", "transition"),
    ]


def test_a_pause_stays_in_the_ledger_while_it_lasts() -> None:
    kept = [QUEUE.kept(stored(line)) for line in LINES]
    assert [None if each is None else (each.from_sequence, each.until) for each in kept] == [
        (9, None), (9, datetime(2026, 1, 2, 4, tzinfo=UTC)), None, None,
    ]  # fmt: skip
