"""No path into `queued` bypasses a limit: whatever the commands, a job with limits is held until they admit it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_transitions import BOOM, LATER, NOW, REF, STAMP, aimed, commands

from jobledger.ledger.model.aggregates import read_job_event
from jobledger.ledger.model.codec import encode
from jobledger.ledger.model.commands import (
    Carry,
    Claim,
    Command,
    Complete,
    Dispatch,
    Enqueue,
    Fail,
    Interrupt,
    Pause,
    PutBack,
    Requeue,
    Rescue,
    Snooze,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import IllegalTransitionError, LedgerError, MalformedEventError
from jobledger.ledger.model.events import Carried, Held, JobEvent, Order, PayloadRef, Queued, event_type
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.lifecycle import PAST_ITS_LIMITS
from jobledger.ledger.model.subjects import Names
from jobledger.ledger.model.transitions import violation
from jobledger.workers.reactors.stranded_jobs import judge

LIMITED = Enqueue(ref=REF, task="send", order=Order(max_attempts=3, limits=("api",)))
ADMIT, CLAIM = Dispatch(cause="admitted", grant=7), Claim(worker="w1", lease_s=15.0)


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
    assert violation(job, Queued(**FIELDS, cause="admitted", grant=7)) is None


def folded(events: list[JobEvent]) -> Job:
    job: Job | None = None
    for number, event in enumerate(events, 1):
        assert violation(job, event) is None
        job = evolve(job, event, number)
    assert job is not None
    return job


ORDER = Order(
    max_attempts=3,
    limits=("api", "tenant:acme"),
    tenant="acme",
    fair="acme",
    metadata={"region": "eu"},
    input=msgspec.Raw(b'{"n":1}'),
    notify="inbox",
    trace="00-aa-bb-01",
    correlation="run-7",
    timeout_s=2.0,
    priority="high",
)


def whole(order: Order) -> Enqueue:
    return Enqueue(ref=REF, task="send", order=order)


def test_an_admission_before_the_first_attempt_says_all_that_a_worker_needs() -> None:
    """What it adds up to by itself is the job as its whole chain tells it, but for the time of its begin."""
    events = course(whole(ORDER), ADMIT)
    job, alone = folded(events), evolve(None, events[-1], 2)
    assert (job.order, alone.order) == (ORDER, ORDER)
    assert msgspec.structs.replace(alone, created_at=job.created_at) == job
    assert (job.grant, job.dispatches, job.state) == (7, 1, JobState.QUEUED)


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        (msgspec.structs.replace(ORDER, input=msgspec.Raw(b'"' + b"x" * 4_095 + b'"')), (ADMIT,)),
        (
            msgspec.structs.replace(
                ORDER, input=NO_VALUE, input_ref=PayloadRef(sha256="0" * 64, size_bytes=9)
            ),
            (ADMIT,),
        ),
        (ORDER, (ADMIT, CLAIM, Fail(epoch=0, error=BOOM), ADMIT)),
    ],
)
def test_a_large_input_and_a_later_attempt_are_left_in_the_chain(
    order: Order, steps: tuple[Command, ...]
) -> None:
    admitted = course(whole(order), *steps)[-1]
    assert isinstance(admitted, Queued)
    assert (admitted.limits, admitted.input, admitted.input_ref, admitted.grant) == ((), NO_VALUE, None, 7)


def test_every_held_names_the_line_that_it_joins() -> None:
    steps = (ADMIT, CLAIM, Fail(epoch=0, error=BOOM), ADMIT, PutBack(asked_by=0), ADMIT, CLAIM)
    held = [event for event in course(whole(ORDER), *steps) if isinstance(event, Held)]
    assert [event.cause for event in held] == ["new", "retried", "ungranted"]
    assert {(event.limits, event.fair, event.priority) for event in held} == {(ORDER.limits, "acme", "high")}


def test_a_job_that_is_put_back_is_held_and_its_work_item_is_void() -> None:
    events = course(whole(ORDER), ADMIT, PutBack(asked_by=0))
    job = folded(events)
    assert (job.state, job.wait_sequence, job.dispatch_sequence, job.dispatches) == (JobState.HELD, 3, 2, 0)
    assert judge(job, 2, holder_lives=False) is None  # nobody dispatches it again for its old work item
    again = folded(course(whole(ORDER), *(ADMIT, PutBack(asked_by=0)) * 5, ADMIT))
    assert again.dispatches == 1  # it was offered in vain, and that makes no dead letter


def test_the_grant_is_kept_until_the_job_is_enqueued_anew() -> None:
    admit = Dispatch(cause="admitted", grant=9)
    steps = (ADMIT, CLAIM, Fail(epoch=0, error=BOOM), admit, CLAIM, Interrupt(epoch=0, reason="deploy"))
    assert folded(course(whole(ORDER), ADMIT, CLAIM, Fail(epoch=0, error=BOOM))).grant == 7
    assert folded(course(whole(ORDER), *steps)).grant == 9
    dead = (ADMIT, CLAIM, Fail(epoch=0, error=BOOM, give_up="rejected"))
    assert folded(course(whole(ORDER), *dead, Requeue())).grant == 0


def test_a_carried_job_says_its_grant() -> None:
    carried = course(whole(ORDER), ADMIT, CLAIM, Carry(through=9))[-2]
    assert isinstance(carried, Carried)
    assert (carried.job_state.grant, carried.job_state.order) == (7, ORDER)


def test_the_end_of_a_job_with_limits_has_a_subject_of_its_own() -> None:
    names = Names()
    limited = course(whole(ORDER), ADMIT, CLAIM, Complete(epoch=0))[-1]
    plain = course(Enqueue(ref=REF, task="send"), CLAIM, Complete(epoch=0))[-1]
    subject = "ledger.job.email.j1.completed"
    assert (names.event(limited), names.event(plain)) == (f"{subject}.limited", subject)
    for event in (limited, plain):
        encoded = encode(event)
        assert read_job_event(names.event(event), encoded, 1) == event
        with pytest.raises(MalformedEventError):
            read_job_event(names.event(plain if event is limited else limited), encoded, 1)
    assert b"limited" not in encode(plain)
