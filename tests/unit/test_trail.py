"""A job's trail: every event in words, what it waited for, who was lost, and sums that agree."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.families import sound
from tests.support.orders import enqueue_of
from tests.support.tables import each_row
from tests.support.terminal import on_a_terminal, unstyled

from jobledger.audit.trail import Lost, Trail, trail_of
from jobledger.audit.trail_words import count, span
from jobledger.audit.verify.links import ChainCheck
from jobledger.cli.jobs.trail import show_trail
from jobledger.cli.output import Output
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import (
    CancelJob,
    Checkpoint,
    Claim,
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
    ReportProgress,
    Requeue,
    Snooze,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import (
    EVENT_CLASSES,
    CarriedJob,
    ErrorInfo,
    Failed,
    JobEvent,
    Order,
    Queued,
    Scheduled,
    Started,
    StepCompleted,
)
from jobledger.ledger.model.job import Job, evolve
from jobledger.ledger.model.subjects import JobRef

CLI_DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
BEGIN = datetime(2026, 1, 2, 8, tzinfo=UTC)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom", traceback="x" * 50)


class Course:
    """A job's course as it is decided; time passes only where a test says so."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.job: Job | None = None
        self.events: list[StoredEvent] = []

    def enqueue(self, **options: Any) -> Course:
        order: dict[str, Any] = {"max_attempts": 2, **options}
        return self.do(enqueue_of(JobRef(queue="email", job_id="j"), **order), by="shop")

    def do(self, command: Any, *, by: str = "w1", after_s: float = 0.0) -> Course:
        self.now += timedelta(seconds=after_s)
        for event in decide(self.job, command, Stamp(at=self.now, by=by)):
            self.add(event)
        return self

    def add(self, event: JobEvent) -> None:
        sequence = len(self.events) + 1
        self.job = evolve(self.job, event, sequence)
        self.events.append(StoredEvent(event=event, data=b"", stream_sequence=sequence, stored_at=self.now))

    def claim(self, *, after_s: float = 0.0, worker: str = "w1") -> Course:
        return self.do(Claim(worker=worker, lease_s=15), by=worker, after_s=after_s)

    @property
    def epoch(self) -> int:
        assert self.job is not None
        return self.job.claim_epoch

    def told(self, **options: Any) -> Trail:
        return trail_of(self.events, **options)

    @property
    def texts(self) -> list[str]:
        return [line.text() for line in self.told().lines]


def test_a_job_that_completes_at_once() -> None:
    course = Course().enqueue().claim(after_s=3.4)
    told = course.do(Complete(epoch=course.epoch), after_s=1.5).told()
    assert [line.text() for line in told.lines] == [
        "queued in queue email, by shop; waits for a worker of queue email",
        "started: attempt 1 on w1",
        "completed: attempt 1",
    ]
    assert [line.since_s for line in told.lines] == [None, 3.4, 1.5]
    assert (told.lines[1].waited_s, told.lines[1].waited_for) == (3.4, "a worker of queue email")
    assert told.summary.text() == "completed after 4.9 s: waiting 3.4 s, running 1.5 s, 1 attempt"


def test_a_failure_names_its_error_its_backoff_and_when_that_ended() -> None:
    course = Course().enqueue().claim()
    course.do(Fail(epoch=course.epoch, error=BOOM, retry_at=course.now + timedelta(seconds=20)))
    course.do(Dispatch(cause="retried"), by="w2", after_s=20.012)
    assert course.texts[2:] == [
        "failed: attempt 1: ValueError: boom; waits for its backoff of 20.0 s, until 2026-01-02 08:00:20.000Z",
        "queued: retried, attempt 2 is next, 12 ms after its time, by w2; waits for a worker of queue email",
    ]
    failed, queued = course.told().lines[2:]
    assert (failed.error, failed.worker, failed.attempt) == (BOOM, "w1", 1)
    assert (queued.waited_s, queued.waited_for) == (20.012, failed.waits_for)


def test_a_failure_that_is_retried_at_once_waits_for_nothing_in_between() -> None:
    course = Course().enqueue().claim()
    course.do(Fail(epoch=course.epoch, error=BOOM))
    failed, queued = course.told().lines[2:]
    assert (failed.waits_for, queued.waits_for) == (None, "a worker of queue email")


