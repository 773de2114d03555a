"""Runs: attempts with progress, what a person does to them, and ends that others hear of."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.runs import (
    BOOM,
    CLAIM,
    LATER,
    NEW,
    PARK,
    REF,
    TAKE_OVER,
    WAIT,
    Story,
    end,
    fail,
    group,
    parked,
    running,
    start,
    types,
)
from tests.support.tables import each_row

from jobledger.ledger.model.attempts import ATTEMPTS_KEPT
from jobledger.ledger.model.commands import (
    CancelJob,
    Command,
    Complete,
    ConfirmCancel,
    DeadLetter,
    Discard,
    Dispatch,
    Enqueue,
    Fail,
    GiveSignal,
    Interrupt,
    Join,
    Pause,
    RequestPause,
    Requeue,
    Rescue,
    ResumeJob,
    Snooze,
)
from jobledger.ledger.model.errors import IllegalTransitionError
from jobledger.ledger.model.events import (
    Cancelled,
    Completed,
    DeadLettered,
    Joined,
    Member,
    Order,
    Paused,
    Queued,
    event_type,
)
from jobledger.ledger.model.job import JobState
from jobledger.ledger.model.runs.errors import StepOverError
from jobledger.ledger.model.runs.orders import bits, bits_of, child_id, items_of, ranges_of

# Signals


def test_a_wait_does_not_time_out_once_its_signal_is_recorded() -> None:
    story = running(
        WAIT, GiveSignal(name="other"), GiveSignal(name="approved", value=msgspec.Raw(b'{"yes":true}'))
    )
    timed_out = fail("approved", kind="wait", target="approved")
    with pytest.raises(StepOverError, match=r"past step 'approved' \(its signal has come\)"):
        story.do(timed_out)
    story.do(end("approved", kind="wait", target="approved", signal=story.run.signals[1].sequence))


# Attempts


@each_row("lost", [TAKE_OVER, Rescue(lost_epoch=0)])
def test_a_lost_attempt_that_ended_a_step_does_not_count(lost: Command) -> None:
    story = Story(Enqueue(ref=REF, task="order", order=Order(max_attempts=1)), CLAIM)
    for number in range(5):
        story.do(end(f"step-{number}"))
        assert (story.run.attempts_left, story.run.attempts_left_if_lost) == (0, 1)
        story.do(lost)
        if story.run.state is JobState.QUEUED:
            story.do(CLAIM)
        assert (story.run.state, story.run.attempts_given_back) == (JobState.RUNNING, number + 1)
    _, dead = story.do(lost)  # nothing since
    assert isinstance(dead, DeadLettered)


def test_an_attempt_that_failed_counts_whatever_steps_it_ended() -> None:
    story = Story(Enqueue(ref=REF, task="order", order=Order(max_attempts=1)), CLAIM, end("a"))
    assert types(story.do(Fail(epoch=0, error=BOOM))) == ["failed", "dead_lettered"]


def test_a_started_step_is_no_progress() -> None:
    story = Story(Enqueue(ref=REF, task="order", order=Order(max_attempts=1)), CLAIM, start("a"))
    assert types(story.do(TAKE_OVER)) == ["lost", "dead_lettered"]


def test_the_newest_attempts_are_kept_and_the_others_counted() -> None:
    story = Story(Enqueue(ref=REF, task="order", order=Order(max_attempts=1)))
    for number in range(1, 131):
        story.do(CLAIM)
        story.do(end(f"s{number}"))
        story.do(WAIT if number == 1 else fail(f"r{number}", retry_at=LATER))
        story.do(Pause(epoch=0, steps=("approved",)))
        story.do(Dispatch(cause="resumed", reason="by hand"))
    run = story.run
    assert (run.attempts_count, len(run.attempts), run.attempts_dropped) == (
        130,
        ATTEMPTS_KEPT,
        130 - ATTEMPTS_KEPT,
    )
    assert [run.attempts[0].number, run.attempts[-1].number] == [131 - ATTEMPTS_KEPT, 130]
    assert (run.attempt(130), run.attempt(80), run.attempt(131)) == (run.attempts[-1], None, None)
    assert (run.attempts_given_back, run.attempts_left) == (130, 1)


# Cancel, pause and resume by a person


def test_a_waiting_run_without_undos_is_cancelled_at_once() -> None:
    story = parked()
    assert types(story.do(CancelJob(reason="no"))) == ["cancelled"]


def test_a_waiting_run_with_undos_is_dispatched_to_do_them() -> None:
    story = parked(end("charge"), undos=2)
    (queued,) = story.do(CancelJob(reason="no"))
    assert isinstance(queued, Queued)
    assert (queued.cause, story.run.cancel_requested, story.run.cancel_reason) == ("cancelling", True, "no")
    with pytest.raises(IllegalTransitionError, match="already asked to end"):
        story.do(CancelJob())
    story.do(CLAIM)
    assert types(story.do(Interrupt(epoch=0, reason="deploy"))) == ["interrupted", "queued"]
    story.do(CLAIM)
    story.do(fail("undo/refund", kind="undo", target="refund", retry_at=LATER))
    story.do(Pause(epoch=0, steps=("undo/refund",), until=LATER, undos=2))
    story.do(Dispatch(cause="due", asked_by=story.run.wait_sequence))
    story.do(CLAIM)
    assert types(story.do(TAKE_OVER)) == ["lost", "started"]  # a crash does not forget what is to be undone
    (cancelled,) = story.do(ConfirmCancel(epoch=0))
    assert isinstance(cancelled, Cancelled)
    assert cancelled.reason == "no"


def test_a_run_that_is_to_end_waits_for_nothing_but_its_undos() -> None:
    story = running(end("charge"), WAIT, CancelJob(reason="no"))
    with pytest.raises(StepOverError, match="asked to end"):
        story.do(msgspec.structs.replace(PARK, undos=1))
    assert types(story.do(PARK)) == ["cancelled"]  # nothing to undo


def test_an_undo_that_fails_for_good_makes_a_dead_letter() -> None:
    story = running(end("charge"), CancelJob(reason="no"))
    assert types(story.do(Fail(epoch=0, error=BOOM, give_up="rejected"))) == ["failed", "dead_lettered"]


@each_row(
    ("command", "then"),
    [
        (Fail(epoch=0, error=BOOM, retry_at=LATER), ["failed", "queued"]),
        (Interrupt(epoch=0, reason="deploy"), ["interrupted", "queued"]),
        (Snooze(epoch=0, until=LATER), ["snoozed"]),
    ],
)
def test_an_attempt_that_ends_while_its_run_is_to_end_leaves_the_undos_to_the_next(
    command: Command, then: list[str]
) -> None:
    story = running(end("charge"), CancelJob(reason="no"))
    assert types(story.do(command)) == then
    assert story.run.cancel_requested
    if story.run.state is JobState.RETRY_WAIT:
        story.do(Dispatch(cause="due"))
    story.do(CLAIM)


def test_a_job_that_is_paused_and_resumed_often_has_no_dispatches_in_vain() -> None:
    story = Story(NEW)
    for _ in range(20):
        story.do(RequestPause())
        story.do(ResumeJob())
    assert (story.run.state, story.run.dispatches) == (JobState.QUEUED, 1)


@each_row("limits", [(), ("api",)])
def test_a_run_that_waits_for_its_next_attempt_finds_the_request(limits: tuple[str, ...]) -> None:
    admit_it: list[Command] = [Dispatch(cause="admitted", grant=7)] if limits else []
    new = Enqueue(ref=REF, task="order", order=Order(max_attempts=3, limits=limits))
    story = Story(new, *admit_it, CLAIM, end("charge"), WAIT, msgspec.structs.replace(PARK, undos=1))
    story.do(GiveSignal(name="approved"))
    assert story.run.state is (JobState.HELD if limits else JobState.QUEUED)
    assert types(story.do(CancelJob())) == ["cancel_requested"]
    for command in (*admit_it, CLAIM):
        story.do(command)
    assert (story.run.state, story.run.cancel_requested) == (JobState.RUNNING, True)


def test_a_run_that_waits_for_a_retry_is_dispatched_to_undo() -> None:
    story = running(end("charge"), Fail(epoch=0, error=BOOM, retry_at=LATER))
    assert types(story.do(CancelJob())) == ["queued"]
    assert story.run.cancel_requested


def test_a_running_job_is_asked_to_pause_and_its_pause_waits_for_a_person() -> None:
    story = running(WAIT, RequestPause(reason="deploy"))
    with pytest.raises(IllegalTransitionError, match="already asked to pause"):
        story.do(RequestPause())
    (paused,) = story.do(PARK)
    assert isinstance(paused, Paused)
    assert (paused.event, paused.steps, paused.until, paused.reason) == (
        "operator",
        ("approved",),
        LATER,
        "deploy",
    )
    assert (story.run.state is JobState.PAUSED, story.run.pause_requested) == (True, False)


def test_nobody_pauses_for_a_person_unasked() -> None:
    with pytest.raises(IllegalTransitionError, match="asked to pause by nobody"):
        running().do(Pause(epoch=0, event="operator"))


def test_what_a_person_paused_records_and_wakes_nobody() -> None:
    story = running(
        group(count=2, limit=1), WAIT, Pause(epoch=0, steps=("pages", "approved"), until=LATER, undos=3)
    )
    (paused,) = story.do(RequestPause(reason="audit"))
    assert isinstance(paused, Paused)
    assert (paused.event, paused.steps, paused.until, paused.open_children) == (
        "operator",
        ("pages", "approved"),
        LATER,
        1,
    )
    with pytest.raises(IllegalTransitionError, match="paused already"):
        story.do(RequestPause())
    with pytest.raises(IllegalTransitionError, match="paused by a person"):
        story.do(Dispatch(cause="due", asked_by=story.run.wait_sequence))
    assert types(story.do(GiveSignal(name="other"))) == ["signalled"]
    assert story.run.undos == 3
    (again,) = story.do(ResumeJob())
    assert isinstance(again, Paused)
    assert (again.event, again.steps, again.until, again.undos) == ("", ("pages", "approved"), LATER, 3)
    assert story.run.state is not JobState.PAUSED
    story.do(RequestPause())
    assert types(story.do(GiveSignal(name="approved"))) == ["signalled"]
    (resumed,) = story.do(ResumeJob(reason="done"))
    assert isinstance(resumed, Queued)
    assert (resumed.cause, resumed.reason) == ("resumed", "done")


def test_children_that_ended_meanwhile_make_room_when_the_run_goes_on() -> None:
    story = running(group(count=3, limit=1), Pause(epoch=0, steps=("pages",)), RequestPause())
    (joined,) = story.do(Join(step="pages", completed=((0, 0),)))
    assert isinstance(joined, Joined)
    assert joined.opened == ()
    assert types(story.do(ResumeJob())) == ["queued"]


@each_row(
    ("commands", "then"),
    [
        ((msgspec.structs.replace(NEW, run_at=LATER),), "scheduled"),
        ((NEW,), "queued"),
        ((NEW, CLAIM, Fail(epoch=0, error=BOOM, retry_at=LATER)), "scheduled"),
        ((NEW, CLAIM, Snooze(epoch=0, until=LATER)), "scheduled"),
        ((Enqueue(ref=REF, task="order", order=Order(limits=("api",))),), "held"),
    ],
)
def test_a_waiting_job_is_paused_at_once_and_goes_on_where_it_was(
    commands: tuple[Command, ...], then: str
) -> None:
    story = Story(*commands)
    due = story.run.due_at
    assert types(story.do(RequestPause())) == ["paused"]
    assert story.run.due_at == due
    assert types(story.do(ResumeJob())) == [then]
    assert story.run.due_at == due


@each_row(
    ("command", "then"),
    [
        (Interrupt(epoch=0, reason="deploy"), ["paused"]),
        (Snooze(epoch=0, until=LATER), ["paused"]),
        (Fail(epoch=0, error=BOOM, retry_at=LATER), ["failed", "paused"]),
        (Fail(epoch=0, error=BOOM), ["failed", "paused"]),
        (Complete(epoch=0), ["completed"]),
        (TAKE_OVER, ["lost", "started"]),
    ],
)
def test_a_job_that_is_to_pause_does_so_however_its_attempt_ends(command: Command, then: list[str]) -> None:
    story = running(RequestPause())
    assert types(story.do(command)) == then
    if then[-1] == "paused":
        assert (story.run.state is JobState.PAUSED, story.run.pause_requested) == (True, False)
        assert story.run.attempts_left == 3 - ("failed" in then)
    elif then[-1] == "started":
        assert story.run.pause_requested


@each_row("story", [running(), running(RequestPause()), parked(), Story(NEW)])
def test_only_what_a_person_paused_is_resumed(story: Story) -> None:
    with pytest.raises(IllegalTransitionError, match="cannot be resumed"):
        story.do(ResumeJob())


# Ends

MEMBER = Member(queue="etl", job="sync-9", step="fetch", item=4)
LAST = Enqueue(ref=REF, task="order", order=Order(max_attempts=1, member=MEMBER))
GIVE_UP = Fail(epoch=0, error=BOOM, give_up="rejected")

WAYS: list[tuple[tuple[Command, ...], Command]] = [
    ((CLAIM, group()), Complete(epoch=0)),
    ((CLAIM, group()), ConfirmCancel(epoch=0)),
    ((CLAIM, group()), Fail(epoch=0, error=BOOM)),
    ((CLAIM, group()), GIVE_UP),
    ((CLAIM, group()), TAKE_OVER),
    ((CLAIM, group()), Rescue(lost_epoch=0)),
    ((CLAIM, group(), CancelJob()), Fail(epoch=0, error=BOOM)),
    ((CLAIM, group(), CancelJob()), Pause(epoch=0)),
    ((CLAIM, group(), Pause(epoch=0, steps=("pages",))), CancelJob()),
    ((CLAIM, group(), GIVE_UP), Discard()),
]


@each_row(("before", "last"), WAYS)
def test_every_end_names_whose_child_it_was_and_how_many_of_its_own_are_open(
    before: tuple[Command, ...], last: Command
) -> None:
    event = Story(LAST, *before).do(last)[-1]
    assert isinstance(event, Completed | Cancelled | DeadLettered) or event_type(event) == "discarded"
    assert (getattr(event, "member", None), getattr(event, "open_children", None)) == (MEMBER, 4)


@each_row(
    ("before", "last"),
    [
        ((), CancelJob()), ((), DeadLetter(reason="max_deliver")), ((CLAIM, CancelJob()), TAKE_OVER),
        ((CLAIM, CancelJob()), Rescue(lost_epoch=0)), ((CLAIM, CancelJob()), Interrupt(epoch=0, reason="x")),
    ],
)  # fmt: skip
def test_every_end_of_a_child_that_is_no_run_names_its_parent(
    before: tuple[Command, ...], last: Command
) -> None:
    event = Story(LAST, *before).do(last)[-1]
    assert (getattr(event, "member", None), getattr(event, "open_children", None)) == (MEMBER, 0)


def test_a_run_that_completes_says_what_it_left_out_and_who_goes_on() -> None:
    (event,) = running(end("old")).do(Complete(epoch=0, unvisited=("old",), successor="order-77-r1"))
    assert isinstance(event, Completed)
    assert (event.unvisited, event.successor) == (("old",), "order-77-r1")


def test_a_run_that_diverged_is_a_dead_letter_that_a_requeue_continues() -> None:
    story = running(end("charge"), Fail(epoch=0, error=BOOM, give_up="diverged"))
    assert story.run.dead_reason == "diverged"
    story.do(Requeue())
    assert (story.run.state, list(story.run.steps)) == (JobState.QUEUED, ["charge"])


def test_a_run_is_bound_to_its_version_and_a_child_to_its_parent() -> None:
    order = Order(version="2", member=MEMBER)
    run = Story(
        Enqueue(ref=REF, task="order", order=order), CLAIM, Fail(epoch=0, error=BOOM), Requeue(attempts=2)
    ).run
    assert (run.order.version, run.member) == ("2", MEMBER)


# Items and ids


@given(st.sets(st.integers(0, 300)))
def test_ranges_are_sets_of_items(some: set[int]) -> None:
    assert items_of(bits(some)) == sorted(some)
    assert bits_of(ranges_of(bits(some))) == bits(some)
    assert all(first <= last for first, last in ranges_of(bits(some)))


def test_ids_of_children_follow_from_their_parent() -> None:
    assert child_id("order-77", 3, 12) == "order-77-3-12"
    long = child_id("x" * 62, 3, 12)
    assert (len(long), long[0], long) == (41, "c", child_id("x" * 62, 3, 12))
    assert child_id("x" * 62, 3, 13) != long
