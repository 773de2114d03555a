"""What a gateway answers with, as its clients see it. A newer gateway may say more: what is not known here is left out."""

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
    created: bool  #: False: the queue had the id already
    sequence: int  #: stream sequence of its first event
    trace_id: str = ""


class MadeJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a rule of a route made."""

    rule: str
    queue: str
    job: str  #: its id


class EmitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of data that was emitted to a route."""

    route: str
    delivery: str
    jobs: tuple[MadeJob, ...]  #: of a repeat those that were made the first time
    repeated: bool  #: whether the route had a delivery of that id already
    sequence: int  #: stream sequence of the event that says so; 0 of a repeat


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `enqueue_many` did."""

    created: int
    existing: int  #: ids that were in the queue already
    last_sequence: int  #: highest stream sequence among the created; 0 when none was


class BatchCount(msgspec.Struct, frozen=True, kw_only=True):
    """What the client reads of a batch that it opened."""

    count: int | None  #: how many jobs it has; None: it is open


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line that a task logged."""

    at: datetime  #: by the worker's clock
    level: str  #: in lower case: "info"
    logger: str
    text: str
    job: str
    attempt: int
    number: int  #: in its attempt, from 1; those before the first one that is kept were cut
    step: str = ""  #: of a run; "" outside of its steps
    trace: str = ""  #: trace id of the job


class JobLogs(msgspec.Struct, frozen=True, kw_only=True):
    """What the attempts of a job logged, the oldest line first."""

    items: list[LogLine]
    cut: dict[int, int] = {}  #: attempt -> how many older lines of it were not kept
    ended: bool = False  #: whether nothing is added to the newest of these logs any more


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt failed."""

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
        """Whether nothing more happens to the job by itself."""
        return self.status in FINAL_STATES


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A stored event."""

    sequence: int  #: its stream sequence
    type: str
    fields: dict[
        str, Any
    ]  #: as they are stored, with `stored_at`; without values where the key may not see them