def test_a_takeover_names_the_lost_attempt_and_how_long_its_worker_was_silent() -> None:
    course = Course().enqueue().claim()
    course.do(ReportProgress(epoch=course.epoch, done=3, total=10, note="rows"), after_s=5)
    held = course.epoch
    course.do(TakeOver(worker="w2", lease_s=15, lost_epoch=held), by="w2", after_s=16)
    course.do(Fence(epoch=held, attempt=1, worker="w1", outcome="completed"), by="w1", after_s=1)
    assert course.texts[2:] == [
        "progressed: 3 of 10 rows",
        "lost: attempt 1 on w1, by w2",
        "started: attempt 2 on w2; attempt 1 is lost: worker w1 had recorded nothing for 16.0 s",
        "fenced: completed of w1 came after its claim expired",
    ]
    assert course.told().lines[4].lost == Lost(attempt=1, worker="w1", silent_s=16.0)
    assert course.told().summary.text() == (
        "running after 22.0 s: waiting 0 ms, running 22.0 s, 2 attempts (1 lost)"
    )


def test_a_dead_letter_waits_for_a_person_who_requeues_or_discards_it() -> None:
    course = Course().enqueue(max_attempts=1).claim()
    course.do(Fail(epoch=course.epoch, error=BOOM))
    course.do(
        Requeue(reason="fixed", input=msgspec.Raw(b"{}"), priority="high"), by="alice", after_s=2 * 3600 + 60
    )
    course.do(DeadLetter(reason="max_deliver"), by="reconciler").do(Discard(reason="test data"), by="bob")
    assert course.texts[3:] == [
        "dead lettered: exhausted: ValueError: boom, by w1; waits for a person",
        (
            "queued: requeued, attempt 2 is next, priority high, new input: fixed, by alice; "
            "waits for a worker of queue email"
        ),
        "dead lettered: max_deliver, by reconciler; waits for a person",
        "discarded: test data, by bob",
    ]
    assert course.told().summary.text() == (
        "discarded after 2 h 1 min: waiting 0 ms, running 0 ms, dead letter 2 h 1 min, 1 attempt"
    )


def test_a_dead_worker_of_the_last_attempt_is_told_once() -> None:
    course = Course().enqueue(max_attempts=1).claim()
    course.do(TakeOver(worker="w2", lease_s=15, lost_epoch=course.epoch), by="w2", after_s=15)
    assert course.texts[-1] == (
        "dead lettered: exhausted: lost: worker w1 died while running the last attempt, by w2; "
        "attempt 1 is lost: worker w1 had recorded nothing for 15.0 s; waits for a person"
    )


def test_a_delay_that_an_operator_ends_early() -> None:
    course = Course().enqueue(run_at=BEGIN + timedelta(hours=1), priority="low")
    course.do(Dispatch(cause="due", reason="retried by hand"), by="alice", after_s=600)
    assert course.texts == [
        (
            "scheduled in queue email, due at 2026-01-02 09:00:00.000Z, by shop; "
            "waits for its time in 1 h, at 2026-01-02 09:00:00.000Z"
        ),
        (
            "queued: due, attempt 1 is next, priority low: retried by hand, 50 min before its time, by alice; "
            "waits for a worker of queue email"
        ),
    ]


def test_a_running_job_that_is_asked_to_end_waits_for_its_worker() -> None:
    course = Course().enqueue().claim()
    course.do(CancelJob(reason="no need"), by="alice")
    course.do(Checkpoint(epoch=course.epoch, value=msgspec.Raw(b"1")), after_s=1)
    course.do(ConfirmCancel(epoch=course.epoch), after_s=1)
    assert course.texts[2:] == [
        "cancel requested: no need, by alice; waits for worker w1 to end attempt 1",
        "checkpointed: attempt 1",
        "cancelled: no need",
    ]
    assert course.told().lines[-1].waited_s == 2.0


