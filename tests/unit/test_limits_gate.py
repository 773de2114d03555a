"""No path into `queued` bypasses a limit: whatever the commands, a job with limits is held until they admit it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_transitions import BOOM, LATER, NOW, REF, STAMP, aimed, commands

from jobledger.ledger.model.commands import (
    Carry,
    Claim,
    Command,
    Dispatch,
    Enqueue,
    Fail,
    Interrupt,
    Pause,
    Requeue,
    Rescue,
    Snooze,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import IllegalTransitionError, LedgerError
from jobledger.ledger.model.events import Held, JobEvent, Order, Queued, event_type
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.lifecycle import PAST_ITS_LIMITS
from jobledger.ledger.model.transitions import violation

LIMITED = Enqueue(ref=REF, task="send", order=Order(max_attempts=3, limits=("api",)))
ADMIT, CLAIM = Dispatch(cause="admitted"), Claim(worker="w1", lease_s=15.0)


def course(*steps: Command) -> list[JobEvent]:
    """Return the events of a job, each command aimed at its present claim."""
    job: Job | None = None
    made: list[JobEvent] = []
    for step in steps:
        for event in decide(job, aimed(job, step), STAMP):
            made.append(event)
            job = evolve(job, event, len(made))
    return made


@settings(max_examples=300)
@given(st.lists(st.tuples(commands, st.sampled_from([True, True, True, False])), max_size=30))
def test_a_job_with_limits_is_queued_only_past_them(steps: list[tuple[Command, bool]]) -> None:
    """Its slot: from `queued` as admitted to the end of its attempt, whoever runs it meanwhile."""
    job: Job | None = None
    made: list[JobEvent] = []
    has_slot = False
    for drawn, at_holder in [(LIMITED, True), *steps]:
        try:
            events = decide(job, aimed(job, drawn) if at_holder else drawn, STAMP)
        except LedgerError:
            continue
        for event in events:
            made.append(event)
            if isinstance(event, Queued):
                has_slot = has_slot or event.cause == "admitted"
                assert event.cause in PAST_ITS_LIMITS
                assert has_slot, f"queued as {event.cause} without a slot"
            job = evolve(job, event, len(made))
            # An interrupted job keeps its slot between the two events of one batch.
            if (
                job.state is not JobState.QUEUED
                and not job.claim_epoch
                and event_type(event) != "interrupted"
            ):
                has_slot = False


@pytest.mark.parametrize(
    ("steps", "cause"),
    [
        ((), "new"),
        ((ADMIT, CLAIM, Fail(epoch=0, error=BOOM)), "retried"),
        ((ADMIT, CLAIM, Fail(epoch=0, error=BOOM, retry_at=LATER), Dispatch(cause="retried")), "retried"),
        ((ADMIT, CLAIM, Snooze(epoch=0, until=LATER), Dispatch(cause="due")), "due"),
        ((ADMIT, CLAIM, Pause(epoch=0, event="paid"), Dispatch(cause="resumed")), "resumed"),
        ((ADMIT, CLAIM, Fail(epoch=0, error=BOOM, give_up="rejected"), Requeue()), "requeued"),
    ],
)
def test_what_would_queue_a_job_holds_it_and_says_why(steps: tuple[Command, ...], cause: str) -> None:
    held = course(LIMITED, *steps)[-1]
    assert isinstance(held, Held)
    attempt = 1 + sum(event_type(event) == "started" for event in course(LIMITED, *steps))
    assert (held.cause, held.attempt) == (cause, attempt)
    admitted = course(LIMITED, *steps, ADMIT)[-1]
    assert isinstance(admitted, Queued)
    assert (admitted.cause, admitted.attempt) == ("admitted", attempt)


def test_a_delayed_job_with_limits_is_held_when_it_is_due() -> None:
    later = Enqueue(ref=REF, task="send", run_at=NOW + timedelta(hours=1), order=Order(limits=("api",)))
    assert [event_type(event) for event in course(later, Dispatch(cause="due"), ADMIT)] == [
        "scheduled",
        "held",
        "queued",
    ]


@pytest.mark.parametrize(
    ("steps", "cause"),
    [
        ((CLAIM, Interrupt(epoch=0, reason="deploy")), "interrupted"),
        ((CLAIM, Rescue(lost_epoch=0)), "redispatched"),
        ((Dispatch(cause="redispatched"),), "redispatched"),
        ((Carry(through=9),), "carried"),
        ((CLAIM, TakeOver(worker="w2", lease_s=15, lost_epoch=0), Carry(through=9)), "carried"),
    ],
)
def test_a_job_that_has_its_slot_keeps_it(steps: tuple[Command, ...], cause: str) -> None:
    queued = course(LIMITED, ADMIT, *steps)[-1]
    assert isinstance(queued, Queued)
    assert queued.cause == cause


#: Of an event of the job `queued` or `held`.
FIELDS: dict[str, Any] = {
    "job": "j1",
    "queue": "email",
    "task": "send",
    "at": NOW,
    "by": "w1",
    "max_attempts": 3,
}


def test_nobody_may_say_that_a_job_was_interrupted_which_was_not() -> None:
    failed = course(LIMITED, ADMIT, CLAIM, Fail(epoch=0, error=BOOM, retry_at=LATER))
    job: Job | None = None
    for number, event in enumerate(failed, 1):
        job = evolve(job, event, number)
    with pytest.raises(IllegalTransitionError, match="cannot be queued as 'interrupted'"):
        decide(job, Dispatch(cause="interrupted"), STAMP)
    assert violation(job, Queued(**FIELDS, cause="interrupted", attempt=2)) == (
        "job j1: `queued` as interrupted, though its newest attempt was not"
    )


def test_a_held_job_keeps_what_a_requeue_changed() -> None:
    given_up = (ADMIT, CLAIM, Fail(epoch=0, error=BOOM, give_up="rejected"))
    job: Job | None = None
    for number, event in enumerate(
        course(LIMITED, *given_up, Requeue(attempts=2, priority="high"), ADMIT), 1
    ):
        job = evolve(job, event, number)
    assert job is not None
    assert (job.state, job.order.priority, job.order.max_attempts, job.order.limits) == (
        JobState.QUEUED,
        "high",
        3,
        ("api",),
    )


def test_an_event_that_passed_a_limit_is_found() -> None:
    job: Job | None = None
    for number, event in enumerate(course(LIMITED), 1):
        job = evolve(job, event, number)
    assert violation(None, Queued(**FIELDS, limits=("api",))) == (
        "job j1: `queued` as 'new' past its limits (api)"
    )
    assert violation(None, Held(**FIELDS)) == "job j1: `held` as 'new', though nothing holds it"
    assert violation(job, Queued(**FIELDS, cause="admitted")) is None
