"""The transition table: whatever `decide` decides obeys it, and what is planted against it is found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tables import each_row

from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Checkpoint,
    Claim,
    Command,
    Complete,
    ConfirmCancel,
    DeadLetter,
    Discard,
    Dispatch,
    Enqueue,
    Fail,
    Fence,
    Interrupt,
    Pause,
    PutBack,
    ReportProgress,
    Requeue,
    Rescue,
    Snooze,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.decision_parts.carried import carried_job
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.errors import LedgerError
from jobledger.ledger.model.events import (
    EVENT_CLASSES,
    CancelRequested,
    Carried,
    Cause,
    Completed,
    DeadLettered,
    ErrorInfo,
    Failed,
    Fenced,
    Held,
    JobEvent,
    Order,
    Queued,
    Scheduled,
    Started,
)
from jobledger.ledger.model.job import Job, JobState, evolve
from jobledger.ledger.model.lifecycle import CAUSES, LEGAL
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.transitions import violation

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
REF = JobRef(queue="email", job_id="j1")
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom")
STAMP = Stamp(at=NOW, by="w1")
NAME: dict[str, Any] = {"job": "j1", "queue": "email", "task": "send", "at": NOW, "by": "w1"}

maybe_later = st.sampled_from([None, NOW, LATER])
epochs = st.integers(0, 12)
causes: st.SearchStrategy[Cause] = st.sampled_from(
    [
        "new",
        "due",
        "admitted",
        "retried",
        "requeued",
        "resumed",
        "interrupted",
        "redispatched",
        "carried",
        "ungranted",
    ]
)
limits = st.sampled_from([(), ("api",)])
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(Enqueue, ref=st.just(REF), task=st.just("send"), run_at=maybe_later, order=st.builds(Order, max_attempts=st.integers(1, 3), limits=limits)),
    st.builds(Dispatch, cause=causes),
    st.just(Dispatch(cause="admitted", grant=7)),
    st.builds(PutBack, asked_by=epochs),
    st.builds(Claim, worker=st.just("w1"), lease_s=st.just(15.0)),
    st.builds(TakeOver, worker=st.just("w2"), lease_s=st.just(15.0), lost_epoch=epochs),
    st.builds(Rescue, lost_epoch=epochs),
    st.builds(Complete, epoch=epochs),
    st.builds(Fail, epoch=epochs, error=st.just(BOOM), retry_at=maybe_later, give_up=st.sampled_from([None, "invalid"])),
    st.builds(Interrupt, epoch=epochs, reason=st.just("deploy")),
    st.builds(Snooze, epoch=epochs, until=st.just(LATER)),
    st.builds(Pause, epoch=epochs, until=maybe_later),
    st.builds(Checkpoint, epoch=epochs),
    st.builds(ReportProgress, epoch=epochs, done=st.just(1.0)),
    st.builds(CancelJob),
    st.builds(ConfirmCancel, epoch=epochs),
    st.builds(DeadLetter, reason=st.just("max_deliver")),
    st.builds(Requeue, attempts=st.integers(-1, 2)),
    st.builds(Discard),
    st.builds(Fence, epoch=epochs, attempt=st.integers(1, 3), worker=st.just("w1"), outcome=st.just("completed")),
    st.builds(Carry, through=st.integers(0, 12), tracebacks=st.booleans()),
)  # fmt: skip


def aimed(job: Job | None, command: Command) -> Command:
    """Aim most of what names a claim at the one that holds, or nothing would ever be accepted."""
    if job is None:
        return command
    if isinstance(command, TakeOver | Rescue):
        return msgspec.structs.replace(command, lost_epoch=job.claim_epoch)
    if isinstance(command, PutBack):
        return msgspec.structs.replace(command, asked_by=job.wait_sequence)
    if isinstance(command, Fence):
        held = job.attempts[0] if job.attempts else None
        return msgspec.structs.replace(command, epoch=held.epoch, attempt=held.number) if held else command
    return msgspec.structs.replace(command, epoch=job.claim_epoch) if hasattr(command, "epoch") else command


@given(st.lists(st.tuples(commands, st.sampled_from([True, True, True, False])), max_size=25))
def test_nothing_that_decide_decides_breaks_the_table(steps: list[tuple[Command, bool]]) -> None:
    job: Job | None = None
    sequence = 0
    for drawn, at_holder in steps:
        try:
            events = decide(job, aimed(job, drawn) if at_holder else drawn, STAMP)
        except LedgerError:
            continue
        assert events
        for event in events:
            sequence += 1
            assert violation(job, event) is None
            job = evolve(job, event, sequence)
        assert job is not None
        assert not (job.state is JobState.RETRY_WAIT and job.due_at is None), (
            "left between two events of a batch"
        )
        assert len(job.attempts) <= job.order.max_attempts + job.attempts_given_back


def _after(*events: JobEvent) -> Job:
    job: Job | None = None
    for sequence, event in enumerate(events, start=1):
        job = evolve(job, event, sequence)
    assert job is not None
    return job


QUEUED = Queued(**NAME, max_attempts=2)
STARTED = Started(**NAME, attempt=1, worker="w1", lease_s=15)
SECOND = Started(**NAME, attempt=2, worker="w2", lease_s=15)
STRAY = msgspec.structs.replace(STARTED, job="j2")
COMPLETED = Completed(**NAME, attempt=1)
FAILED = Failed(**NAME, attempt=1, error=BOOM)
FAILED_LATER = Failed(**NAME, attempt=1, error=BOOM, retry_at=LATER)
DEAD = DeadLettered(**NAME, reason="exhausted")
ASKED = CancelRequested(**NAME)
LIMITED: dict[str, Any] = {"limits": ("api",), "fair": "a"}
HELD = Held(**NAME, **LIMITED)
ADMITTED = Queued(**NAME, **LIMITED, cause="admitted", grant=7)
ADMITTED_OTHERWISE = Queued(**NAME, **LIMITED, cause="admitted", grant=7, tenant="acme")
UNGRANTED_OTHERWISE = Held(**NAME, cause="ungranted", limits=("api",), fair="b")


AGAIN = Queued(**NAME, cause="retried", attempt=2, max_attempts=2, given_back=0)


def _offering(**changes: Any) -> Failed:
    """Return a failure that has the work item at 1 delivered again, with something wrong in it."""
    said: dict[str, Any] = {"v": 2, "attempt": 1, "error": BOOM, "dispatch": 1, "epoch": 2, "given_back": 0}
    return Failed(**NAME, **said | changes)


def _fenced(attempt: int, held_epoch: int, current_epoch: int) -> Fenced:
    return Fenced(
        **NAME,
        attempt=attempt,
        worker="w1",
        held_epoch=held_epoch,
        current_epoch=current_epoch,
        outcome="failed",
    )


PLANTED: list[tuple[Job | None, JobEvent, str]] = [
    (None, STARTED, "`started` is its first event"),
    (None, Queued(**NAME, cause="retried"), "`queued` with cause 'retried' while it is not there"),
    (None, Queued(**NAME, attempt=2), "`queued` for attempt 2, the next one is 1"),
    (None, Queued(**NAME, max_attempts=0), "`queued` for attempt 1 of 0 (given back: 0)"),
    (_after(QUEUED), QUEUED, "`queued` with cause 'new' while it is queued"),
    (_after(QUEUED), Scheduled(**NAME, run_at=LATER), "`scheduled` follows while it is queued"),
    (_after(QUEUED, STARTED, FAILED), Scheduled(**NAME, run_at=LATER), "`scheduled` while it waits for no time"),
    (_after(QUEUED), COMPLETED, "`completed` follows while it is queued"),
    (_after(QUEUED), SECOND, "`started` as attempt 2, the next one is 1"),
    (_after(QUEUED), STRAY, "`started` names email/j2 (send), its chain is of email/j1 (send)"),
    (_after(QUEUED, STARTED), STARTED, "`started` as attempt 1, the next one is 2"),
    (_after(QUEUED, STARTED, SECOND), Started(**NAME, attempt=3, worker="w", lease_s=1), "`started` as attempt 3 of 2 (given back: 0)"),
    (_after(QUEUED, STARTED, ASKED), SECOND, "`started` although it was asked to end"),
    (_after(QUEUED, STARTED, ASKED), ASKED, "`cancel_requested` a second time"),
    (_after(QUEUED, STARTED, SECOND), COMPLETED, "`completed` of attempt 1, running is 2"),
    (_after(QUEUED, STARTED, COMPLETED), COMPLETED, "`completed` follows while it is completed"),
    (_after(QUEUED, STARTED, COMPLETED), FAILED, "`failed` follows while it is completed"),
    (_after(QUEUED, STARTED, FAILED_LATER), DEAD, "`dead_lettered` while it waits to run again"),
    (_after(QUEUED, STARTED, FAILED_LATER), SECOND, "`started` follows while it is retry_wait"),
    (_after(QUEUED, STARTED, FAILED, DEAD), Queued(**NAME, cause="retried", attempt=2, max_attempts=2), "`queued` with cause 'retried' while it is dead_lettered"),
    (_after(QUEUED, STARTED), Queued(**NAME, cause="retried", attempt=2, max_attempts=2), "`queued` with cause 'retried' while it is running"),
    (_after(QUEUED, STARTED, SECOND), Queued(**NAME, cause="redispatched", attempt=3, max_attempts=2), "`queued` for attempt 3 of 2 (given back: 0)"),
    (None, Carried(**NAME, through=1, job_state=carried_job(_after(QUEUED))), "`carried` carries a job of which there was no event"),
    (_after(QUEUED, STARTED, COMPLETED), Queued(**NAME, cause="carried", attempt=2, max_attempts=2), "`queued` follows while it is completed"),
    (_after(QUEUED, STARTED, SECOND), _fenced(2, 3, 3), "`fenced` claim 3, which holds it"),
    (_after(QUEUED, STARTED, SECOND), _fenced(1, 2, 9), "`fenced` by claim 9, the current one is 3"),
    (_after(HELD), Queued(**NAME, cause="admitted"), "`queued` as 'admitted' by no grant"),
    (_after(HELD), ADMITTED_OTHERWISE, "`queued` with another order than the job's"),
    (_after(HELD, ADMITTED), UNGRANTED_OTHERWISE, "`held` for api of b, its order says api of a"),
    (_after(HELD, ADMITTED), Queued(**NAME, cause="redispatched", grant=7), "`queued` as 'redispatched' by grant 7: only 'admitted' names one"),
    (_after(HELD, ADMITTED), Queued(**NAME, cause="ungranted"), "`queued` as 'ungranted' past its limits (api)"),
    (_after(HELD, ADMITTED), Held(**NAME, cause="due", **LIMITED), "`held` with cause 'due' while it is queued"),
    (_after(HELD, ADMITTED, STARTED), Held(**NAME, cause="ungranted", attempt=2, **LIMITED), "`held` follows while it is running"),
    (_after(HELD, ADMITTED, STARTED), COMPLETED, "`completed` without `limited`, and the job has limits (api)"),
    (_after(QUEUED), Queued(**NAME, cause="ungranted", max_attempts=2), "`queued` as 'ungranted', though it has no limits"),
    (_after(QUEUED, STARTED), _offering(epoch=3), "`failed` of claim 3, the current one is 2"),
    (_after(QUEUED, STARTED), _offering(dispatch=2), "`failed` names the dispatch at 2, the newest one is at 1"),
    (_after(QUEUED, STARTED), _offering(retry_priority="low"), "`failed` queues the job, which has no attempt left or is to have another priority"),
    (_after(QUEUED, STARTED, SECOND), _offering(attempt=2, epoch=3), "`failed` queues the job, which has no attempt left or is to have another priority"),
    (_after(QUEUED, STARTED), _offering(given_back=1), "`failed` says 1 attempts given back, there are 0"),
    (_after(QUEUED, STARTED), _offering(given_back=1, retry_at=LATER), "`failed` says 1 attempts given back, there are 0"),
    (_after(HELD, ADMITTED, STARTED), _offering(dispatch=2, epoch=3), "`failed` queues the job past its limits (api)"),
    (_after(QUEUED, STARTED, FAILED_LATER), msgspec.structs.replace(AGAIN, given_back=1), "`queued` says 1 attempts given back, there are 0"),
    (_after(QUEUED, STARTED, FAILED_LATER), msgspec.structs.replace(AGAIN, tenant="acme"), "`queued` with another order than the job's"),
    (_after(QUEUED, STARTED), msgspec.structs.replace(COMPLETED, limited=True), "`completed` with `limited`, and the job has no limits"),
    (_after(QUEUED, STARTED, SECOND), _fenced(1, 7, 3), "`fenced` claim 7 as attempt 1, which it never had"),
]  # fmt: skip


@each_row(("job", "event", "sentence"), PLANTED)
def test_planted_events_are_found(job: Job | None, event: JobEvent, sentence: str) -> None:
    assert violation(job, event) == f"job {event.job}: {sentence}"


def test_the_tables_name_every_state_and_only_known_types() -> None:
    assert set(LEGAL) == {None, *JobState}
    assert frozenset().union(*LEGAL.values()) == set(EVENT_CLASSES)
    assert {state for state, types in LEGAL.items() if Queued in types} == {
        state for state, causes in CAUSES.items() if causes
    }
