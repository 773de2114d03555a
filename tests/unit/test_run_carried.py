"""A run that an archive run comes by forgets nothing: not its steps, not the messages to it, not what it waits for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.runs import BOOM, CLAIM, LATER, NEW, Story, end, fail, group, start
from tests.support.runs import REF as STORY_REF

from jobledger.ledger.model.codec import decode, encode
from jobledger.ledger.model.commands import (
    Carry,
    Command,
    Complete,
    Dispatch,
    Enqueue,
    GiveSignal,
    Interrupt,
    Join,
    Pause,
    RequestPause,
    ResumeJob,
    TakeOver,
)
from jobledger.ledger.model.decision_parts.carried import difference
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.events import (
    Carried,
    CarriedStep,
    ChildOrder,
    JobEvent,
    Member,
    Order,
    PayloadRef,
)
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.lifecycle import lean, references_of
from jobledger.ledger.model.log import BATCH_MESSAGES_MAX
from jobledger.ledger.model.runs import carried_parts
from jobledger.ledger.model.runs.steps import Steps
from jobledger.ledger.model.transitions import violation

REF = PayloadRef(sha256="0" * 64, size_bytes=70_000)
MEMBER = Member(queue="orders", job="parent", step="pages")
YES = msgspec.Raw(b"true")

commands: st.SearchStrategy[Command] = st.one_of(
    st.sampled_from([CLAIM, CLAIM, TakeOver(worker="w2", lease_s=1.0, lost_epoch=0), Interrupt(epoch=0, reason="x")]),
    st.sampled_from([end("a", result=YES), end("b", result_ref=REF), fail("c", retry_at=LATER), fail("d")]),
    st.sampled_from([start("nap", kind="sleep", until=LATER), start("paid", kind="wait", target="paid"), start("o", kind="once")]),
    st.sampled_from([group(count=9, limit=3), group("g", 3, after=((), (0,), (0, 1)), always=(2,)), group("j", 0, is_open=True)]),
    st.sampled_from([Join(step="pages", completed=((0, 1),)), Join(step="pages", failed=((2, 2),)), Join(step="g", failed=((0, 0),)), Join(step="j", count=2)]),
    st.sampled_from([GiveSignal(name="paid", id="1", value=YES), GiveSignal(name="paid", value_ref=REF), GiveSignal(name="b")]),
    st.sampled_from([Pause(epoch=0, steps=("nap",), until=LATER, undos=2), Pause(epoch=0, steps=("pages", "paid"))]),
    st.sampled_from([RequestPause(reason="deploy"), ResumeJob(), Dispatch(cause="due"), Dispatch(cause="resumed", reason="r")]),
)  # fmt: skip


def grown(some: list[Command]) -> Story:
    story = Story(NEW)
    for command in some:
        try:
            story.do(command)
        except LedgerError:
            continue
    return story


def carried_by(story: Story, command: Carry) -> list[JobEvent]:
    return [decode(encode(event)) for event in story.decided(command)]


def after(job: Job | None, events: list[JobEvent], sequence: int, *, is_lean: bool = False) -> Job:
    """The job after `events`, of which none says anything else than those before it."""
    for number, event in enumerate(events, sequence + 1):
        if isinstance(event, Carried) and job is not None:
            assert difference(job, event, is_lean=is_lean) is None
        assert violation(job, event) is None or job is None
        job = evolve(job, lean(event) if is_lean else event, number)
    assert job is not None
    return job


def unmoved(job: Job) -> Job:
    return msgspec.structs.replace(job, last_sequence=0, carried_sequence=0, dispatch_sequence=0)


@given(
    st.lists(commands, max_size=30), st.sampled_from([1, 200, carried_parts.PART_BYTES_MAX]), st.booleans()
)
def test_a_carried_run_is_the_run(some: list[Command], size: int, tracebacks: bool) -> None:
    story = grown(some)
    at = len(story.events)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(carried_parts, "PART_BYTES_MAX", size)
        events = carried_by(story, Carry(through=at, tracebacks=tracebacks))
    if size == 1:
        assert len(events) >= len(story.run.steps) + len(story.run.signals)
    assert [event.more for event in events if isinstance(event, Carried)][-1] is False
    for known in (story.run, None):  # with and without what came before
        found = after(known, events, at)
        assert unmoved(found) == unmoved(story.run)
        assert list(found.steps) == list(story.run.steps)
    thin: Job | None = None
    for number, event in enumerate(story.events, 1):
        thin = evolve(thin, lean(event), number)
    after(thin, events, at, is_lean=True)


def long_run(steps: int) -> Story:
    story = Story(NEW, CLAIM)
    for number in range(steps):
        story.do(end(f"s{number}", result=msgspec.Raw(b'"%s"' % (b"x" * 200))))
    return story


def test_a_run_of_many_steps_is_carried_by_few_events_none_of_which_is_too_large() -> None:
    story = long_run(3_000)
    events = carried_by(story, Carry(through=len(story.events)))
    assert 3 <= len(events) <= BATCH_MESSAGES_MAX
    assert max(len(encode(event)) for event in events) < 400_000
    assert len(after(None, events, len(story.events)).steps) == 3_000


def parts(story: Story) -> list[Carried]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(carried_parts, "PART_BYTES_MAX", 1)
        return [event for event in carried_by(story, Carry(through=99)) if isinstance(event, Carried)]


def forged(event: Carried, **changes: Any) -> Carried:
    """With one step of it changed."""
    (step,) = event.job_state.steps
    state = msgspec.structs.replace(event.job_state, steps=(msgspec.structs.replace(step, **changes),))
    return msgspec.structs.replace(event, job_state=state)


def test_each_part_of_a_carried_run_is_held_to_its_own_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    story = long_run(100)
    several, job = parts(story), story.run
    converted: list[int] = []

    def counted(steps: Steps) -> tuple[CarriedStep, ...]:
        converted.append(len(steps))
        return carried_parts.carried_steps(steps)

    monkeypatch.setattr("jobledger.ledger.model.decision_parts.carried.carried_steps", counted)
    for number, each in enumerate(several, start=len(story.events) + 1):
        assert difference(job, each) is None
        job = evolve(job, each, number)
    assert len(several) == 100
    assert sum(converted) == 2 * 100  # with tracebacks and without


def test_a_step_that_is_carried_otherwise_than_it_was_is_found() -> None:
    story = Story(NEW, CLAIM, end("a", result=YES), group(count=4), Join(step="pages", completed=((0, 1),)))
    first, second = parts(story)
    assert difference(story.run, forged(first, result=msgspec.Raw(b"false"))) == "steps"
    assert difference(story.run, forged(first, state="failed")) == "steps"
    told = evolve(story.run, first, 9)
    assert difference(told, second) is None
    assert difference(told, forged(second, ended=((0, 2),))) == "steps"
    assert difference(told, msgspec.structs.replace(second, steps_before=0)) == "last_sequence"
    assert difference(story.run, msgspec.structs.replace(first, more=False)) == "steps"  # one is left out


def test_a_step_that_was_never_is_not_carried_after_the_others() -> None:
    story = Story(NEW, CLAIM, end("a"), end("b"))
    first, second = parts(story)
    more = msgspec.structs.replace(second, steps_before=2)
    extra = CarriedStep(key="c", number=3, kind="step", target="c", state="completed", sequence=3)
    state = msgspec.structs.replace(more.job_state, steps=(extra,))
    told = evolve(evolve(story.run, first, 9), second, 10)
    assert difference(told, msgspec.structs.replace(more, job_state=state)) == "steps"


def test_a_carried_run_goes_on_where_it_was() -> None:
    story = Story(
        NEW,
        CLAIM,
        end("a"),
        group(count=3, limit=1),
        GiveSignal(name="paid"),
        Pause(epoch=0, steps=("pages",)),
    )
    story.job = after(None, carried_by(story, Carry(through=99)), len(story.events))
    for item in range(3):
        story.do(Join(step="pages", completed=((item, item),)))
    assert story.run.state is JobState.QUEUED
    story.do(CLAIM)
    story.do(end("pages", kind="map", target="fetch", result=YES))
    story.do(end("paid", kind="wait", target="paid", signal=5))
    story.do(fail("late", error=BOOM))
    assert [(each.key, each.number) for each in story.run.steps.values()] == [
        ("a", 1), ("pages", 2), ("paid", 3), ("late", 4),
    ]  # fmt: skip


def test_large_values_of_a_carried_run_are_known() -> None:
    story = Story(
        NEW,
        CLAIM,
        end("a", result_ref=REF),
        start("b", order=ChildOrder(task="f", queue="q"), items_ref=REF),
        GiveSignal(name="paid", value_ref=REF),
    )
    (carried, *_) = carried_by(story, Carry(through=99))
    assert list(references_of(carried)) == [("inputs", REF)] * 3
    assert [list(references_of(event)) for event in story.events[-3:]] == [[("inputs", REF)]] * 3


@pytest.mark.parametrize(("member", "store"), [(None, "results"), (MEMBER, "inputs")])
def test_a_large_result_is_looked_for_where_it_was_put(member: Member | None, store: str) -> None:
    """Those of children are where inputs are: other results expire."""
    new = Enqueue(ref=STORY_REF, task="fetch", order=Order(member=member))
    story = Story(new, CLAIM, Complete(epoch=0, result_ref=REF))
    (carried,) = carried_by(story, Carry(through=2))
    assert [list(references_of(event)) for event in (story.events[-1], carried)] == [[(store, REF)]] * 2
