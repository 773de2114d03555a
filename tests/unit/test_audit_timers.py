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
from tests.support.tables import each_row

from jobledger.audit.verify import CheckOptions, Expectation
from jobledger.ledger.model.commands import CancelJob, Dispatch, Fail, Pause, Snooze
from jobledger.ledger.model.events import Cause


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


@each_row("cause", ["due", "retried"])
@each_row(("off_s", "sound"), [(-30, False), (-1.1, False), (-0.9, True), (0, True), (500, True)])
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
    assert check(story.messages, options=CheckOptions(timer_tolerance_s=0.1)).broken == {"timer": 1}


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
    assert check(story.messages, Expectation(timers_until=due_at)).sound
    report = check(story.messages, Expectation(timers_until=due_at + timedelta(seconds=1)))
    assert found(report) == [(1, "email/j", "timer")]
    assert report.violations[0].sentence == "it was due at 2026-01-02T00:01:00+00:00 and is still scheduled"


@each_row(("late_s", "sound"), [(0, True), (3_599, True), (3_600, True), (3_601, False), (86_400, False)])
@each_row("by", ["the next event", "the caller"])
def test_a_job_that_waits_long_after_its_time_is_found(late_s: float, sound: bool, by: str) -> None:
    """By the time of the newest event, or by the caller's where the check goes up to the head."""
    story = delayed()
    then = story.now + timedelta(seconds=late_s)
    if by == "the next event":
        story.now = then
        story.enqueue("k")
        report = check(story.messages)
    else:
        report = check(story.messages, Expectation(now=then))
    assert found(report) == ([] if sound else [(1, "email/j", "timer")])
    if not sound:
        due = "it was due at 2026-01-02T00:01:00+00:00"
        assert report.violations[0].sentence == f"{due}, {late_s:,.0f} s ago, and is still scheduled"


def test_every_wait_for_a_moment_can_be_overdue_and_others_cannot() -> None:
    story = Story()
    for job_id in ("failed", "snoozed", "paused", "patient", "queued", "held"):
        story.enqueue(job_id, limits=("api",) if job_id == "held" else ())
    for job_id in ("failed", "snoozed", "paused", "patient"):
        story.claim(job_id)
    until = story.now + timedelta(minutes=1)
    story.do("failed", Fail(epoch=story.epoch("failed"), error=BOOM, retry_at=until))
    story.do("snoozed", Snooze(epoch=story.epoch("snoozed"), until=until))
    story.do("paused", Pause(epoch=story.epoch("paused"), event="paid", until=until))
    story.do("patient", Pause(epoch=story.epoch("patient"), event="paid"))
    late = Expectation(now=until + timedelta(days=2))
    report = check(story.messages, late)
    assert [(job, rule) for _, job, rule in found(report)] == [
        ("email/failed", "timer"),
        ("email/snoozed", "timer"),
        ("email/paused", "timer"),
    ]
    assert check(story.messages, late, options=CheckOptions(overdue_grace_s=3 * 86_400)).sound


def test_a_wait_that_ended_late_or_was_cancelled_is_honoured() -> None:
    story = delayed()
    story.now += timedelta(days=1)
    story.do("j", Dispatch(cause="due"))
    story.enqueue("k", run_at=story.now + timedelta(seconds=1))
    story.now += timedelta(days=1)
    story.do("k", CancelJob())
    assert check(story.messages, Expectation(now=story.now + timedelta(days=9))).sound
