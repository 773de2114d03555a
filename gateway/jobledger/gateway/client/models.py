"""The answers of a gateway as Structs for its clients. Fields that only a newer gateway sends are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from jobledger.ledger.options import JobHead

FINAL_STATES = frozenset({"completed", "cancelled", "discarded", "dead_lettered"})


class EnqueueAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an enqueue."""

    id: str
    queue: str
    created: bool  #: False: the id existed in the queue
    sequence: int  #: stream sequence of its first event
    trace_id: str = ""


class MadeJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a rule of a route made."""

    rule: str
    queue: str
    job: str  #: its id


class EmitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of data that was emitted to a route."""

    route: str
    delivery: str
    jobs: tuple[MadeJob, ...]  #: the jobs that it made; for a repeat, those that were made the first time
    repeated: bool  #: whether the route had a delivery of that id already
    sequence: int  #: stream sequence of the delivery's event; 0 for a repeat


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of an `enqueue_many`."""

    created: int
    existing: int  #: jobs whose ids existed in the queue
    last_sequence: int  #: highest stream sequence of the jobs created; 0 if none was


class BatchCount(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a batch that the client reads."""

    count: int | None  #: how many jobs it has; None: it is open


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line that a task logged."""

    at: datetime  #: by the worker's clock
    level: str  #: in lower case: "info"
    logger: str
    text: str
    job: str
    attempt: int
    number: int  #: its number in the attempt, from 1; older lines than the first one kept were cut
    step: str = ""  #: key of a run's step; "" outside of steps
    trace: str = ""  #: trace id of the job


class JobLogs(msgspec.Struct, frozen=True, kw_only=True):
    """The log lines of a job's attempts, the oldest first."""

    items: list[LogLine]
    cut: dict[int, int] = {}  #: attempt -> number of its older lines that were not kept
    ended: bool = False  #: True once the newest of these logs gets no more lines


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of an attempt."""

    type: str
    message: str
    traceback: str = ""


class JobAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job."""

    attempt: int  #: from 1
    status: str
    worker: str
    started_at: datetime
    finished_at: datetime | None = None
    error: JobError | None = None


class JobSnapshot(JobHead, frozen=True, kw_only=True):
    """A job as its events say it is; times are UTC."""

    tenant: str = ""
    limits: tuple[str, ...] = ()
    correlation: str = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    input: Any = None
    result: Any = None
    error: JobError | None = None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None = None
    due_at: datetime | None = None
    max_attempts: int = 1
    cancel_requested: bool = False
    last_sequence: int  #: stream sequence of its newest event
    trace: str = ""
    attempts: list[JobAttempt] = msgspec.field(default_factory=list[JobAttempt])

    @property
    def is_final(self) -> bool:
        """Whether the job has ended, and changes no more by itself."""
        return self.status in FINAL_STATES


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A stored event."""

    sequence: int  #: its stream sequence
    type: str
    fields: dict[str, Any]  #: as stored, with `stored_at`; without values that the key may not see
