"""The checker on timers: nothing is dispatched early, nothing that is due is forgotten."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from tests.support.stories import (
    BEGIN,
    BOOM,
    Story,
    check,
    found,
)

from jobledger.ledger.audit import Expected, Options
from jobledger.ledger.commands import (
    Dispatch,
    Fail,
)
from jobledger.ledger.events import (
    Cause,
)


def delayed(cause: Cause = "due") -> Story:
    story = Story()
    if cause == "retried":
        story.enqueue("j")
        story.claim("j")
        due_at = story.now + timedelta(seconds=60)
        story.do("j", Fail(epoch=story.epoch("j"), error=BOOM, retry_at=due_at))
    else:
        story.enqueue("j", run_at=story.now + timedelta(seconds=60))
        due_at = BEGIN + timedelta(seconds=60)
    story.now = due_at
    return story


@pytest.mark.parametrize("cause", ["due", "retried"])
@pytest.mark.parametrize(
    ("off_s", "sound"), [(-30, False), (-1.1, False), (-0.9, True), (0, True), (500, True)]
)
def test_a_timer_that_fired_early_is_found(cause: Cause, off_s: float, sound: bool) -> None:
    story = delayed(cause)
    story.now += timedelta(seconds=off_s)
    sequence = story.do("j", Dispatch(cause=cause))
    report = check(story.messages)
    assert found(report) == ([] if sound else [(sequence, "email/j", "timer")])
    if not sound:
        assert (
            f"`queued` as {cause!r} {-off_s:.3f} s before 2026-01-02T00:01" in report.violations[0].sentence
        )


def test_the_tolerance_of_timers_can_be_chosen() -> None:
    story = delayed()
    story.now -= timedelta(seconds=0.5)
    story.do("j", Dispatch(cause="due"))
    assert check(story.messages).sound
    assert check(story.messages, options=Options(timer_tolerance_s=0.1)).broken == {"timer": 1}


def test_an_operator_may_come_before_the_timer_and_says_why() -> None:
    story = delayed()
    story.now -= timedelta(seconds=30)
    story.do("j", Dispatch(cause="due", reason="the customer waits"))
    assert check(story.messages).sound


@pytest.mark.parametrize("behind", ["appender", "server"])
def test_one_wrong_clock_makes_no_early_timer(behind: str) -> None:
    story = delayed()
    due_at, early_at = story.now, story.now - timedelta(hours=1)
    story.now = early_at if behind == "appender" else due_at
    story.do("j", Dispatch(cause="due"))
    stored_at = due_at if behind == "appender" else early_at
    story.messages[-1] = msgspec.structs.replace(story.messages[-1], stored_at=stored_at)
    assert check(story.messages).sound


def test_a_timer_that_never_fired_is_found_where_it_must_have() -> None:
    story = delayed()
    due_at = story.now
    assert check(story.messages).timers_pending == 1
    assert check(story.messages, Expected(timers_until=due_at)).sound
    report = check(story.messages, Expected(timers_until=due_at + timedelta(seconds=1)))
    assert found(report) == [(1, "email/j", "timer")]
    assert report.violations[0].sentence == "it was due at 2026-01-02T00:01:00+00:00 and is still scheduled"
