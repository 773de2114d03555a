"""What a person says of a message that is no event: its wire form, what is refused, what a check makes of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.support.stories import NAMES, Story, check, found

from jobledger.ledger.model.codec import Message, Unreadable
from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.errors import RefusedError
from jobledger.ledger.model.unreadable import UNREADABLE, Acknowledged, acknowledge

GOLDEN = Path(__file__).parent / "golden" / "unreadable"
LINES = [line for release in sorted(GOLDEN.glob("*.jsonl")) for line in release.read_bytes().splitlines()]
STAMP = Stamp(at=datetime(2026, 1, 2, tzinfo=UTC), by="ada")


def test_every_released_line_decodes_and_comes_out_byte_for_byte() -> None:
    for line in LINES:
        message = Message(
            data=line, stream_sequence=9, stored_at=STAMP.at, subject="ledger.unreadable.4711.acknowledged"
        )
        assert UNREADABLE.encode(UNREADABLE.decode(message)) == line
        assert set(msgspec.json.decode(line)) == {"type", *Acknowledged.__struct_fields__}


def told(story: Story, sequence: int, **changes: object) -> int:
    """Accept a message, with changes that no program makes; return the event's stream sequence."""
    message = story.messages[sequence - 1]
    assert isinstance(message, Unreadable)
    event = msgspec.structs.replace(acknowledge(message, None, "a test", STAMP), **changes)
    chain = UNREADABLE.chain(NAMES, str(sequence)).removesuffix(">")
    own = [each for each in story.messages if each.subject.startswith(chain)]
    (entry,) = UNREADABLE.link(NAMES, [event], UNREADABLE.view(own[-1] if own else None))
    story.store(entry.subject, entry.data)
    return len(story.messages)


def with_rubbish() -> Story:
    story = Story()
    story.enqueue("a")
    story.store("ledger.job.email.a.completed", b"\xff")
    story.run("a")
    story.store("ledger.what", b"{}")
    return story


def test_what_was_accepted_is_listed_and_no_violation() -> None:
    story = with_rubbish()
    assert found(check(story.messages)) == [(2, "email/a", "readable"), (5, "", "readable")]
    told(story, 5)
    report = check(story.messages)
    assert (found(report), report.broken) == ([(2, "email/a", "readable")], {"readable": 1})
    assert [each.stream_sequence for each in report.acknowledged] == [5]
    told(story, 2)
    report = check(story.messages)
    assert (report.sound, report.broken, report.acknowledged_count) == (True, {}, 2)
    first = report.acknowledged[0]
    assert (first.subject, first.by, first.reason) == ("ledger.job.email.a.completed", "ada", "a test")
    assert "acknowledged: stream sequence 2 (ledger.job.email.a.completed) is no event" in report.text()
    assert "acknowledged: stream sequence 5" in report.text()


def test_an_acknowledgement_of_other_bytes_accepts_nothing() -> None:
    story = with_rubbish()
    told(story, 2, sha256="0" * 64)
    assert found(check(story.messages)) == [(2, "email/a", "readable"), (5, "", "readable")]


def test_a_second_acknowledgement_is_refused_and_a_forged_one_found() -> None:
    story = with_rubbish()
    told(story, 5)
    message = story.messages[4]
    assert isinstance(message, Unreadable)
    before = UNREADABLE.view(story.messages[-1])
    with pytest.raises(RefusedError, match=r"stream sequence 5 was acknowledged by ada at .*: a test"):
        acknowledge(message, before.state, "again", STAMP)
    second = told(story, 5)
    assert (second, "unreadable 5", "transition") in found(check(story.messages))
