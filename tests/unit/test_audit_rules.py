"""The checker on events that nobody may append: each has its place in the chain, and breaks one rule."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.stories import (
    BOOM,
    Story,
    check,
    found,
)
from tests.support.tables import each_row

from jobledger.audit.verify import Violation
from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.commands import CancelJob, Fail, Fence, Interrupt, Snooze, TakeOver
from jobledger.ledger.model.events import (
    Cancelled,
    Completed,
    Failed,
    Fenced,
    JobEvent,
    Queued,
    Snoozed,
    Started,
)


def _second_outcome(story: Story) -> int:
    story.run("j")
    return story.plant("j", Completed, attempt=1)


def _another_outcome(story: Story) -> int:
    story.claim("j")
    story.do("j", Fail(epoch=story.epoch("j"), error=BOOM))  # and queued again at once
    return story.plant("j", Completed, attempt=1)


def _outcome_of_a_lost_attempt(story: Story) -> int:
    held = story.claim("j")
    story.do("j", TakeOver(worker="w2", lease_s=15, lost_epoch=held))
    return story.plant("j", Completed, attempt=1)


def _outcome_of_no_attempt(story: Story) -> int:
    story.claim("j")
    return story.plant("j", Failed, attempt=9, error=BOOM)


def _failure_after_the_end(story: Story) -> int:
    story.run("j")
    return story.plant("j", Failed, attempt=1, error=BOOM)


def _one_attempt_too_many(story: Story) -> int:
    for _ in range(2):
        story.claim("j")
        story.do("j", Fail(epoch=story.epoch("j"), error=BOOM))
    held = story.claim("j")
    story.do("j", Fence(epoch=held - 3, attempt=2, worker="w1", outcome="failed"))
    return story.plant("j", Started, attempt=4, worker="w2", lease_s=15)


def _a_limit_raised_by_a_retry(story: Story) -> int:
    story.claim("j")
    story.do("j", Fail(epoch=story.epoch("j"), error=BOOM, retry_at=story.now))
    story.plant("j", Started, attempt=2, worker="w1", lease_s=15)
    story.do("j", Fail(epoch=story.epoch("j"), error=BOOM, retry_at=story.now + timedelta(seconds=1)))
    story.now += timedelta(seconds=1)
    return story.plant("j", Queued, cause="retried", attempt=3, max_attempts=99)


def _started_after_the_end(story: Story) -> int:
    story.run("j")
    return story.plant("j", Started, attempt=2, worker="w2", lease_s=15)


def _cancelled_after_the_end(story: Story) -> int:
    story.run("j")
    return story.plant("j", Cancelled)


def _queued_while_running(story: Story) -> int:
    story.claim("j")
    return story.plant("j", Queued, cause="retried", attempt=2, max_attempts=3)


def _requeued_when_cancelled(story: Story) -> int:
    story.do("j", CancelJob())
    return story.plant("j", Queued, cause="requeued", max_attempts=3)


def _fenced_without_a_claim(story: Story) -> int:
    end = story.run("j")
    return story.plant(
        "j", Fenced, attempt=1, worker="w1", held_epoch=end, current_epoch=0, outcome="completed"
    )


def _of_another_task(story: Story) -> int:
    story.claim("j")
    return story.plant("j", Completed, attempt=1, task="other")


@each_row(
    ("plant", "rule", "sentence"),
    [
        (_second_outcome, "outcome", "`completed` is a second outcome of attempt 1, which was completed before"),
        (_another_outcome, "outcome", "`completed` is a second outcome of attempt 1, which was failed before"),
        (_outcome_of_a_lost_attempt, "outcome", "`completed` of attempt 1 was accepted, whose claim 2 was lost before"),
        (_outcome_of_no_attempt, "transition", "`failed` of attempt 9, running is 1"),
        (_failure_after_the_end, "outcome", "`failed` is a second outcome of attempt 1, which was completed before"),
        (_one_attempt_too_many, "attempts", "attempt 4 of 3 was started"),
        (_a_limit_raised_by_a_retry, "attempts", "`queued` changes the limit of 3 attempts to 99"),
        (_started_after_the_end, "transition", "`started` follows while it is completed"),
        (_cancelled_after_the_end, "transition", "`cancelled` follows while it is completed"),
        (_queued_while_running, "transition", "`queued` with cause 'retried' while it is running"),
        (_requeued_when_cancelled, "transition", "`queued` follows while it is cancelled"),
        (_fenced_without_a_claim, "transition", "`fenced` claim 3 as attempt 1, which it never had"),
        (_of_another_task, "transition", "`completed` names email/j (other), its chain is of email/j (send)"),
    ],
)  # fmt: skip
def test_a_planted_event_is_found_and_named(plant: Callable[[Story], int], rule: Any, sentence: str) -> None:
    story = Story()
    story.enqueue("j")
    sequence = plant(story)
    expected = Violation(stream_sequence=sequence, job="email/j", rule=rule, sentence=sentence)
    assert check(story.messages).violations[-1:] == (expected,)
    story.enqueue("k")
    story.run("k")
    report = check(story.messages)
    assert [each for each in report.violations if each.stream_sequence > sequence] == [], (
        "others are not accused"
    )


def test_an_epoch_that_goes_back_is_found() -> None:
    story = Story()
    story.enqueue("j")
    held = story.claim("j")
    sequence = story.do("j", TakeOver(worker="w2", lease_s=15, lost_epoch=held))
    taken_over = story.messages[-1]
    story.messages[-1] = read_message(taken_over.subject, taken_over.data, held, taken_over.stored_at)
    report = check(story.messages)
    assert sequence == held + 2  # behind `lost`
    assert found(report) == [(held, "", "sequence"), (held, "email/j", "epoch")]
    assert report.violations[1].sentence == f"claim {held} follows claim {held}: epochs must grow"


def test_an_attempt_counted_by_nobody_is_found() -> None:
    """Given back are attempts that ended so; a limit of one allows one that counts."""
    story = Story()
    story.enqueue("j", max_attempts=1)
    for _ in range(3):
        story.claim("j")
        story.do("j", Interrupt(epoch=story.epoch("j"), reason="deploy"))
    held = story.claim("j")
    assert check(story.messages).sound
    sequence = story.plant("j", Started, attempt=5, worker="w2", lease_s=15)
    report = check(story.messages)
    assert held == sequence - 1
    assert found(report) == [(sequence, "email/j", "attempts")]
    assert report.violations[0].sentence == "attempt 2 of 1 was started"


@pytest.mark.parametrize("event", [Failed, Snoozed])
def test_half_a_batch_is_found(event: type[JobEvent]) -> None:
    story = Story()
    story.enqueue("j")
    story.enqueue("k")
    story.claim("j")
    if event is Failed:
        sequence = story.plant("j", Failed, attempt=1, error=BOOM)
    else:
        sequence = story.do("j", Snooze(epoch=story.epoch("j"), until=story.now))
    story.claim("k")
    expected = [(sequence, "email/j", "batch")] if event is Failed else []
    assert found(check(story.messages)) == expected
