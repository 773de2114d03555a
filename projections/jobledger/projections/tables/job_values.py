"""The values of a folded job's rows. Pure: equal jobs give equal rows, byte for byte.

Times become ISO-8601 text in UTC with all six digits of microseconds, so that text order is time order.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from jobledger.ledger.model.attempts import Attempt
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import ErrorInfo, Order, PayloadRef
from jobledger.ledger.model.fingerprint import job_fingerprint, job_pattern
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.wait_words import all_awaited
from jobledger.ledger.model.times import as_utc, time_text
from jobledger.ledger.model.trace import trace_id
from jobledger.projections.table import Row
from jobledger.projections.tables.job_schema import NULL_NUMBER, NULL_TEXT, read_order
from jobledger.projections.tables.steps import lean_steps

_MILLISECOND: Final = timedelta(milliseconds=1)
_RUNNING: Final = JobState.RUNNING
_NO_PROGRESS: Final = (NULL_NUMBER, NULL_NUMBER, NULL_TEXT)
_replace: Final = msgspec.structs.replace
_encode: Final = msgspec.json.Encoder().encode
_decoder: Final[msgspec.json.Decoder[Job]] = msgspec.json.Decoder(Job)


def without_input(job: Job) -> Job:
    """Return the job as it is kept between events, without its input, which the column `data` holds.

    `evolve` does not read the input, so the rest of the job is the same without it. The input is kept if the column
    cannot return it: beside a reference, or if it is not UTF-8. Steps of a run lose their results and the inputs of
    their children.
    """
    order, steps = _lean_order(job), lean_steps(job.steps) if job.steps else job.steps
    if order is job.order and steps is job.steps:
        return job
    return _replace(job, order=order, steps=steps)


def _lean_order(job: Job) -> Order:
    order = job.order
    if order.input is NO_VALUE or order.input_ref is not None or not _is_text(order.input):
        return order
    return _replace(order, input=NO_VALUE)


def fold_bytes(job: Job) -> bytes:
    """Return the column `fold`: the job without its input, id, queue and result, which other columns hold.

    Its end is left out, too, if it is the time of its newest event, as for nearly all jobs.
    """
    kept, end = job.result, job.finished_at
    if end is job.updated_at:
        end = None
    if kept is not NO_VALUE and job.result_ref is None and _is_text(kept):
        kept = NO_VALUE
    steps = lean_steps(job.steps) if job.steps else job.steps
    order = _lean_order(job)
    return _encode(_replace(job, id="", queue="", order=order, steps=steps, result=kept, finished_at=end))


def unfold(fold: bytes, key: tuple[str, str], result: str | None, completed_at: str | None) -> Job:
    """Return the job in a column `fold`, given its id and queue, and these columns; `data` holds its input."""
    job = _decoder.decode(fold)
    kept, end = job.result, job.finished_at
    if end is None and completed_at is not None:
        end = job.updated_at
    if result is not None and job.result_ref is None and kept is NO_VALUE:
        kept = msgspec.Raw(result.encode())
    return _replace(job, id=key[0], queue=key[1], result=kept, finished_at=end)


def with_input(job: Job, data: str | None) -> Job:
    """Return a job from a column `fold` as `evolve` made it, given its column `data`; its steps have no values."""
    if data is None or job.order.input_ref is not None or job.order.input is not NO_VALUE:
        return job
    return _replace(job, order=_replace(job.order, input=msgspec.Raw(data.encode())))


def data_text(job: Job) -> str | int:
    """Return the column `data`: the input's JSON text, or a reference to it; `NULL_TEXT` without any."""
    return _value_text(job.order.input, job.order.input_ref)


