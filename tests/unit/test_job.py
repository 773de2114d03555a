"""`evolve` as a table, and as a total function: every event in every state gives a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import each_row

from jobledger.ledger.model.attempts import Progress
from jobledger.ledger.model.decision_parts.carried import carried_job
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import (
    EVENT_CLASSES,
    Cancelled,
    CancelRequested,
    Carried,
    Checkpointed,
    Completed,
    DeadLettered,
    Discarded,
    ErrorInfo,
    Failed,
    Fenced,
    Held,
    Interrupted,
    JobEvent,
    Joined,
    Lost,
    Noted,
    Paused,
    PauseRequested,
    Progressed,
    Queued,
    Scheduled,
    Signalled,
    SignalRefused,
    Snoozed,
    Started,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from jobledger.ledger.model.job import FINAL_STATES, PENDING_STATES, Job, JobState, evolve

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom")
ENVELOPE: dict[str, Any] = {"job": "j1", "queue": "email", "task": "send", "at": NOW, "by": "w1"}

QUEUED = Queued(**ENVELOPE, input=msgspec.Raw(b'{"a":1}'), max_attempts=3)
STARTED = Started(**ENVELOPE, attempt=1, worker="w1", lease_s=15)
STARTED_2 = Started(**ENVELOPE, attempt=2, worker="w2", lease_s=15)
RETRIED = Queued(**ENVELOPE, cause="retried", attempt=2, max_attempts=3)
COMPLETED = Completed(**ENVELOPE, attempt=1, result=msgspec.Raw(b"7"))
FAILED = Failed(**ENVELOPE, attempt=1, error=BOOM)
FAILED_LATER = Failed(**ENVELOPE, attempt=1, error=BOOM, retry_at=LATER)
CANCELLED = Cancelled(**ENVELOPE, reason="no")
INTERRUPTED = Interrupted(**ENVELOPE, attempt=1)
PAUSED = Paused(**ENVELOPE, attempt=1, until=LATER)
SNOOZED = Snoozed(**ENVELOPE, attempt=1, until=LATER)
DEAD = DeadLettered(**ENVELOPE, reason="exhausted")
DISCARDED = Discarded(**ENVELOPE)
CHECKPOINTED = Checkpointed(**ENVELOPE, attempt=1, value=msgspec.Raw(b"2"))
PROGRESSED = Progressed(**ENVELOPE, attempt=1, done=1.0, total=2.0, note="half")
CANCEL_REQUESTED = CancelRequested(**ENVELOPE, reason="please")
FENCED = Fenced(**ENVELOPE, attempt=1, worker="w1", held_epoch=2, current_epoch=3, outcome="completed")
SCHEDULED = Scheduled(**ENVELOPE, run_at=LATER)
HELD = Held(**ENVELOPE, limits=("api",))
REQUEUED = Queued(**ENVELOPE, cause="requeued", attempt=2, max_attempts=2)
RESCUED = Queued(**ENVELOPE, cause="redispatched", attempt=2, max_attempts=3)

CARRIED = Carried(**ENVELOPE, through=2, job_state=carried_job(evolve(evolve(None, QUEUED, 1), STARTED, 2)))

STEP: dict[str, Any] = {"step": "charge", "kind": "step", "target": "charge"}
STEP_STARTED = StepStarted(**ENVELOPE, **STEP, attempt=1)
STEP_COMPLETED = StepCompleted(**ENVELOPE, **STEP, attempt=1)
STEP_FAILED = StepFailed(**ENVELOPE, **STEP, attempt=1, error=BOOM)
JOINED = Joined(**ENVELOPE, step="pages", completed=((0, 3),))
SIGNALLED = Signalled(**ENVELOPE, name="approved")
SIGNAL_REFUSED = SignalRefused(
    **ENVELOPE, attempt=1, step="approved", name="approved", signal=3, reason="no int"
)
PAUSE_REQUESTED = PauseRequested(**ENVELOPE)
LOST = Lost(**ENVELOPE, attempt=1, worker="w1", epoch=2)
NOTED = Noted(**ENVELOPE, text="seen")

ONE_OF_EACH: tuple[JobEvent, ...] = (
    SCHEDULED, HELD, QUEUED, STARTED, COMPLETED, FAILED, CANCELLED, INTERRUPTED, PAUSED, SNOOZED, DEAD, DISCARDED,
    CHECKPOINTED, PROGRESSED, CANCEL_REQUESTED, FENCED, CARRIED, STEP_STARTED, STEP_COMPLETED,
    STEP_FAILED, JOINED, SIGNALLED, SIGNAL_REFUSED, PAUSE_REQUESTED, NOTED, LOST,
)  # fmt: skip


def after(*events: JobEvent) -> Job:
    """The job after `events`, stored at stream sequences 1, 2, ..."""
    job: Job | None = None
    for sequence, event in enumerate(events, start=1):
        job = evolve(job, event, sequence)
    assert job is not None
    return job


# Events in order; state; states of the attempts; claim epoch; attempts left; due; finished.
TABLE: list[tuple[tuple[JobEvent, ...], str, tuple[str, ...], int, int, datetime | None, bool]] = [
    ((SCHEDULED,), "scheduled", (), 0, 1, LATER, False),
    ((HELD,), "held", (), 0, 1, None, False),
    ((QUEUED,), "queued", (), 0, 3, None, False),
    ((SCHEDULED, QUEUED), "queued", (), 0, 3, None, False),
    ((QUEUED, HELD), "held", (), 0, 1, None, False),
    ((QUEUED, STARTED), "running", ("running",), 2, 2, None, False),
    ((QUEUED, STARTED, STARTED_2), "running", ("lost", "running"), 3, 1, None, False),
    ((QUEUED, STARTED, LOST), "running", ("running",), 2, 2, None, False),
    ((QUEUED, STARTED, LOST, STARTED_2), "running", ("lost", "running"), 4, 1, None, False),
    ((QUEUED, STARTED, RESCUED), "queued", ("lost",), 0, 2, None, False),
    ((QUEUED, STARTED, COMPLETED), "completed", ("completed",), 0, 2, None, True),
    ((QUEUED, STARTED, FAILED_LATER), "retry_wait", ("failed",), 0, 2, LATER, False),
    ((QUEUED, STARTED, FAILED_LATER, RETRIED), "queued", ("failed",), 0, 2, None, False),
    ((QUEUED, STARTED, FAILED, DEAD), "dead_lettered", ("failed",), 0, 2, None, True),
    ((QUEUED, STARTED, FAILED, CANCELLED), "cancelled", ("failed",), 0, 2, None, True),
    ((QUEUED, STARTED, DEAD), "dead_lettered", ("lost",), 0, 2, None, True),
    ((QUEUED, DEAD), "dead_lettered", (), 0, 3, None, True),
    ((QUEUED, DEAD, DISCARDED), "discarded", (), 0, 3, None, True),
    ((QUEUED, STARTED, FAILED, DEAD, REQUEUED), "queued", ("failed",), 0, 1, None, False),
    ((QUEUED, STARTED, CANCELLED), "cancelled", ("cancelled",), 0, 2, None, True),
    ((QUEUED, CANCELLED), "cancelled", (), 0, 3, None, True),
    ((QUEUED, STARTED, INTERRUPTED, RETRIED), "queued", ("interrupted",), 0, 3, None, False),
    ((QUEUED, STARTED, SNOOZED), "retry_wait", ("snoozed",), 0, 3, LATER, False),
    ((QUEUED, STARTED, PAUSED), "waiting", ("paused",), 0, 3, LATER, False),
    ((QUEUED, STARTED, CHECKPOINTED, PROGRESSED, CANCEL_REQUESTED), "running", ("running",), 2, 2, None, False),
    ((QUEUED, STARTED, STARTED_2, FENCED), "running", ("lost", "running"), 3, 1, None, False),
    ((QUEUED, STARTED, COMPLETED, FENCED), "completed", ("completed",), 0, 2, None, True),
    ((SCHEDULED, NOTED), "scheduled", (), 0, 1, LATER, False),
    ((QUEUED, STARTED, NOTED), "running", ("running",), 2, 2, None, False),
    ((QUEUED, STARTED, COMPLETED, NOTED), "completed", ("completed",), 0, 2, None, True),
]  # fmt: skip


@each_row(("events", "state", "attempts", "epoch", "left", "due", "finished"), TABLE)
def test_evolve_follows_the_table(  # noqa: PLR0917 - the columns
    events: tuple[JobEvent, ...],
    state: str,
    attempts: tuple[str, ...],
    epoch: int,
    left: int,
    due: datetime | None,
    finished: bool,
) -> None:
    job = after(*events)
    assert job.state.value == state
    assert tuple(attempt.state for attempt in job.attempts) == attempts
    assert (job.claim_epoch, job.attempts_left, job.due_at) == (epoch, left, due)
    assert (job.finished_at is not None, job.is_final) == (finished, finished)
    assert (job.running_attempt is not None) == (state == "running")
    assert job.last_sequence == len(events)


def test_the_order_of_the_first_event_outlives_the_later_ones() -> None:
    first = Queued(
        **ENVELOPE, input=msgspec.Raw(b'{"a":1}'), max_attempts=2, notify="inbox", tenant="acme",
        limits=("api",), batch="b", tick="t-1", timeout_s=3.0, trace="tr", correlation="co",
    )  # fmt: skip
    job = after(first, STARTED, FAILED_LATER, RETRIED)
    assert (job.order.input, job.order.notify, job.order.tenant, job.order.limits) == (
        first.input,
        "inbox",
        "acme",
        ("api",),
    )
    assert (job.order.batch, job.order.tick, job.order.trace, job.order.correlation, job.created_at) == (
        "b",
        "t-1",
        "tr",
        "co",
        NOW,
    )


def test_a_requeue_may_edit_the_input_and_forgets_the_verdict() -> None:
    edited = msgspec.structs.replace(REQUEUED, input=msgspec.Raw(b'{"a":2}'), priority="high")
    job = after(QUEUED, STARTED, CANCEL_REQUESTED, FAILED, DEAD, edited)
    assert (job.order.input, job.order.priority) == (msgspec.Raw(b'{"a":2}'), "high")
    assert (job.dead_reason, job.finished_at) == (None, None)
    assert (job.cancel_requested, job.cancel_reason) == (False, "")
    assert job.error == BOOM  # what to look at, until it is overcome


def test_a_wish_to_cancel_survives_a_takeover() -> None:
    job = after(QUEUED, STARTED, CANCEL_REQUESTED, STARTED_2)
    assert (job.cancel_requested, job.cancel_reason) == (True, "please")


def test_completion_sets_the_result_and_forgets_the_error() -> None:
    job = after(QUEUED, STARTED, FAILED_LATER, RETRIED, STARTED_2, COMPLETED)
    assert (job.result, job.error) == (msgspec.Raw(b"7"), None)
    assert job.attempts[0].error == BOOM


def test_checkpoints_are_kept_for_the_next_attempt_and_progress_is_not() -> None:
    job = after(QUEUED, STARTED, CHECKPOINTED, PROGRESSED)
    assert job.progress == Progress(done=1.0, total=2.0, note="half")
    next_one = evolve(job, STARTED_2, 9)
    assert (next_one.checkpoint, next_one.progress, next_one.claim_epoch) == (msgspec.Raw(b"2"), None, 9)


def test_dispatches_count_since_the_last_start() -> None:
    again = Queued(**ENVELOPE, cause="redispatched", attempt=1, max_attempts=3)
    events: list[JobEvent] = [QUEUED, again, again, STARTED]
    assert [after(*events[:n]).dispatches for n in (1, 2, 3, 4)] == [1, 2, 3, 0]


def test_a_receipt_changes_nothing_but_its_count() -> None:
    before = after(QUEUED, STARTED, COMPLETED)
    fenced = evolve(before, FENCED, 4)
    assert fenced == msgspec.structs.replace(before, fenced_count=1, last_sequence=4)


def test_there_is_one_of_each_event() -> None:
    assert {type(event) for event in ONE_OF_EACH} == set(EVENT_CLASSES)


@given(st.lists(st.sampled_from(ONE_OF_EACH), min_size=1, max_size=12))
def test_evolve_is_total_and_keeps_its_own_invariants(events: list[JobEvent]) -> None:
    before: Job | None = None
    for sequence, event in enumerate(events, start=1):
        job = evolve(before, event, sequence)
        assert isinstance(job.state, JobState)
        assert job.last_sequence == sequence
        assert job.id == "j1"
        assert job.attempts_left >= 0
        assert (job.claim_epoch != 0) == (job.state is JobState.RUNNING)
        assert all(attempt.state != "running" for attempt in job.attempts[:-1])
        known = 1 if isinstance(event, Carried) else len(before.attempts if before else ())
        assert len(job.attempts) == known + isinstance(event, Started)
        if job.running_attempt is not None:
            assert job.running_attempt.epoch == job.claim_epoch
        before = job


def test_states_are_final_waiting_or_running() -> None:
    assert set(JobState) == FINAL_STATES | PENDING_STATES | {JobState.RUNNING}
    assert not FINAL_STATES & PENDING_STATES


def test_a_stored_null_is_not_the_absence_of_a_value() -> None:
    null = msgspec.Raw(b"null")
    assert after(QUEUED, STARTED, Completed(**ENVELOPE, attempt=1, result=null)).result == null
    assert after(QUEUED, STARTED, Completed(**ENVELOPE, attempt=1)).result is NO_VALUE
