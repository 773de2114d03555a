"""The rows of a projection as frozen Structs ready for JSON, and their making from columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from jobledger.ledger.model.rights.marks import PARENT
from jobledger.ledger.options import JobHead
from jobledger.projections.tables.acts import ActRow

_Row = TypeVar("_Row", bound=msgspec.Struct)


class JobRow(JobHead, frozen=True, kw_only=True):
    """One job. Times are ISO-8601 text in UTC; `input` and `result` are JSON, or a reference to the object store."""

    input: msgspec.Raw | None
    result: msgspec.Raw | None
    error: str | None  #: message of the newest failure, or of the dead letter
    error_type: str | None
    created_at: str
    updated_at: str
    due_at: str | None  #: when a waiting job moves on by itself
    started_at: str | None  #: start of the first attempt
    completed_at: str | None  #: when the present final state was entered
    attempt_count: int
    max_attempts: int
    retry_count: int  #: attempts after the first, without attempts that were given back
    max_retries: int
    dead_reason: str | None
    cancel_requested: bool
    worker: str | None  #: worker of the running attempt
    progress_done: float | None
    progress_total: float | None
    progress_note: str | None
    timeout_s: float | None
    batch: str
    tick: str
    created_by: str  #: principal who enqueued it; "": not known
    trace_id: str
    last_sequence: int
    parent_queue: Annotated[str | None, PARENT]  #: queue of the run whose child it is; None: it is no child
    parent_id: Annotated[str | None, PARENT]
    parent_step: Annotated[str | None, PARENT]  #: key of the step that began it
    parent_item: int | None
    version: str | None  #: version of the workflow's code that a run is bound to
    awaiting: str | None  #: reason of a run's wait


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job."""

    id: str  #: `<queue>/<job id>/<attempt>`
    queue: str
    job_id: str
    attempt_number: int  #: from 1
    status: str
    error: str | None
    error_type: str | None
    started_at: str
    finished_at: str | None
    duration_ms: float | None  #: by the clocks that timed its two ends; None while running
    worker: str
    epoch: int


class DeadLetterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits for a person."""

    queue: str
    job_id: str
    task: str
    reason: str
    error_type: str | None
    error: str | None
    traceback: str | None
    fingerprint: str  #: equal for dead letters that most likely have one cause
    pattern: str  #: message without the parts that differ from job to job
    attempts: int
    dead_at: str
    last_sequence: int


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that share a fingerprint, with the newest of them as the example."""

    fingerprint: str
    count: int
    task: str
    reason: str
    error_type: str | None
    error: str | None
    queue: str
    job_id: str
    pattern: str  #: message without the parts that differ from job to job
    newest: str
    oldest: str


class ChosenJob(NamedTuple):
    """One job in the list of an act's jobs."""

    queue: str
    job_id: str
    task: str
    status: str


class SlowAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A finished attempt, in the list of the longest ones."""

    queue: str
    job_id: str
    task: str
    attempt_number: int
    status: str
    worker: str
    started_at: str
    duration_ms: float
    input: msgspec.Raw | None


def _columns(row: type[msgspec.Struct]) -> str:
    return ", ".join("data" if name == "input" else name for name in row.__struct_fields__)


JOB_COLUMNS: Final = _columns(JobRow)
ATTEMPT_COLUMNS: Final = _columns(AttemptRow)
DEAD_LETTER_COLUMNS: Final = _columns(DeadLetterRow)
ACT_COLUMNS: Final = _columns(ActRow)


def struct(kind: type[_Row], row: Sequence[Any]) -> _Row:
    """Return a row whose columns are the fields of `kind`, in their order."""
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))


def job_row(row: Sequence[Any]) -> JobRow:
    """Return a row of `JOB_COLUMNS`."""
    values = dict(zip(JobRow.__struct_fields__, row, strict=True))
    values["input"], values["result"] = raw(values["input"]), raw(values["result"])
    values["cancel_requested"] = bool(values["cancel_requested"])
    values["metadata"] = msgspec.json.decode(values["metadata"], type=dict[str, str])
    values["limits"] = tuple(values["limits"].split())
    return JobRow(**values)


def act_row(row: Sequence[Any]) -> ActRow:
    """Return a row of `ACT_COLUMNS`."""
    return struct(ActRow, (*row[:-1], bool(row[-1])))


def raw(text: str | None) -> msgspec.Raw | None:
    """Return a column of JSON text."""
    return None if text is None else msgspec.Raw(text.encode())
