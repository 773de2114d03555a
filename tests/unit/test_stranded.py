"""What becomes of a job whose dispatch is handed out no more: a table of states, and every verdict is possible."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.support.tables import each_row

from jobledger.ledger import Job
from jobledger.ledger.model.commands import (
    CancelJob,
    Claim,
    Command,
    Complete,
    ConfirmCancel,
    DeadLetter,
    Dispatch,
    Enqueue,
    Fail,
    Requeue,
    Rescue,
    Snooze,
    Stamp,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import ErrorInfo, Order, event_type
from jobledger.ledger.model.job import evolve
from jobledger.ledger.model.subjects import JobRef
from jobledger.workers.reactors.reconciler import Position, is_given_up
from jobledger.workers.reactors.stranded_jobs import DISPATCHES_MAX, Verdict, judge

NOW = datetime(2026, 1, 2, tzinfo=UTC)
STAMP = Stamp(at=NOW, by="w1")
NEW = Enqueue(ref=JobRef(queue="email", job_id="j1"), task="send", order=Order(max_attempts=2))
CLAIM = Claim(worker="w1", lease_s=15.0)
ANEW = Dispatch(cause="redispatched")
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom")
LAST: tuple[Command, ...] = (NEW, CLAIM, Fail(epoch=2, error=BOOM), CLAIM)


def grow(*commands: Command) -> Job:
    job: Job | None = None
    for command in commands:
        for event in decide(job, command, STAMP):
            job = evolve(job, event, 1 if job is None else job.last_sequence + 1)
    assert job is not None
    return job


def kind(verdict: Verdict) -> str:
    return str(verdict) if verdict is None or verdict == "wait" else type(verdict).__name__


TABLE: list[tuple[tuple[Command, ...], int, bool, str, str]] = [
    # the way there; the dispatch asked about; whether the holder lives; the verdict; the first event it makes
    ((NEW,), 1, False, "Dispatch", "queued"),
    ((NEW, ANEW), 2, False, "Dispatch", "queued"),
    ((NEW, ANEW, ANEW), 3, False, "DeadLetter", "dead_lettered"),
    ((NEW, ANEW), 1, False, "None", ""),
    ((NEW,), 9, False, "wait", ""),
    ((NEW, CLAIM), 1, True, "wait", ""),
    ((NEW, CLAIM), 1, False, "Rescue", "queued"),
    ((NEW, CLAIM, CancelJob()), 1, True, "wait", ""),
    ((NEW, CLAIM, CancelJob()), 1, False, "Rescue", "cancelled"),
    (LAST, 4, False, "DeadLetter", "dead_lettered"),
    ((*LAST, CancelJob()), 4, False, "Rescue", "cancelled"),
    (LAST, 1, False, "None", ""),
    (LAST, 4, True, "wait", ""),
    ((NEW, CLAIM, Complete(epoch=2)), 1, False, "None", ""),
    ((NEW, CLAIM, Snooze(epoch=2, until=NOW + timedelta(hours=1))), 1, False, "None", ""),
    ((NEW, CLAIM, ConfirmCancel(epoch=2)), 1, False, "None", ""),
    ((NEW, DeadLetter(reason="max_deliver")), 1, False, "None", ""),
    # Requeued, it has as many dispatches as a new one.
    ((NEW, ANEW, ANEW, DeadLetter(reason="max_deliver"), Requeue()), 5, False, "Dispatch", "queued"),
    # Started and lost, it has its dispatches again as well.
    ((NEW, ANEW, ANEW, CLAIM, Rescue(lost_epoch=4)), 6, False, "Dispatch", "queued"),
]


@each_row(("way", "sequence", "lives", "expected", "first"), TABLE)
def test_judge_follows_the_table(
    way: tuple[Command, ...], sequence: int, lives: bool, expected: str, first: str
) -> None:
    job = grow(*way)
    verdict = judge(job, sequence, holder_lives=lives, deliveries=20)
    assert kind(verdict) == expected
    if verdict is not None and verdict != "wait":
        assert event_type(decide(job, verdict, STAMP)[-1]) == first


def test_a_job_that_is_not_there_yet_is_waited_for() -> None:
    assert judge(None, 1, holder_lives=False) == "wait"


def test_a_dead_letter_says_how_it_came_to_it() -> None:
    never = judge(grow(NEW, *[ANEW] * (DISPATCHES_MAX - 1)), 3, holder_lives=False, deliveries=20)
    assert isinstance(never, DeadLetter)
    assert never.error is not None
    assert never.error.message == (
        "3 dispatches came to no verdict (the last one was delivered 20 times): no worker of queue email started it. "
        "Look at their logs, then requeue it"
    )
    lost = judge(grow(*LAST), 4, holder_lives=False)
    assert isinstance(lost, DeadLetter)
    assert lost.error is not None
    assert lost.error.message == (
        "worker w1 died while running attempt 2, the last one, and nobody took the job over"
    )


@each_row(
    ("settled", "unsettled", "age_s", "expected"),
    [
        (9, 5, 0.0, False),  # one short of it
        (10, 5, 0.0, True),  # up to here all is settled
        (3, 5, 0.0, False),  # somebody may have it
        (3, 5, 100.0, True),  # for far too long
        (0, 0, 0.0, True),  # nobody has anything
    ],
)
def test_a_dispatch_is_given_up_when_the_server_says_so_or_it_is_far_too_old(
    settled: int, unsettled: int, age_s: float, expected: bool
) -> None:
    position = Position(delivered=20, settled=settled, unsettled_count=unsettled, waiting_count=3)
    assert is_given_up(position, 10, age_s, suspect_s=100.0) is expected
