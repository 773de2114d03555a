from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import jobledger.projections
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import (
    Completed,
    DeadLettered,
    ErrorInfo,
    Failed,
    Fenced,
    JobEvent,
    PayloadRef,
    Progressed,
    Queued,
    Snoozed,
    Started,
)
from jobledger.ledger.model.fingerprint import fingerprint
from jobledger.ledger.model.job import Job, evolve
from jobledger.projections.layout import LEDGER
from jobledger.projections.table import Row
from jobledger.projections.tables import job_schema as schema
from jobledger.projections.tables import job_values as values

AT = datetime(2025, 1, 31, 8, 0, 0, 125_000, tzinfo=UTC)
BASE: dict[str, Any] = {"job": "j-1", "queue": "email", "task": "app.send", "by": "test"}
ERROR = ErrorInfo(kind="exception", type="ValueError", message="no such user", traceback="Traceback ...")


def at(second: float) -> datetime:
    return AT + timedelta(seconds=second)


def fold(*events: JobEvent) -> Job:
    job: Job | None = None
    for sequence, event in enumerate(events, start=1):
        job = evolve(job, event, sequence)
    assert job is not None
    return job


def queued(**order: object) -> Queued:
    chosen: dict[str, object] = {"input": msgspec.Raw(b'{"user_id":7}'), "max_attempts": 3, **order}
    return msgspec.structs.replace(Queued(**BASE, at=AT), **chosen)


def started(attempt: int, second: float) -> Started:
    return Started(**BASE, at=at(second), attempt=attempt, worker=f"w-{attempt}", lease_s=15)