def job_changing(job: Job, fold: bytes, since_us: int) -> Row:
    """Return the values of the columns that change, with the stand-ins for NULL; `since_us` as in `SeenJob`."""
    attempts, progress, error = job.attempts, job.progress, job.error
    updated_at = time_text(job.updated_at)
    return (
        str(job.state),
        job.order.priority,
        _value_text(job.result, job.result_ref),
        error.message if error is not None else NULL_TEXT,
        error.type if error is not None else NULL_TEXT,
        updated_at,
        _optional_time_text(job.due_at),
        time_text(attempts[0].started_at) if attempts else NULL_TEXT,
        updated_at if job.finished_at is job.updated_at else _optional_time_text(job.finished_at),
        job.attempts_count,
        job.order.max_attempts,
        max(0, job.attempts_count - job.attempts_given_back - 1),
        job.order.max_attempts - 1,
        job.dead_reason or NULL_TEXT,
        int(job.cancel_requested),
        attempts[-1].worker if attempts and job.state is _RUNNING else NULL_TEXT,
        *(_NO_PROGRESS if progress is None else (progress.done, _number(progress.total), progress.note)),
        NULL_NUMBER if job.order.timeout_s is None else job.order.timeout_s,
        job.last_sequence,
        bytearray(fold),
        since_us,
    )


def job_fixed(job: Job, first_us: int) -> Row:
    """Return the values of the columns that stay; `first_us` as in `SeenJob`."""
    return (
        job.task,
        time_text(job.created_at),
        *read_order(job.order),
        _encode(job.order.metadata).decode() if job.order.metadata else "{}",
        " ".join(job.order.limits),
        job.created_by,
        trace_id(job.trace),
        data_text(job),
        first_us,
    )


def _waits(job: Job) -> bool:
    """Return whether the job waits for a step, or for a person."""
    return bool(job.awaited) or job.state is JobState.PAUSED


def job_of_run(job: Job, before: Job | None) -> Row | None:
    """Return the values of the columns that only runs and their children have; None if they do not change."""
    is_new = before is None and (job.order.member is not None or job.order.version)
    if not (is_new or _waits(job) or (before is not None and _waits(before))):
        return None
    member, by_operator = job.order.member, job.state is JobState.PAUSED
    awaiting = " ".join(all_awaited(job.steps, job.awaited, by_operator=by_operator))
    of = (None,) * 4 if member is None else (member.queue, member.job, member.step, member.item)
    return *of, job.order.version or None, awaiting or None


def attempt_rows(job: Job, before: Job | None) -> list[Row]:
    """Return the rows of the attempts that are new or changed since `before`."""
    known: Sequence[Attempt] = ()
    if before is not None:
        known = before.attempts[job.attempts_dropped - before.attempts_dropped :]
    first = 0
    # Unchanged attempts are the same objects, since `evolve` passes them on.
    while first < min(len(known), len(job.attempts)) and known[first] is job.attempts[first]:
        first += 1
    return [
        _attempt_row(job, attempt, place)
        for place, attempt in enumerate(job.attempts[first:], start=job.attempts_dropped + first + 1)
    ]


def _attempt_row(job: Job, attempt: Attempt, place: int) -> Row:
    error: ErrorInfo | None = attempt.error
    finished_at = attempt.finished_at
    return (
        f"{job.queue}/{job.id}/{place}",
        job.queue,
        job.id,
        attempt.number,
        attempt.worker,
        attempt.epoch,
        time_text(attempt.started_at),
        attempt.state,
        _optional_time_text(finished_at),
        NULL_NUMBER
        if finished_at is None
        else (as_utc(finished_at) - as_utc(attempt.started_at)) / _MILLISECOND,
        error.message if error is not None else NULL_TEXT,
        error.type if error is not None else NULL_TEXT,
    )


def dead_letter_row(job: Job) -> Row:
    """Return the row of a dead letter."""
    error = job.error
    return (
        job.queue,
        job.id,
        job.task,
        job.order.tenant,
        job.dead_reason,
        error.type if error is not None else None,
        error.message if error is not None else None,
        error.traceback if error is not None else None,
        job_fingerprint(job),
        job_pattern(job),
        job.attempts_count,
        None if job.finished_at is None else time_text(job.finished_at),
        job.last_sequence,
    )


def _optional_time_text(at: datetime | None) -> str | int:
    return NULL_TEXT if at is None else time_text(at)


def _number(value: float | None) -> float | str:
    return NULL_NUMBER if value is None else value


def _value_text(value: msgspec.Raw, ref: PayloadRef | None) -> str | int:
    if ref is not None:
        return _encode(ref).decode()
    return NULL_TEXT if value is NO_VALUE else bytes(value).decode(errors="replace")


def _is_text(value: msgspec.Raw) -> bool:
    try:
        bytes(value).decode()
    except UnicodeDecodeError:
        return False
    return True
