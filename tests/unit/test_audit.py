"""The checker of a ledger: a sound one passes, with its figures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.stories import (
    STEPS,
    Story,
    check,
    rich,
)

from jobledger.audit.verify import CheckOptions, Expectation, Report
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.events import Cancelled, Started, event_type

# A sound ledger.


def test_a_sound_ledger_is_proven_with_its_figures() -> None:
    story = rich()
    report = check(
        story.messages, Expectation(enqueued=[("email", each) for each in "abcdefg"], all_final=True)
    )
    assert (report.sound, report.violations, report.broken) == (True, (), {})
    assert (report.events, report.head_sequence) == (len(story.messages), len(story.messages))
    assert report.head_hash == story.messages[-1].hash
    assert report.states == {"completed": 4, "cancelled": 2, "discarded": 1}
    started = [
        each for each in story.messages if isinstance(each, StoredEvent) and isinstance(each.event, Started)
    ]
    assert (report.jobs, report.partial_jobs, report.attempts, report.locks) == (7, 0, len(started), 1)
    types = {event_type(each.event) for each in story.messages if isinstance(each, StoredEvent)}
    assert len(types) == 17, "the story has every type"


def test_a_report_is_kept_as_json_and_told_to_a_person() -> None:
    report = check(rich().messages)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert report.text().splitlines()[0] == "the ledger is sound"
    assert "7 jobs (cancelled 2, completed 4, discarded 1)" in report.text()


def test_an_empty_ledger_is_sound() -> None:
    report = check([], Expectation(enqueued=[], all_final=True, leftovers=[]))
    assert (report.sound, report.events, report.head_sequence, report.head_hash) == (True, 0, 0, "")


def test_the_violations_kept_are_bounded_and_all_are_counted() -> None:
    story = Story()
    for number in range(50):
        story.plant(f"j{number}", Cancelled)
    report = check(story.messages, options=CheckOptions(violations_max=3))
    assert (len(report.violations), report.violations_count, report.broken) == (3, 50, {"transition": 50})
    text = report.text()
    assert text.startswith("the ledger is NOT sound: 50 violations (transition 50)")
    assert "  at 1 [transition] email/j0: `cancelled` is its first event" in text
    assert text.endswith("  and 47 more")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(STEPS)), max_size=40))
def test_whatever_is_decided_is_sound(steps: list[tuple[str, Callable[[Story, str], Any]]]) -> None:
    story = Story()
    story.enqueue("a", run_at=story.now + timedelta(minutes=1))
    story.enqueue("b", max_attempts=2)
    for job_id, step in steps:
        with contextlib.suppress(LedgerError):
            step(story, job_id)
    report = check(story.messages, Expectation(enqueued=[("email", "a"), ("email", "b")]))
    assert report.violations == ()