def test_attempts_that_do_not_count_and_limits() -> None:
    course = (
        Course().enqueue(max_attempts=1, limits=("api", "db")).do(Dispatch(cause="admitted", grant=1)).claim()
    )
    course.do(Snooze(epoch=course.epoch, until=course.now + timedelta(seconds=9)))
    course.do(Dispatch(cause="due"), after_s=9).do(Dispatch(cause="admitted", grant=1)).claim()
    course.do(Pause(epoch=course.epoch, event="paid")).do(Dispatch(cause="resumed"), after_s=1)
    course.do(Dispatch(cause="admitted", grant=1)).claim()
    course.do(Interrupt(epoch=course.epoch, reason="deploy"))
    assert [
        each for each in course.texts if each.startswith(("held in", "snoozed", "paused", "interrupted"))
    ] == [
        "held in queue email, for api, db, by shop; waits for its limits to admit it",
        (
            "snoozed: attempt 1 until 2026-01-02 08:00:09.000Z; "
            "waits for its time in 9.0 s, at 2026-01-02 08:00:09.000Z"
        ),
        "paused: attempt 2: for event paid; waits for event paid",
        "interrupted: attempt 3: deploy",
    ]


def test_a_job_that_waits_is_counted_up_to_now() -> None:
    course = Course().enqueue()
    assert course.told().summary.total_s == 0.0
    told = course.told(now=BEGIN + timedelta(minutes=2))
    assert told.summary.text() == "queued after 2 min: waiting 2 min, running 0 ms, 0 attempts"


def test_a_job_that_is_over_stops_counting() -> None:
    course = Course().enqueue().claim()
    held = course.epoch
    course.do(TakeOver(worker="w2", lease_s=15, lost_epoch=held), by="w2")
    course.do(Complete(epoch=course.epoch), after_s=1, by="w2")
    course.do(Fence(epoch=held, attempt=1, worker="w1", outcome="completed"), after_s=30)
    assert course.told(now=BEGIN + timedelta(days=9)).summary.total_s == 1.0


def test_a_server_clock_that_was_set_back_makes_no_time_negative() -> None:
    course = Course().enqueue().claim(after_s=-60)
    assert [line.since_s for line in course.told().lines] == [None, 0.0]


def test_a_long_text_of_a_task_is_cut_in_words_and_whole_in_the_error() -> None:
    course = Course().enqueue().claim()
    course.do(Fail(epoch=course.epoch, error=ErrorInfo(kind="exception", type="E", message="m" * 2_000)))
    failed = course.told().lines[2]
    assert len(failed.what) < 400
    assert failed.error is not None
    assert len(failed.error.message) == 2_000


def test_the_trail_in_the_docs_is_told_like_this(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, 110)
    first, second, shop = "host-7-4be0c2aa", "host-8-91f7d03c", "web-812-9d0ab3f1"
    error = ErrorInfo(kind="exception", type="ConnectionError", message="the bank does not answer")
    course = Course()
    course.do(
        Enqueue(ref=JobRef(queue="billing", job_id="charge-1"), task="charge", order=Order(max_attempts=3)),
        by=shop,
    )
    course.claim(after_s=2.2, worker=first)
    retry_at = course.now + timedelta(seconds=30.1)
    course.do(Fail(epoch=course.epoch, error=error, retry_at=retry_at), by=first, after_s=0.1)
    course.do(Dispatch(cause="retried"), by=second, after_s=30.006).claim(after_s=0.003, worker=first)
    course.do(TakeOver(worker=second, lease_s=15, lost_epoch=course.epoch), by=second, after_s=16.2)
    course.do(Complete(epoch=course.epoch), by=second, after_s=0.4)
    check = ChainCheck(events=len(course.events), broken_at=None)
    show_trail(Output(), course.events, course.now, check)
    shown = "\n".join(unstyled(capsys.readouterr().out))
    assert f"```text\n{shown.rstrip()}\n```\n" in CLI_DOCS.read_text(encoding="utf-8"), shown


_FIELDS: dict[str, Any] = {
    "attempt": 7,
    "worker": "w9",
    "lease_s": 1.0,
    "error": BOOM,
    "until": datetime(2026, 1, 2, 9),  # noqa: DTZ001 - what nobody but a forger writes
    "run_at": datetime(2026, 1, 2, 9),  # noqa: DTZ001
    "done": 1.0,
    "held_epoch": 1,
    "current_epoch": 2,
    "outcome": "completed",
    "through": 3,
    "step": "charge",
    "kind": "step",
    "target": "charge",
    "name": "approved",
    "signal": 3,
    "epoch": 3,
    "text": "seen",
    "job_state": CarriedJob(state="held", created_at=BEGIN, updated_at=BEGIN, last_sequence=3),
}


