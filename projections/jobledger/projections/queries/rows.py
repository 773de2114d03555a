"""The rows of a projection as they are read: frozen Structs ready for JSON, and how they come of columns."""

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
    error: str | None  #: message of the newest failure or of the dead letter
    error_type: str | None
    created_at: str
    updated_at: str
    due_at: str | None  #: when a waiting job moves on by itself
    started_at: str | None  #: of the first attempt
    completed_at: str | None  #: when the present final state was entered
    attempt_count: int
    max_attempts: int
    retry_count: int  #: attempts after the first, without those given back
    max_retries: int
    dead_reason: str | None
    cancel_requested: bool
    worker: str | None  #: of the running attempt
    progress_done: float | None
    progress_total: float | None
    progress_note: str | None
    timeout_s: float | None
    batch: str
    tick: str
    created_by: str  #: who asked for it; "": that is not known
    trace_id: str
    last_sequence: int
    parent_queue: Annotated[str | None, PARENT]  #: of the child of a run; None: it is nobody's child
    parent_id: Annotated[str | None, PARENT]
    parent_step: Annotated[str | None, PARENT]  #: key of the step that asked for it
    parent_item: int | None
    version: str | None  #: of the workflow's code that a run is bound to
    awaiting: str | None  #: what a run waits for


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
    duration_ms: float | None  #: by the clocks of those who appended both ends; None while running
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
    fingerprint: str  #: equal for what is most likely one cause
    pattern: str  #: the message without what differs from job to job
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
    pattern: str  #: the message without what differs from job to job
    newest: str
    oldest: str


class ChosenJob(NamedTuple):
    """One job in a list of those that an act is about."""

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
