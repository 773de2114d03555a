"""The server's times of storing, which no hash protects: held to the events' own, and told where they do not fit."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.support.stories import Story, check, rich, stored_in
from tests.support.tables import each_row

from jobledger.audit.verify import verify
from jobledger.audit.verify.times import said
from jobledger.audit.verify.unproven import TIMES
from jobledger.ledger.model.codec import Message
from jobledger.ledger.model.memory import MemoryLog

AT = 7  # index of the event whose time is altered


def altered(messages: list[Any], by: timedelta, index: int = AT) -> list[Message]:
    """Return the events with one of the server's times moved."""
    changed = list(messages)
    moved = changed[index].stored_at + by
    changed[index] = msgspec.structs.replace(changed[index], stored_at=moved)
    return changed


@each_row("index", range(0, len(rich().messages), 6))
def test_a_time_that_was_altered_is_a_notice_and_no_violation(index: int) -> None:
    messages = rich().messages
    untouched = check(messages)
    assert list(untouched.times.notices()) == []
    assert (untouched.times.back_s, untouched.times.back_sequence) == (0, 0)
    assert 0 <= untouched.times.apart_s < 60
    assert "apart at most" in untouched.times.text()
    later = check(altered(messages, timedelta(days=5 * 365), index))
    sequence = messages[index].stream_sequence
    assert later.sound
    assert later.times.apart_sequence == sequence
    assert later.times.apart_s == pytest.approx(5 * 365 * 86_400, rel=1e-3)
    first, *rest = later.times.notices()
    assert f"stream sequence {sequence} and the event's own are 1,825.0 d apart" in first
    assert f"notice: {first}" in later.text().splitlines()
    assert len(rest) == (index < len(messages) - 1)  # the next one goes back


def test_a_small_step_back_is_told_with_its_place() -> None:
    messages = rich().messages
    report = check(altered(messages, -timedelta(minutes=30)))
    assert (report.sound, report.times.back_sequence) == (True, messages[AT].stream_sequence)
    (notice,) = report.times.notices()
    assert "goes back by" in notice
    assert f"at stream sequence {messages[AT].stream_sequence}:" in notice


def test_a_ledger_without_events_has_no_times() -> None:
    times = check([]).times
    assert (times.text(), list(times.notices())) == ("", [])


def test_what_cannot_be_read_has_no_time_of_its_own_and_stops_nothing() -> None:
    messages = rich().messages
    strange = Message(
        subject="ledger.reactor.x.y",
        data=b"\xff",
        stream_sequence=len(messages) + 1,
        stored_at=messages[-1].stored_at,
    )
    assert check([*messages, strange]).times == check(messages).times


def test_every_verdict_says_how_far_it_goes() -> None:
    def unproven(story: Story, **options: Any) -> list[str]:
        async def run() -> list[str]:
            report = await verify(await stored_in(story, MemoryLog()), **options)
            return list(report.not_proven)

        return asyncio.run(run())

    end, rewritten, *rest = unproven(rich())
    assert end.startswith("that nothing was cut off at the end")
    assert rewritten.startswith("that stream sequence 1 to ")
    assert rest == [TIMES]
    assert [each[:31] for each in unproven(rich(), to_sequence=5)] == [
        "that stream sequence 1 to 5 wer",
        TIMES[:31],
    ]
    assert unproven(rich(), from_sequence=5)[0].startswith("what needs the events before 5")
    assert len(unproven(Story())) == 1


@each_row(
    ("seconds", "words"),
    [(0, "0 µs"), (0.0012, "1.2 ms"), (59, "59.0 s"), (7_200, "2.0 h"), (1e9, "11,574.1 d")],
)
def test_a_span_is_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert said(seconds) == words