def _forged(cls: type[JobEvent], number: int) -> StoredEvent:
    names = {field.name for field in msgspec.structs.fields(cls) if field.required}
    given: dict[str, Any] = {name: value for name, value in _FIELDS.items() if name in names}
    if "reason" in names:
        given["reason"] = "rejected"
    at = BEGIN if number % 2 else BEGIN.replace(tzinfo=None)
    event = cls(job="j", queue="q", task="t", at=at, by="forger", **given)
    return StoredEvent(event=event, data=b"", stream_sequence=number, stored_at=BEGIN)


@given(st.lists(st.sampled_from(EVENT_CLASSES), min_size=1, max_size=12))
def test_a_trail_is_told_of_any_events_also_of_forged_ones(classes: Sequence[type[JobEvent]]) -> None:
    events = [_forged(cls, number) for number, cls in enumerate(classes, 1)]
    told = trail_of(events, now=BEGIN)
    assert all(line.text() for line in told.lines)
    assert told.summary.events == len(events)
    msgspec.json.encode(told)


def test_a_forged_retry_with_a_time_without_zone_is_told() -> None:
    naive = datetime(2026, 1, 2, 9)  # noqa: DTZ001
    event = Failed(job="j", queue="q", task="t", at=BEGIN, by="f", attempt=1, error=BOOM, retry_at=naive)
    stored = [_forged(Queued, 1), _forged(Started, 2), _forged(Scheduled, 4)]
    stored.insert(2, StoredEvent(event=event, data=b"", stream_sequence=3, stored_at=BEGIN))
    assert "its backoff of 1 h, until 2026-01-02 09:00:00.000Z" in trail_of(stored).lines[2].text()


@each_row(
    ("seconds", "text"),
    [
        (0, "0 ms"), (0.0124, "12 ms"), (3.44, "3.4 s"), (59.9, "59.9 s"), (60, "1 min"), (320, "5 min 20 s"),
        (7_500, "2 h 5 min"), (7_201, "2 h"), (86_400, "1 d"), (273_600, "3 d 4 h"), (900 * 86_400, "900 d"),
    ],
)  # fmt: skip
def test_spans_are_told_in_the_units_that_fit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_counts_have_their_plural() -> None:
    assert [count(number, "attempt") for number in (0, 1, 2)] == ["0 attempts", "1 attempt", "2 attempts"]


def _told(job: str) -> list[str]:
    events = [each for each in sound().messages if isinstance(each, StoredEvent) and each.event.job == job]
    return [line.text() for line in trail_of(events).lines]


def test_a_trail_says_in_words_what_a_run_did_and_waits_for() -> None:
    waits, children, held_up = _told("waits"), _told("map"), _told("held-up")
    assert "step started: nap: sleeps until 2026-01-02 01:00:11.000Z" in waits
    assert "signalled: signal go (click), by w1" in waits
    assert "step started: first: waits for signal go" in waits
    assert "paused: attempt 2: for second; waits for signal go" in waits
    assert "step started: pages: 5 jobs of task send, at most 2 at a time" in children
    assert "paused: attempt 1: for pages; waits for 2 open children of step pages" in children
    assert "joined: children of pages: 1 failed, 1 opened, by w1" in children
    assert (
        "queued: resumed, attempt 2 is next, children of pages: 1 completed, by w1; waits for a worker of queue email"
        in children
    )
    assert held_up[4].endswith("2 of its children open: lunch, by w1; waits for a person to resume it")
    assert _told("map-1-1")[0].startswith("queued in queue email, item 1 of step pages of map")
    assert _told("gone")[-1] == "cancelled: 3 of its children open, by w1"
    assert _told("again")[2] == f"step completed: charge (step), copied from sequence {_charged()}"


def _charged() -> int:
    return next(
        each.stream_sequence
        for each in sound().messages
        if isinstance(each, StoredEvent)
        and each.event.job == "source"
        and isinstance(each.event, StepCompleted)
    )