def stored(table: str, *statements: tuple[str, Row]) -> dict[str, Any]:
    """Return the one row of a table as SQLite gives it back."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        LEDGER.create_tables(connection, "")
        for statement, row in statements:
            connection.execute(statement, row)
        found = connection.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in found.description]
        (only,) = found.fetchall()
        return dict(zip(names, only, strict=True))


def changing(job: Job) -> Row:
    return (*values.job_changing(job, values.fold_bytes(values.without_input(job)), 2), job.id, job.queue)


def row_of(job: Job) -> dict[str, Any]:
    return stored("jobs", (schema.INSERT_JOB, changing(job) + values.job_fixed(job, 1)))


def test_a_new_job_has_its_order_and_no_attempt() -> None:
    row = row_of(fold(queued(priority="high", tenant="acme", timeout_s=30.0)))
    expected = {
        "task": "app.send",
        "status": "queued",
        "priority": "high",
        "data": '{"user_id":7}',
        "result": None,
        "error": None,
        "created_at": "2025-01-31T08:00:00.125000Z",
        "updated_at": "2025-01-31T08:00:00.125000Z",
        "started_at": None,
        "completed_at": None,
        "attempt_count": 0,
        "retry_count": 0,
        "max_attempts": 3,
        "max_retries": 2,
        "worker": None,
        "tenant": "acme",
        "timeout_s": 30.0,
        "last_sequence": 1,
    }
    assert {name: row[name] for name in expected} == expected


def test_what_a_job_does_not_have_is_null_also_where_it_had_it() -> None:
    failed = Failed(**BASE, at=at(2), attempt=1, error=ERROR, retry_at=at(9))
    waiting = fold(queued(timeout_s=3.0), started(1, 1), failed)
    requeued = evolve(waiting, queued(timeout_s=None, input=NO_VALUE), 4)
    row = stored(
        "jobs",
        (schema.INSERT_JOB, changing(waiting) + values.job_fixed(waiting, 1)),
        (schema.UPDATE_JOB, changing(requeued)),
        (schema.UPDATE_DATA, (values.data_text(evolve(None, queued(input=NO_VALUE), 1)), "j-1", "email")),
    )
    missing = {"data", "result", "due_at", "completed_at", "dead_reason", "worker", "timeout_s"}
    missing |= {"progress_done", "progress_total", "progress_note"}
    missing |= {"parent_queue", "parent_id", "parent_step", "parent_item", "version", "awaiting"}
    assert {name for name, value in row.items() if value is None} == missing
    assert type(row["fold"]) is bytes


@pytest.mark.parametrize("text", ["", "0", "NULL"])
def test_texts_that_look_like_nothing_are_stored_as_they_are(text: str) -> None:
    progressed = Progressed(**BASE, at=at(2), attempt=1, done=0, total=0, note=text)
    failed = Failed(
        **BASE,
        at=at(2),
        attempt=1,
        error=ErrorInfo(kind="exception", type=text, message=text, traceback=""),
        retry_at=at(2),
    )
    job = fold(queued(timeout_s=0.0), started(1, 1), progressed, failed)
    row = row_of(job)
    assert (row["error"], row["error_type"]) == (text, text)
    assert (row["progress_done"], row["progress_total"], row["progress_note"]) == (0, 0, text)
    assert row["timeout_s"] == 0
    attempt = stored("attempts", *((schema.PUT_ATTEMPT, each) for each in values.attempt_rows(job, None)))
    assert (attempt["error"], attempt["error_type"], attempt["finished_at"]) == (
        text,
        text,
        "2025-01-31T08:00:02.125000Z",
    )


def test_a_running_job_shows_its_worker_and_progress() -> None:
    progressed = Progressed(**BASE, at=at(2), attempt=1, done=3, total=10, note="third")
    row = row_of(fold(queued(), started(1, 1), progressed))
    assert (row["status"], row["worker"]) == ("running", "w-1")
    assert (row["progress_done"], row["progress_total"], row["progress_note"]) == (3, 10, "third")


def test_a_completed_job_shows_first_start_end_and_result() -> None:
    failed = Failed(**BASE, at=at(2), attempt=1, error=ERROR, retry_at=at(2))
    completed = Completed(**BASE, at=at(9), attempt=2, result=msgspec.Raw(b"null"))
    job = fold(queued(), started(1, 1), failed, queued(input=NO_VALUE), started(2, 5), completed)
    row = row_of(job)
    assert (row["started_at"], row["completed_at"]) == (
        "2025-01-31T08:00:01.125000Z",
        "2025-01-31T08:00:09.125000Z",
    )
    assert (row["attempt_count"], row["retry_count"], row["result"], row["error"]) == (2, 1, "null", None)
    assert (row["worker"], row["data"]) == (None, '{"user_id":7}')


def test_an_attempt_given_back_is_not_a_retry() -> None:
    snoozed = Snoozed(**BASE, at=at(2), attempt=1, until=at(60))
    row = row_of(fold(queued(), started(1, 1), snoozed, queued(input=NO_VALUE), started(2, 61)))
    assert (row["attempt_count"], row["retry_count"]) == (2, 0)


def test_attempt_rows_have_duration_and_error() -> None:
    job = fold(queued(), started(1, 1), Failed(**BASE, at=at(3.5), attempt=1, error=ERROR, retry_at=at(9)))
    row = stored("attempts", *((schema.PUT_ATTEMPT, each) for each in values.attempt_rows(job, None)))
    assert (row["id"], row["attempt_number"], row["status"]) == ("email/j-1/1", 1, "failed")
    assert (row["duration_ms"], row["error"], row["error_type"]) == (2500.0, "no such user", "ValueError")


def test_only_attempts_that_changed_are_written_again() -> None:
    before = fold(queued(), started(1, 1), Failed(**BASE, at=at(2), attempt=1, error=ERROR, retry_at=at(9)))
    waiting = evolve(before, queued(input=NO_VALUE), 4)
    assert values.attempt_rows(waiting, before) == []
    again = evolve(waiting, started(2, 10), 5)
    assert [row[0] for row in values.attempt_rows(again, before)] == ["email/j-1/2"]


def test_a_dead_letter_row_says_why() -> None:
    failed = Failed(**BASE, at=at(2), attempt=1, error=ERROR)
    dead = DeadLettered(**BASE, at=at(2), reason="exhausted", error=ERROR)
    row = dict(
        zip(
            schema.DEAD_LETTERS.columns,
            values.dead_letter_row(fold(queued(), started(1, 1), failed, dead)),
            strict=True,
        )
    )
    expected = {
        "queue": "email",
        "job_id": "j-1",
        "task": "app.send",
        "tenant": "",
        "reason": "exhausted",
        "error_type": "ValueError",
        "error": "no such user",
        "traceback": "Traceback ...",
        "fingerprint": fingerprint("app.send", ERROR),
        "pattern": "no such user",
        "attempts": 1,
        "dead_at": "2025-01-31T08:00:02.125000Z",
        "last_sequence": 4,
    }
    assert row == expected


def test_a_large_input_is_shown_as_its_reference() -> None:
    row = row_of(fold(queued(input=NO_VALUE, input_ref=PayloadRef(sha256="ab" * 32, size_bytes=70_000))))
    assert row["data"] == '{"sha256":"%s","size_bytes":70000}' % ("ab" * 32)


ORDERS = {
    "inline": queued(),
    "none": queued(input=NO_VALUE),
    "reference": queued(input=NO_VALUE, input_ref=PayloadRef(sha256="00" * 32, size_bytes=1)),
    "both": queued(input_ref=PayloadRef(sha256="00" * 32, size_bytes=1)),
    "not UTF-8": queued(input=msgspec.Raw(b'{"a":"\xff"}')),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_fold_and_data_give_the_job_back_and_folding_goes_on_from_them(order: Queued) -> None:
    job = fold(order)
    kept = values.unfold(values.fold_bytes(job), (job.id, job.queue), None, None)
    data = row_of(job)["data"]
    assert values.with_input(kept, data) == job
    further = evolve(kept, started(1, 1), 2)
    assert values.with_input(further, data) == evolve(job, started(1, 1), 2)
    assert values.fold_bytes(kept) == values.fold_bytes(job) == values.fold_bytes(values.without_input(job))


SENT = Completed(**BASE, at=at(9), attempt=1, result=msgspec.Raw(b'"sent"'))
NOTE = Fenced(**BASE, at=at(10), attempt=1, worker="w-0", held_epoch=1, current_epoch=2, outcome="completed")
RESULTS = {
    "inline": SENT,
    "none": msgspec.structs.replace(SENT, result=NO_VALUE),
    "reference": msgspec.structs.replace(
        SENT, result=NO_VALUE, result_ref=PayloadRef(sha256="00" * 32, size_bytes=1)
    ),
    "not UTF-8": msgspec.structs.replace(SENT, result=msgspec.Raw(b'"\xff"')),
}


@pytest.mark.parametrize("end", RESULTS.values(), ids=RESULTS.keys())
@pytest.mark.parametrize("later", [(), (NOTE,)], ids=["end", "later"])
def test_a_row_gives_an_ended_job_back(end: Completed, later: tuple[JobEvent, ...]) -> None:
    job = fold(queued(input=NO_VALUE), started(1, 1), end, *later)
    row = row_of(job)
    kept = values.unfold(values.fold_bytes(job), (job.id, job.queue), row["result"], row["completed_at"])
    assert kept == job
    assert values.fold_bytes(kept) == values.fold_bytes(job)


def test_the_kept_fold_repeats_neither_input_nor_result() -> None:
    assert b"user_id" not in values.fold_bytes(fold(queued()))
    assert b"sent" not in values.fold_bytes(fold(queued(), started(1, 1), SENT))


def test_the_exported_names_are_sorted_and_there() -> None:
    names = jobledger.projections.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert all(hasattr(jobledger.projections, name) for name in names)
