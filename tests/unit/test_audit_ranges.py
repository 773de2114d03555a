"""The checker on what its caller knows, and on ranges that do not begin at the first event."""

from __future__ import annotations

import pytest
from tests.support.stories import (
    BOOM,
    NAMES,
    Story,
    changed,
    check,
    found,
    rich,
)

from jobledger.audit.verify import Checker, Expectation, Leftover
from jobledger.ledger.model.commands import Fail, ReportProgress
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Queued


def test_a_job_without_a_final_state_is_found() -> None:
    story = rich()
    for job_id in ("queued", "running", "dead"):
        story.enqueue(job_id, max_attempts=1)
    started = story.claim("running")
    story.claim("dead")
    story.do("dead", Fail(epoch=story.epoch("dead"), error=BOOM))
    report = check(story.messages, Expectation(all_final=True))
    assert [each[1:] for each in found(report)] == [("email/queued", "final"), ("email/running", "final")]
    assert report.violations[1].stream_sequence == started
    assert report.violations[1].sentence == "it is still running: it has no final state"
    assert check(story.messages).sound, "while work goes on it is as it should be"


def test_acknowledged_jobs_and_those_in_the_ledger_are_the_same() -> None:
    story = rich()
    story.enqueue("extra")
    acknowledged = {("email", each) for each in "abcdefg"}
    report = check(story.messages, Expectation(enqueued=acknowledged | {("email", "lost"), ("other", "a")}))
    assert sorted(found(report)) == [
        (0, "email/lost", "enqueue"),
        (0, "other/a", "enqueue"),
        (len(story.messages), "email/extra", "enqueue"),
    ]


def test_an_enqueue_without_an_answer_may_be_there_or_not() -> None:
    acknowledged = [("email", each) for each in "abcdef"]
    unsure = {("email", "g"), ("email", "never arrived")}
    assert check(rich().messages, Expectation(enqueued=acknowledged, unsure=unsure)).sound


def test_what_is_left_in_a_consumer_is_found() -> None:
    left = Leftover(consumer="work_email_high", pending=2, ack_pending=1)
    report = check(rich().messages, Expectation(leftovers=[left]))
    assert found(report) == [(0, "", "consumer")]
    assert report.violations[0].sentence == "consumer work_email_high holds 2 pending and 1 unacknowledged"


# A range that starts later.


def test_a_later_range_checks_links_sequence_and_what_begins_in_it() -> None:
    story = rich()
    report = check(story.messages[4:], from_sequence=5)
    assert (report.sound, report.jobs, report.partial_jobs) == (True, 6, 1)
    assert (report.from_sequence, report.head_sequence) == (5, len(story.messages))


def test_a_later_range_finds_a_broken_link_and_a_forged_job() -> None:
    story = Story()
    for job_id in ("old", "new"):
        story.enqueue(job_id)
        story.claim(job_id)
        story.do(job_id, ReportProgress(epoch=story.epoch(job_id), done=1))
        story.plant(job_id, Queued, cause="new", max_attempts=3)
    story.messages[1] = changed(story.messages[1], b'"worker":"w1"', b'"worker":"w2"')
    report = check(story.messages[1:], from_sequence=2)
    assert found(report) == [(3, "email/old", "chain"), (8, "email/new", "transition")]
    assert check(story.messages).broken == {"chain": 1, "transition": 2}, "from 1 the other one is found too"


def test_expected_jobs_need_the_whole_ledger() -> None:
    checker = Checker(NAMES, from_sequence=5)
    with pytest.raises(InvalidInputError, match="from sequence 1"):
        checker.finish(Expectation(enqueued=[]))
