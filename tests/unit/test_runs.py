"""Runs: one start and one end a step, children counted once, waits that end, and ends that others hear of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.runs import (
    BOOM,
    CLAIM,
    LATER,
    NOW,
    PARK,
    REF,
    WAIT,
    YES,
    Story,
    end,
    fail,
    group,
    opened,
    parked,
    running,
    start,
    types,
)
from tests.support.tables import each_row

from jobledger.ledger.model.commands import (
    Command,
    Complete,
    ConfirmCancel,
    Dispatch,
    Enqueue,
    Fail,
    GiveSignal,
    Join,
    Pause,
    RefuseSignal,
    Requeue,
)
from jobledger.ledger.model.errors import IllegalTransitionError, InvalidError, StaleClaimError
from jobledger.ledger.model.events import (
    ChildOrder,
    Held,
    Joined,
    JoinFact,
    Order,
    Queued,
    SignalFact,
    Signalled,
    SignalRefused,
    Started,
    StepCompleted,
)
from jobledger.ledger.model.job import JobState, evolve
from jobledger.ledger.model.runs.errors import SignalKnownError, StepOverError
from jobledger.ledger.model.runs.orders import ITEMS_MAX, items_of
from jobledger.ledger.model.runs.steps import admissible, admit, is_over, next_signal, open_children

# Steps


def test_a_step_has_one_start_and_one_end() -> None:
    story = running(start("charge"))
    step = story.run.steps["charge"]
    assert (step.state, step.number, step.sequence) == ("started", 1, 3)
    story.do(end("charge", result=YES, tries=2, duration_ms=1.5))
    step = story.run.steps["charge"]
    assert (step.state, step.result, step.tries, step.duration_ms, step.sequence) == (
        "completed",
        YES,
        2,
        1.5,
        4,
    )
    for again in (start("charge"), end("charge"), fail("charge")):
        with pytest.raises(IllegalTransitionError, match="past step 'charge', completed at sequence 4"):
            story.do(again)
    assert story.replayed() == story.run


def test_an_end_without_a_start_is_a_step_too() -> None:
    story = running(end("a"), end("a#2"), fail("b"))
    assert [(each.key, each.number, each.state) for each in story.run.steps.values()] == [
        ("a", 1, "completed"), ("a#2", 2, "completed"), ("b", 3, "failed"),
    ]  # fmt: skip


def test_a_step_that_is_tried_again_counts_its_tries_up() -> None:
    story = running(fail("charge", retry_at=LATER))
    assert (story.run.steps["charge"].state, story.run.steps["charge"].retry_at) == ("retrying", LATER)
    with pytest.raises(IllegalTransitionError, match="past try 1 of step 'charge': it cannot record try 1"):
        story.do(end("charge"))
    with pytest.raises(
        IllegalTransitionError, match="in step 'charge', retrying at sequence 3: it cannot start it again"
    ):
        story.do(start("charge"))
    story.do(end("charge", tries=2))
    assert (story.run.steps["charge"].error, story.run.steps["charge"].retry_at) == (None, None)


def test_only_the_holder_records_steps() -> None:
    story = running()
    for command in (start("a"), end("a"), fail("a")):
        with pytest.raises(StaleClaimError):
            story.do(msgspec.structs.replace(command, epoch=1))


@each_row("change", [{"kind": "once"}, {"target": "refund"}, {"input_sha256": "00"}])
def test_a_step_never_changes_what_it_is(change: dict[str, Any]) -> None:
    story = running(start("charge", input_sha256="ff"))
    with pytest.raises(IllegalTransitionError, match="recorded as step charge with input ff"):
        story.do(end("charge", **{"input_sha256": "ff"} | change))


def test_failed_calls_may_be_tried_anew_by_the_attempt_after_one_that_failed_and_nothing_else() -> None:
    story = running(fail("charge"), fail("wire", kind="once"), fail("paid", kind="wait"), end("done"))
    story.do(Fail(epoch=0, error=BOOM))
    assert {key: step.state for key, step in story.run.steps.items()} == {
        "charge": "retrying", "wire": "failed", "paid": "failed", "done": "completed",
    }  # fmt: skip
    story.do(CLAIM)
    story.do(end("charge"))
    assert story.run.steps["charge"].state == "completed"


@each_row(
    "order",
    [
        {"count": ITEMS_MAX + 1}, {"count": -1}, {"limit": -1}, {"after": ((),)}, {"count": 2, "after": ((), (1,))},
        {"count": 2, "after": ((1,), ())}, {"always": (4,)}, {"is_open": True, "limit": 1}, {"is_open": True},
    ],
)  # fmt: skip
def test_a_group_that_could_never_end_is_refused(order: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="a group of children of task fetch"):
        group(**order)


@each_row(
    "make",
    [
        lambda: start(""),
        lambda: end("k" * 501),
        lambda: fail(""),
        lambda: GiveSignal(name="a.b"),
        lambda: GiveSignal(name="a", id="i" * 501),
    ],
)
def test_names_that_cannot_be_are_refused(make: Any) -> None:
    with pytest.raises(InvalidError):
        make()


# Children


def test_a_map_opens_as_many_as_its_limit_and_counts_each_end_once() -> None:
    story = running(group(count=5, limit=2))
    assert opened(story.run.steps["pages"]) == [0, 1]
    (joined,) = story.do(Join(step="pages", completed=((0, 1),)))
    assert isinstance(joined, Joined)
    assert (joined.completed, joined.opened) == (((0, 1),), ((2, 3),))
    with pytest.raises(IllegalTransitionError, match="told of these ends of 'pages' already"):
        story.do(Join(step="pages", completed=((0, 1),), failed=((0, 0),)))
    story.do(
        Join(step="pages", completed=((1, 2),), failed=((2, 2),))
    )  # of 1 and 2 only 2 is new, and it completed
    step = story.run.steps["pages"]
    assert (items_of(step.ended), items_of(step.failed), opened(step)) == ([0, 1, 2], [], [0, 1, 2, 3, 4])
    assert open_children(story.run.steps) == 2


def test_a_group_whose_end_is_recorded_opens_nothing_more() -> None:
    story = running(group(count=5, limit=2, on_failure="collect"))
    story.do(fail("pages", kind="map", target="fetch"))  # as the one that lost a race
    (joined,) = story.do(Join(step="pages", completed=((0, 1),)))
    assert isinstance(joined, Joined)
    assert joined.opened == ()


def test_an_end_of_what_was_never_opened_is_not_counted() -> None:
    story = running(group(count=5, limit=2))
    with pytest.raises(IllegalTransitionError, match="told of these ends"):
        story.do(Join(step="pages", completed=((3, 9),)))


@each_row("step", ["charge", "none"])
def test_only_groups_are_joined(step: str) -> None:
    story = running(end("charge"))
    with pytest.raises(IllegalTransitionError, match=f"without a group '{step}'"):
        story.do(Join(step=step, completed=((0, 0),)))


def test_the_last_end_wakes_the_run_that_waits_for_it_and_says_so_in_the_dispatch() -> None:
    story = running(group(count=3), Pause(epoch=0, steps=("pages",)))
    assert types(story.do(Join(step="pages", completed=((0, 1),)))) == ["joined"]
    (queued,) = story.do(Join(step="pages", completed=((2, 2),)))
    assert isinstance(queued, Queued)
    assert (queued.cause, queued.joined and queued.joined.completed, queued.attempt) == (
        "resumed",
        ((2, 2),),
        2,
    )
    assert (story.run.state, story.run.steps["pages"].is_joined, story.run.awaited) == (
        JobState.QUEUED,
        True,
        (),
    )
    with pytest.raises(IllegalTransitionError):  # woken once
        story.do(Join(step="pages", completed=((2, 2),)))


def test_a_run_with_limits_is_held_when_it_is_woken() -> None:
    limited = Enqueue(ref=REF, task="order", order=Order(max_attempts=3, limits=("api",), fair="acme"))
    story = Story(
        limited, Dispatch(cause="admitted", grant=7), CLAIM, group(count=1), Pause(epoch=0, steps=("pages",))
    )
    (held,) = story.do(Join(step="pages", failed=((0, 0),)))
    assert isinstance(held, Held)
    assert (held.cause, held.limits, held.fair, held.joined and held.joined.failed) == (
        "resumed", ("api",), "acme", ((0, 0),),
    )  # fmt: skip
    assert story.run.steps["pages"].is_joined


def test_the_end_that_comes_while_the_run_still_runs_refuses_its_pause() -> None:
    story = running(group(count=1), Join(step="pages", completed=((0, 0),)))
    with pytest.raises(StepOverError, match="past step 'pages'") as caught:
        story.do(Pause(epoch=0, steps=("pages",)))
    assert caught.value.step == "pages"
    with pytest.raises(IllegalTransitionError, match="without a step 'other'"):
        story.do(Pause(epoch=0, steps=("other",)))


def test_a_group_that_stops_at_a_failure_is_over_when_what_was_opened_has_ended() -> None:
    story = running(group(count=9, limit=2))
    story.do(Join(step="pages", failed=((0, 0),)))
    assert opened(story.run.steps["pages"]) == [0, 1]
    assert not story.run.steps["pages"].is_joined
    story.do(Join(step="pages", completed=((1, 1),)))
    assert story.run.steps["pages"].is_joined


def test_a_group_that_collects_runs_them_all() -> None:
    story = running(group(count=3, limit=1, on_failure="collect"))
    for item in range(3):
        assert not story.run.steps["pages"].is_joined
        story.do(Join(step="pages", failed=((item, item),)))
    assert story.run.steps["pages"].is_joined


def test_an_empty_group_is_over_at_once() -> None:
    story = running(group(count=0))
    assert story.run.steps["pages"].is_joined
    story.do(end("pages", kind="map", target="fetch"))


def test_a_group_is_completed_only_when_all_have_ended() -> None:
    story = running(group(count=2), Join(step="pages", completed=((0, 0),)))
    with pytest.raises(IllegalTransitionError, match="1 of its children are open"):
        story.do(end("pages", kind="map", target="fetch"))


def graph(on_failure: Any = "stop", always: tuple[int, ...] = ()) -> Story:
    """0 -> 1, 2 -> 3 (waits for both)."""
    return running(group("g", 4, after=((), (0,), (0,), (1, 2)), on_failure=on_failure, always=always))


def test_a_graph_opens_a_node_when_what_it_waits_for_has_completed() -> None:
    story = graph()
    for ended, now_open in ((0, [0, 1, 2]), (2, [0, 1, 2]), (1, [0, 1, 2, 3]), (3, [0, 1, 2, 3])):
        story.do(Join(step="g", completed=((ended, ended),)))
        assert opened(story.run.steps["g"]) == now_open
    assert story.run.steps["g"].is_joined


def test_what_waits_for_a_failed_node_is_left_out() -> None:
    story = graph("collect")
    story.do(Join(step="g", completed=((0, 0),)))
    story.do(Join(step="g", failed=((1, 1),)))
    assert not story.run.steps["g"].is_joined
    story.do(Join(step="g", completed=((2, 2),)))
    assert (opened(story.run.steps["g"]), story.run.steps["g"].is_joined) == ([0, 1, 2], True)


@each_row("on_failure", ["stop", "collect"])
def test_a_node_that_always_runs_does_so_once_those_before_it_are_over(on_failure: str) -> None:
    story = graph(on_failure, always=(3,))
    story.do(Join(step="g", failed=((0, 0),)))  # 1 and 2 are left out
    assert (opened(story.run.steps["g"]), story.run.steps["g"].is_joined) == ([0, 3], False)
    story.do(Join(step="g", completed=((3, 3),)))
    assert story.run.steps["g"].is_joined


def test_an_open_group_ends_when_its_count_is_told_and_reached() -> None:
    story = running(group("jobs", 0, is_open=True, on_failure="collect"), Pause(epoch=0, steps=("jobs",)))
    story.do(Join(step="jobs", completed=((0, 0), (2, 2))))
    assert not story.run.steps["jobs"].is_joined
    with pytest.raises(
        IllegalTransitionError, match="told of item 2 of 'jobs': it cannot have only 2 of them"
    ):
        story.do(Join(step="jobs", count=2))
    assert types(story.do(Join(step="jobs", count=3))) == ["joined"]
    assert opened(story.run.steps["jobs"]) == [0, 1, 2]
    assert types(story.do(Join(step="jobs", failed=((1, 1),)))) == ["queued"]


def test_the_count_of_an_open_group_whose_children_have_all_ended_wakes_the_run() -> None:
    story = running(group("jobs", 0, is_open=True, on_failure="collect"), Pause(epoch=0, steps=("jobs",)))
    story.do(Join(step="jobs", completed=((0, 9),)))
    (queued,) = story.do(Join(step="jobs", count=10))
    assert isinstance(queued, Queued)
    assert queued.joined is not None
    assert queued.joined.count == 10


def test_a_dead_letter_counts_ends_and_opens_and_wakes_nothing() -> None:
    story = running(group(count=4, limit=2), Fail(epoch=0, error=BOOM, give_up="rejected"))
    (joined,) = story.do(Join(step="pages", completed=((0, 1),)))
    assert isinstance(joined, Joined)
    assert joined.opened == ()
    story.do(Requeue())
    story.do(CLAIM)
    assert items_of(admissible(story.run.steps["pages"])) == [2, 3]
    with pytest.raises(StepOverError, match="further children of it may be opened"):
        story.do(Pause(epoch=0, steps=("pages",)))
    (joined,) = story.do(Join(step="pages"))
    assert isinstance(joined, Joined)
    assert (joined.completed, joined.opened) == ((), ((2, 3),))
    story.do(Pause(epoch=0, steps=("pages",)))


@each_row("last", [Complete(epoch=0), ConfirmCancel(epoch=0)])
def test_what_has_ended_counts_nothing(last: Command) -> None:
    story = running(group(count=1), last)
    with pytest.raises(IllegalTransitionError, match="cannot be joined"):
        story.do(Join(step="pages", completed=((0, 0),)))
    with pytest.raises(IllegalTransitionError, match="cannot be sent signal 'approved'"):
        story.do(GiveSignal(name="approved"))


items = st.integers(0, 40)


@given(st.integers(0, 12), st.integers(0, 4), st.booleans(), st.data())
def test_every_group_comes_to_its_end_within_its_limit(
    count: int, limit: int, collect: bool, data: st.DataObject
) -> None:
    after = tuple(
        tuple(data.draw(st.sets(st.integers(0, item - 1), max_size=3))) if item else ()
        for item in range(count)
    )
    is_graph = data.draw(st.booleans())
    always = tuple(data.draw(st.sets(st.integers(0, count - 1), max_size=2))) if count and is_graph else ()
    story = running(
        group(
            count=count,
            limit=limit,
            on_failure="collect" if collect else "stop",
            after=after if is_graph else (),
            always=always,
        )
    )
    told = 0
    while not (step := story.run.steps["pages"]).is_joined:
        now_open = items_of(step.open)
        assert now_open, "somebody can always end"
        assert len(now_open) <= (limit or count)
        item = data.draw(st.sampled_from(now_open))
        ended = ((item, item),)
        story.do(
            Join(step="pages", failed=ended)
            if data.draw(st.booleans())
            else Join(step="pages", completed=ended)
        )
        told += 1
    step = story.run.steps["pages"]
    assert told == step.ended.bit_count() == step.opened.bit_count()
    assert not admissible(step)
    assert all(item in opened(step) for item in always)


# Waits and signals


def test_a_signal_wakes_the_run_that_waits_for_its_name() -> None:
    story = parked()
    (queued,) = story.do(GiveSignal(name="approved", id="click-1", value=YES))
    assert isinstance(queued, Queued)
    assert queued.signal == SignalFact(name="approved", id="click-1", value=YES)
    story.do(CLAIM)
    kept = next_signal(story.run.signals, "approved")
    assert kept is not None
    assert (kept.sequence, kept.value) == (5, YES)
    with pytest.raises(SignalKnownError):
        story.do(GiveSignal(name="approved", id="click-1"))
    with pytest.raises(StepOverError):
        story.do(PARK)
    (done,) = story.do(end("approved", kind="wait", target="approved", result=YES, signal=kept.sequence))
    assert isinstance(done, StepCompleted)
    (taken,) = story.run.signals
    assert (taken.taken_by, bytes(taken.value), next_signal(story.run.signals, "approved")) == (
        "approved",
        b"",
        None,
    )


def test_a_wait_that_refuses_a_signal_waits_on_and_its_id_is_free_again() -> None:
    story = parked()
    story.do(GiveSignal(name="approved", id="click-1", value=msgspec.Raw(b'"x"')))
    story.do(CLAIM)
    (wrong,) = story.run.signals
    refuse = RefuseSignal(epoch=0, step="approved", name="approved", signal=wrong.sequence, reason="no bool")
    (refused,) = story.do(refuse)
    assert isinstance(refused, SignalRefused)
    assert (refused.signal, refused.id, refused.reason) == (wrong.sequence, "click-1", "no bool")
    (kept,) = story.run.signals
    assert (kept.refused, kept.taken_by, bytes(kept.value)) == ("no bool", "", b"")
    with pytest.raises(IllegalTransitionError, match="without a signal"):  # it is refused once
        story.do(refuse)
    with pytest.raises(IllegalTransitionError, match="without a signal"):
        story.do(end("approved", kind="wait", target="approved", signal=wrong.sequence))
    story.do(PARK)
    (queued,) = story.do(GiveSignal(name="approved", id="click-1", value=YES))
    assert isinstance(queued, Queued)
    found = next_signal(story.run.signals, "approved")
    assert found is not None
    assert (found.sequence, found.value) == (story.run.last_sequence, YES)


@each_row(
    "step, match",
    [("other", "recorded as wait other"), ("charge", "recorded as step charge"), ("over", "completed")],
)
def test_only_a_wait_of_its_name_that_goes_on_refuses_a_signal(step: str, match: str) -> None:
    story = running(
        start("other", kind="wait", target="other"),
        end("charge"),
        end("over", kind="wait", target="approved"),
        GiveSignal(name="approved"),
    )
    (told,) = story.run.signals
    with pytest.raises(IllegalTransitionError, match=match):
        story.do(RefuseSignal(epoch=0, step=step, name="approved", signal=told.sequence, reason="x"))


def test_a_signal_that_comes_early_or_under_another_name_is_kept() -> None:
    story = running(GiveSignal(name="paid"), WAIT, PARK)
    (signalled,) = story.do(GiveSignal(name="other"))
    assert isinstance(signalled, Signalled)
    assert story.run.state is JobState.WAITING
    assert [each.name for each in story.run.signals] == ["paid", "other"]


@each_row(
    "taken",
    [
        end("approved", kind="wait", target="approved", signal=99),
        end("approved", kind="step", target="approved", signal=3),
        end("other", kind="wait", target="other", signal=3),
    ],
)
def test_only_a_wait_of_its_name_takes_a_signal(taken: Command) -> None:
    story = running(GiveSignal(name="approved"))
    with pytest.raises(IllegalTransitionError, match="without a signal"):
        story.do(taken)


def test_signals_are_taken_in_their_order() -> None:
    story = running(GiveSignal(name="a"), GiveSignal(name="a"))
    with pytest.raises(IllegalTransitionError, match="without a signal 'a' at sequence 4"):
        story.do(end("a", kind="wait", target="a", signal=4))
    story.do(end("a", kind="wait", target="a", signal=3))
    story.do(end("a#2", kind="wait", target="a", signal=4))


def test_signals_without_an_id_are_each_their_own() -> None:
    story = running(GiveSignal(name="a"), GiveSignal(name="a"))
    assert len(story.run.signals) == 2


def test_a_moment_that_has_passed_is_over() -> None:
    story = running(start("nap", kind="sleep", target="60", until=LATER), fail("charge", retry_at=LATER))
    sleeping, retrying = story.run.steps.values()
    assert [is_over(each, (), NOW) for each in (sleeping, retrying)] == [False, False]
    assert [is_over(each, (), LATER) for each in (sleeping, retrying)] == [True, True]
    story.at = LATER
    with pytest.raises(StepOverError):
        story.do(Pause(epoch=0, steps=("nap",), until=LATER))


def test_a_due_timer_wakes_a_parked_run() -> None:
    story = parked()
    story.do(Dispatch(cause="due", asked_by=story.run.wait_sequence))
    assert (story.run.state, story.run.awaited) == (JobState.QUEUED, ())


# The fold is total.


def test_events_of_steps_that_are_not_known_change_nothing() -> None:
    story = running(end("charge"))
    before = story.run
    envelope: dict[str, Any] = {
        "job": REF.job_id,
        "queue": REF.queue,
        "task": "order",
        "at": NOW,
        "by": "forger",
    }
    for event in (
        Joined(**envelope, step="none", completed=((0, 3),)),
        Joined(**envelope, step="charge", completed=((9, 3),), opened=((5, 4),)),
        StepCompleted(**envelope, step="charge", kind="step", target="x", attempt=9, signal=99),
    ):
        after = evolve(before, event, 9)
        assert (after.steps, after.signals) == (before.steps, before.signals)
    queued = Queued(**envelope, cause="resumed", joined=JoinFact(step="none", completed=((0, 1),)))
    assert evolve(before, queued, 9).steps == before.steps
    started = Started(**envelope, attempt=2, worker="w2", lease_s=1.0)
    assert evolve(before, started, 9).attempts_given_back == 1


def test_a_graph_with_edges_from_a_forger_ends_the_fold_too() -> None:
    order = ChildOrder(task="f", queue="q", count=2, after=((1,), (7,), (0,)), always=(9,))
    assert admit(order, 0, 0, 0) == 0
    assert admit(order, 0, 0b11, 0b1) in range(8)
