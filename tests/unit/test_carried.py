"""`carried`: says the whole job once more, changes nothing about it, and is found out when it says something else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import each_row

from jobledger.ledger.model.attempts import Attempt, AttemptState, Progress
from jobledger.ledger.model.codec import decode, encode
from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Checkpoint,
    Claim,
    Command,
    Complete,
    DeadLetter,
    Enqueue,
    Fail,
    Fence,
    Pause,
    ReportProgress,
    Requeue,
    Snooze,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.decision_parts.carried import carried_job, difference
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import IllegalTransitionError, LedgerError
from jobledger.ledger.model.events import (
    AttemptStateName,
    Carried,
    CarriedAttempt,
    CarriedJob,
    CarriedProgress,
    CarriedSignal,
    CarriedStep,
    Completed,
    ErrorInfo,
    Member,
    Order,
    PayloadRef,
    Queued,
    StateName,
)
from jobledger.ledger.model.forms import CARRIED_FORM
from jobledger.ledger.model.job import CLOSED_STATES, Job, JobState, evolve
from jobledger.ledger.model.lifecycle import references_of
from jobledger.ledger.model.runs.steps import KeptSignal, Step
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.timers import timer_of
from jobledger.workers.reactors.stranded_jobs import judge

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
REF = JobRef(queue="email", job_id="j1")
STAMP = Stamp(at=NOW, by="alice", trace="", correlation="c1")
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom", traceback="File x")
NEW = Enqueue(
    ref=REF, task="send", order=Order(max_attempts=3, input=msgspec.Raw(b'{"a":1}'), notify="inbox")
)
CLAIM = Claim(worker="w1", lease_s=15.0)
RAW = msgspec.Raw(b'{"b":[1,null]}')

commands: st.SearchStrategy[Command] = st.one_of(
    st.sampled_from([NEW, msgspec.structs.replace(NEW, run_at=LATER), msgspec.structs.replace(NEW, order=Order(max_attempts=3, limits=("api",)))]),
    st.sampled_from([CLAIM, CLAIM, CancelJob(reason="no"), Requeue(attempts=2, input=RAW), TakeOver(worker="w2", lease_s=1.0, lost_epoch=0)]),
    st.sampled_from([Complete(epoch=0, result=RAW), Fail(epoch=0, error=BOOM), Fail(epoch=0, error=BOOM, retry_at=LATER, retry_priority="low")]),
    st.sampled_from([Snooze(epoch=0, until=LATER), Pause(epoch=0, event="paid"), Checkpoint(epoch=0, value=RAW), Fence(epoch=0, attempt=1, worker="w1", outcome="failed")]),
    st.sampled_from([Checkpoint(epoch=0, value_ref=PayloadRef(sha256="0" * 64, size_bytes=9)), ReportProgress(epoch=0, done=0.5), DeadLetter(reason="rejected")]),
)  # fmt: skip


def run(steps: list[Command]) -> tuple[Job | None, int]:
    """The job that the accepted ones of these commands make; what names a claim is aimed at the one that holds."""
    job: Job | None = None
    sequence = 0
    for step in steps:
        changes: dict[str, Any] = {}
        if job is not None and hasattr(step, "epoch") and not isinstance(step, Fence):
            changes["epoch"] = job.claim_epoch
        if job is not None and isinstance(step, Fence) and job.attempts:
            changes["epoch"] = job.attempts[0].epoch
        if job is not None and isinstance(step, TakeOver):
            changes["lost_epoch"] = job.claim_epoch
        try:
            events = decide(job, msgspec.structs.replace(step, **changes), STAMP)
        except LedgerError:
            continue
        for event in events:
            sequence += 1
            job = evolve(job, decode(encode(event)), sequence)
    return job, sequence


def job_after(*steps: Command) -> Job:
    job, _ = run(list(steps))
    assert job is not None
    return job


@given(st.lists(commands, max_size=20), st.booleans())
def test_a_carried_job_is_the_job_in_every_state_and_on_the_wire(
    steps: list[Command], tracebacks: bool
) -> None:
    job, sequence = run([NEW, *steps])
    assert job is not None
    command = Carry(
        through=sequence - 1, tracebacks=tracebacks
    )  # its newest event stays: also what is over is carried
    carried, *rest = [decode(encode(event)) for event in decide(job, command, STAMP)]
    assert isinstance(carried, Carried)
    for before in (job, None):  # with and without what came before
        after = evolve(before, carried, sequence + 1)
        moved = msgspec.structs.replace(after, last_sequence=sequence, carried_sequence=0)
        if tracebacks:
            assert moved == job
        assert difference(job, carried) is None
        assert difference(job, carried, is_lean=True) is None
        # Its work item goes away, unless that was the newest event; then it gets no second one.
        assert [type(each) for each in rest] == (
            [Queued]
            if job.state in (JobState.QUEUED, JobState.RUNNING) and job.dispatch_sequence < sequence
            else []
        )
        for each in rest:
            again = evolve(after, each, sequence + 2)
            assert again == msgspec.structs.replace(
                after, last_sequence=sequence + 2, dispatch_sequence=sequence + 2
            )
            after = again
        with pytest.raises(IllegalTransitionError, match="carried at"):
            decide(after, command, STAMP)


def test_what_is_over_and_goes_away_whole_is_not_carried() -> None:
    job = job_after(NEW, CLAIM, Complete(epoch=0))
    with pytest.raises(IllegalTransitionError, match="completed and goes away whole"):
        decide(job, Carry(through=3), STAMP)
    assert len(decide(job, Carry(through=2), STAMP)) == 1
    child = msgspec.structs.replace(job, order=Order(member=Member(queue="q", job="run", step="s")))
    assert len(decide(child, Carry(through=3), STAMP)) == 1  # its run may still read how it ended
    assert (
        len(
            decide(
                job_after(NEW, CLAIM, Fail(epoch=0, error=BOOM, give_up="rejected")), Carry(through=9), STAMP
            )
        )
        == 1
    )


def test_a_fresh_work_item_is_no_dispatch_without_verdict() -> None:
    job = job_after(NEW)
    for _ in range(5):
        for event in decide(job, Carry(through=job.last_sequence), STAMP):
            job = evolve(job, event, job.last_sequence + 1)
    assert (job.dispatches, job.state, job.last_sequence) == (1, JobState.QUEUED, 11)
    verdict = judge(job, job.dispatch_sequence, holder_lives=False)
    assert type(verdict).__name__ == "Dispatch"


def test_a_fresh_work_item_leaves_the_running_attempt_its_claim() -> None:
    job = job_after(msgspec.structs.replace(NEW, order=Order()), CLAIM)
    carried, queued = decide(job, Carry(through=2), STAMP)
    again = evolve(evolve(job, carried, 3), queued, 4)
    assert (again.state, again.claim_epoch, again.dispatch_sequence, len(again.attempts)) == (
        JobState.RUNNING,
        2,
        4,
        1,
    )
    assert evolve(again, decide(again, Complete(epoch=2), STAMP)[0], 5).state is JobState.COMPLETED


@each_row(
    ("steps", "due_at", "cause"),
    [
        ([msgspec.structs.replace(NEW, run_at=LATER)], LATER, "due"),
        ([NEW, CLAIM, Fail(epoch=0, error=BOOM, retry_at=LATER)], LATER, "retried"),
        ([NEW, CLAIM, Snooze(epoch=0, until=LATER)], LATER, "due"),
        ([NEW, CLAIM, Pause(epoch=0, event="paid")], None, None),
        ([NEW], None, None),
        ([NEW, CLAIM], None, None),
    ],
)
def test_a_carried_wait_asks_for_the_timer_of_the_event_that_began_it(
    steps: list[Command], due_at: datetime | None, cause: str | None
) -> None:
    job, sequence = run(steps)
    assert job is not None
    timer = timer_of(decide(job, Carry(through=sequence), STAMP)[0], 99)
    if due_at is None:
        assert timer is None
    else:
        assert timer is not None
        assert (timer.asked_by, timer.due_at, timer.cause) == (sequence, due_at, cause)


def test_a_carried_job_that_is_not_what_it_was_is_named_by_its_field() -> None:
    job, sequence = run([NEW, CLAIM, Fail(epoch=0, error=BOOM, retry_at=LATER)])
    assert job is not None
    carried = decide(job, Carry(through=sequence), STAMP)[0]
    assert isinstance(carried, Carried)

    def forged(**changes: Any) -> Carried:
        state = msgspec.structs.replace(carried.job_state, **changes)
        return msgspec.structs.replace(carried, job_state=state)

    assert difference(job, forged(last_sequence=2)) == "last_sequence"
    assert difference(job, forged(state="queued")) == "state"
    assert difference(job, forged(order=Order(max_attempts=9))) == "order"
    assert difference(job, forged(attempts=())) == "attempts"
    assert difference(job, forged(order=Order(max_attempts=3, input=msgspec.Raw(b'{"a":2}')))) == "order"
    assert (
        difference(job, forged(order=Order(max_attempts=3, input=msgspec.Raw(b'{"a":2}'))), is_lean=True)
        is None
    )
    assert difference(job, forged(claim_epoch=2), is_lean=True) == "claim_epoch"


def test_a_carried_job_of_an_earlier_form_is_held_to_what_it_says() -> None:
    job = _some_job()
    whole = carried_job(job)
    assert (whole.created_by, whole.order.notify) == ("alice", "inbox")
    unsaid = msgspec.structs.replace(
        whole, created_by="", order=msgspec.structs.replace(whole.order, notify="")
    )
    assert _compared(job, unsaid, form=0) is None, "its writer may have known neither"
    assert _compared(job, unsaid, form=CARRIED_FORM) == "order"
    assert _compared(job, msgspec.structs.replace(whole, created_by=""), form=CARRIED_FORM) == "created_by"
    for name, value in (("created_by", "eve"), ("claim_epoch", 7), ("state", "paused")):
        assert _compared(job, msgspec.structs.replace(unsaid, **{name: value}), form=0) == name
    attempts = (msgspec.structs.replace(unsaid.attempts[0], worker="w9"),)
    assert _compared(job, msgspec.structs.replace(unsaid, attempts=attempts), form=0) == "attempts"


def _some_job() -> Job:
    job, _ = run([NEW, CLAIM])
    assert job is not None
    return job


def _compared(job: Job, state: CarriedJob, *, form: int) -> str | None:
    events = decide(job, Carry(through=job.last_sequence), STAMP)
    carried = events[0]
    assert isinstance(carried, Carried)
    assert carried.form == CARRIED_FORM
    return difference(job, msgspec.structs.replace(carried, job_state=state, form=form))


def test_the_stored_form_has_every_field_of_a_job_and_the_same_words() -> None:
    named_by_the_envelope = {"id", "queue", "task", "carried_sequence", "is_incomplete"}
    in_the_state = {"paused_by_operator"}  # of which two are stored as one word
    assert (
        set(CarriedJob.__struct_fields__) - in_the_state == set(Job.__struct_fields__) - named_by_the_envelope
    )
    assert CarriedAttempt.__struct_fields__ == Attempt.__struct_fields__
    sets = {"opened", "ended", "failed"}  # stored as ranges, kept as numbers of bits
    assert set(CarriedStep.__struct_fields__) - sets == set(Step.__struct_fields__) - {
        f"{n}_set" for n in sets
    }
    assert CarriedSignal.__struct_fields__ == KeptSignal.__struct_fields__
    assert CarriedProgress.__struct_fields__ == Progress.__struct_fields__
    assert {*get_args(StateName), JobState.WAITING} == set(JobState)
    assert get_args(AttemptStateName) == get_args(AttemptState)
    assert {state.value for state in CLOSED_STATES} == {"completed", "cancelled", "discarded"}


def test_large_results_of_runs_children_lie_where_inputs_do() -> None:
    reference = PayloadRef(sha256="a" * 64, size_bytes=3)
    common: dict[str, Any] = {
        "job": "j",
        "queue": "q",
        "task": "t",
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "by": "w",
    }
    ended = Completed(**common, attempt=1, result_ref=reference)
    child = msgspec.structs.replace(ended, member=Member(queue="q", job="p", step="s"))
    assert [list(references_of(each)) for each in (ended, child)] == [
        [("results", reference)],
        [("inputs", reference)],
    ]
