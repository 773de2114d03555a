"""The checker on a ledger whose beginning was archived: what is gone must have been moved, what lives carried over."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from tests.support.stories import BOOM, NAMES, Story, check, found, rich
from tests.support.tables import each_row

from jobledger.audit.verify import Checker, Report
from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.codec import Message, StoredEvent, encode
from jobledger.ledger.model.commands import Carry, Dispatch, Fail, Fence
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Cancelled, Carried, Completed, ErrorInfo, Order


def archived() -> tuple[Story, int]:
    """A ledger of jobs in every state that lives, archived through the place where they all are; return that as well."""
    story = rich()
    story.enqueue("queued")
    story.enqueue("running")
    story.claim("running")
    story.enqueue("scheduled", run_at=story.now + timedelta(minutes=30))
    story.enqueue("retried")
    story.claim("retried")
    later = story.now + timedelta(minutes=30)
    story.do("retried", Fail(epoch=story.epoch("retried"), error=BOOM, retry_at=later))
    story.enqueue("dead", max_attempts=1)
    story.claim("dead")
    story.do("dead", Fail(epoch=story.epoch("dead"), error=BOOM))
    story.enqueue("finishing")
    through = len(story.messages)
    story.run("finishing")  # while the run is under way: it is over before it would be carried
    story.archive(through)
    return story, through


def _go_on(story: Story) -> None:
    story.run("queued")
    story.complete("running")
    story.now += timedelta(minutes=30)
    for job_id, cause in (("scheduled", "due"), ("retried", "retried")):
        story.do(job_id, Dispatch(cause=cause))  # type: ignore[arg-type]
        story.run(job_id)
    story.enqueue("new")
    story.run("new")


def _rest(story: Story, through: int) -> Report:
    return check(story.messages[through:], from_sequence=through + 1, prefix_archived=True)


def test_a_ledger_whose_beginning_was_archived_is_sound() -> None:
    story, through = archived()
    _go_on(story)
    report = _rest(story, through)
    assert (report.sound, report.violations) == (True, ())
    assert (report.from_sequence, report.archived_through) == (through + 1, through)
    assert (report.states, report.partial_jobs) == ({"completed": 6, "dead_lettered": 1}, 0)
    assert check(story.messages).sound, "and so is the whole of it"


def test_a_beginning_that_nobody_archived_is_missing() -> None:
    story = rich()
    gone = 10
    report = check(story.messages[gone:], from_sequence=gone + 1, prefix_archived=True)
    assert found(report)[0] == (1, "", "sequence")
    assert report.violations[0].sentence == (
        "the prefix is missing: the ledger begins at 11, and no `archived` event says where 1 to 10 are"
    )
    assert check(story.messages[gone:], from_sequence=gone + 1).sound, "a range promises less"


def test_more_that_is_gone_than_was_archived_is_missing() -> None:
    story, through = archived()
    report = check(story.messages[through + 2 :], from_sequence=through + 3, prefix_archived=True)
    (missing,) = [each for each in report.violations if each.rule == "sequence"]
    assert missing.stream_sequence == through + 1
    assert f"{through + 1} to {through + 2} are missing" in missing.sentence


def test_an_empty_ledger_that_had_events_is_missing_its_prefix() -> None:
    report = check([], from_sequence=11, prefix_archived=True)
    assert found(report) == [(1, "", "sequence")]


def test_a_job_that_goes_on_without_having_been_carried_is_found() -> None:
    story = Story()
    story.enqueue("j")
    story.claim("j")
    through = len(story.messages)
    story.enqueue("k")
    story.run("k")
    job_chain = story.chains.pop(story.ref("j"))
    story.archive(through)
    story.chains[story.ref("j")] = job_chain
    sequence = story.complete("j")
    assert found(_rest(story, through)) == [(sequence, "email/j", "archive")]


def test_a_late_receipt_of_a_job_that_went_with_the_archive_is_no_violation() -> None:
    story = Story()
    story.enqueue("j")
    held = story.claim("j")
    story.do("j", Fail(epoch=held, error=BOOM))
    story.run("j")
    through = len(story.messages)
    story.archive(through)
    story.do("j", Fence(epoch=held, attempt=1, worker="w1", outcome="completed"))
    report = _rest(story, through)
    assert (report.sound, report.partial_jobs) == (True, 1)


@each_row(
    ("job_id", "change", "field"),
    [
        ("queued", {"order": Order(max_attempts=99)}, "order"),
        ("running", {"claim_epoch": 1}, "claim_epoch"),
        ("scheduled", {"due_at": None}, "due_at"),
        ("retried", {"attempts": ()}, "attempts"),
        ("dead", {"state": "queued"}, "state"),
        ("finishing", {"state": "cancelled"}, "state"),
        ("finishing", {"attempts": ()}, "attempts"),
    ],
)
def test_carried_that_says_another_job_is_found(job_id: str, change: dict[str, object], field: str) -> None:
    story, _ = archived()
    _, place, event = next(
        (each.event.job, each.stream_sequence, each.event)
        for each in story.messages
        if isinstance(each, StoredEvent) and each.event.job == job_id and isinstance(each.event, Carried)
    )
    assert isinstance(event, Carried)
    forged = msgspec.structs.replace(event, job_state=msgspec.structs.replace(event.job_state, **change))
    stored = story.messages[place - 1]
    story.messages[place - 1] = read_message(stored.subject, encode(forged), place, stored.stored_at)
    report = check(story.messages)
    assert (place, f"email/{job_id}", "archive") in found(report)
    assert any(f"another {field} than the events before it" in each.sentence for each in report.violations)


def test_a_job_carried_twice_and_with_long_errors_is_as_it_was() -> None:
    story = Story()
    error = ErrorInfo(kind="exception", type="E", message="m", traceback="x" * 9_000)
    story.enqueue("j", notify="inbox", priority="high", timeout_s=5)
    story.claim("j")
    story.do("j", Fail(epoch=story.epoch("j"), error=error))
    for tracebacks in (True, False):
        story.do("j", Carry(through=len(story.messages), tracebacks=tracebacks))
    story.run("j")
    assert check(story.messages).violations == ()


def test_planted_events_after_carried_are_found() -> None:
    story, through = archived()
    late = story.plant("finishing", Cancelled)
    second = story.plant("queued", Completed, attempt=1)
    report = _rest(story, through)
    assert found(report) == [(late, "email/finishing", "transition"), (second, "email/queued", "transition")]


def test_an_earlier_report_from_the_beginning_still_holds_the_event_at_its_end() -> None:
    story, through = archived()
    before = check(story.messages)
    _go_on(story)

    def rest(messages: list[Message], earlier: Report) -> Report:
        return check(messages[through:], from_sequence=through + 1, prefix_archived=True, before=earlier)

    assert rest(story.messages, before).sound
    forged = msgspec.structs.replace(before, head_hash="f" * 64)
    assert found(rest(story.messages, forged)) == [(before.head_sequence, "", "history")]
    old = check(story.messages[: through - 1])
    report = rest(story.messages, old)
    assert (report.sound, report.compared[0].what, report.compared[0].agrees) == (
        True,
        "earlier report",
        None,
    )
    with pytest.raises(InvalidInputError, match="begins at 1"):
        Checker(NAMES, from_sequence=through + 1, before=before)
