"""The little that is kept of a job while a whole ledger is checked, and how it is written when it is put aside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from jobledger.audit.verify.store import Form
from jobledger.ledger.model.attempts import Attempt, AttemptState
from jobledger.ledger.model.events import Carried, JobEvent
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.runs.steps import NO_STEPS, Step, Steps


class Open(msgspec.Struct, gc=False):
    """A job that may go on."""

    digest: bytes  #: sha256 of its newest event
    job: Job | None  #: None when its chain began before the range that is checked
    age: int  #: stream sequence of its newest event


#: Of a closed job, the bytes that `pack` returned.
Record = Open | bytes


class _ClosedJob(msgspec.Struct, array_like=True, gc=False):
    """The part of a closed job that `fenced` and its rules read."""

    digest: bytes
    last_sequence: int
    task: str
    state: JobState
    attempts: list[tuple[int, AttemptState]]  #: epoch and state


_UNKNOWN_TIME: Final = datetime.min.replace(tzinfo=UTC)
_pack: Final = msgspec.msgpack.Encoder().encode
_closed: Final[msgspec.msgpack.Decoder[_ClosedJob]] = msgspec.msgpack.Decoder(_ClosedJob)
_encode: Final = msgspec.json.Encoder().encode  # JSON, because it keeps the zone of a time as it was written
_open: Final[msgspec.json.Decoder[Open]] = msgspec.json.Decoder(Open)

#: Bytes in memory, measured with `benchmarks/audit.py`, without the names, which the store counts.
OPEN_BYTES: Final = 640
ATTEMPT_BYTES: Final = 260
STEP_BYTES: Final = 480
SIGNAL_BYTES: Final = 260
_NODE_BYTES: Final = 400  # for the task of one node of a graph
_EDGES_BYTES: Final = 96
_BYTES_OBJECT: Final = 33


def pack(job: Job, digest: bytes) -> bytes:
    """Return what is kept of a closed job."""
    attempts: list[tuple[int, AttemptState]] = [(each.epoch, each.state) for each in job.attempts]
    return _pack(_ClosedJob(digest, job.last_sequence, job.task, job.state, attempts))


def unpack(packed: bytes, queue: str, job_id: str) -> tuple[Job, bytes]:
    """Return a closed job again, with only what rules still read of it, and its newest event's hash."""
    found = _closed.decode(packed)
    attempts = tuple(
        Attempt(number=number, worker="", epoch=epoch, started_at=_UNKNOWN_TIME, state=state)
        for number, (epoch, state) in enumerate(found.attempts, 1)
    )
    job = Job(
        id=job_id,
        queue=queue,
        task=found.task,
        state=found.state,
        created_at=_UNKNOWN_TIME,
        updated_at=_UNKNOWN_TIME,
        last_sequence=found.last_sequence,
        attempts=attempts,
    )
    return job, found.digest


def last_sequence(record: Record) -> int:
    """Return the stream sequence of a job's newest event."""
    return _closed.decode(record).last_sequence if isinstance(record, bytes) else record.age


def task_of(record: Record) -> str:
    """Return the name of a job's task, "" if its chain began before what is checked."""
    if isinstance(record, bytes):
        return _closed.decode(record).task
    return "" if record.job is None else record.job.task


def step_bytes(step: Step | None) -> int:
    """Return how much memory a step of a run takes, about."""
    if step is None:
        return 0
    sets = len(step.opened_set) + len(step.ended_set) + len(step.failed_set)
    order = 0
    if step.order is not None:
        order = _NODE_BYTES * (1 + len(step.order.nodes)) + _EDGES_BYTES * len(step.order.after)
    return STEP_BYTES + len(step.key) + sets + order


def _steps_bytes(steps: Steps) -> int:
    return sum(map(step_bytes, steps.values())) if steps else 0


def grown(before: Job | None, after: Job, event: JobEvent) -> int:
    """Return by how many bytes the record of an open job grew with an event."""
    attempts, signals, steps = (0, 0, NO_STEPS) if before is None else _sizes(before)
    size = ATTEMPT_BYTES * (len(after.attempts) - attempts) + SIGNAL_BYTES * (len(after.signals) - signals)
    if after.steps is steps:
        return size
    if before is None or isinstance(event, Carried):
        return size + _steps_bytes(after.steps) - _steps_bytes(steps)
    key: str = getattr(event, "step", "") or getattr(getattr(event, "joined", None), "step", "")
    return size + step_bytes(after.steps.get(key)) - step_bytes(steps.get(key))


def _sizes(job: Job) -> tuple[int, int, Steps]:
    return len(job.attempts), len(job.signals), job.steps


def _weigh(record: Record) -> int:
    if isinstance(record, bytes):
        return _BYTES_OBJECT + len(record)
    attempts, signals, steps = (0, 0, NO_STEPS) if record.job is None else _sizes(record.job)
    return OPEN_BYTES + ATTEMPT_BYTES * attempts + SIGNAL_BYTES * signals + _steps_bytes(steps)


JOB_RECORDS: Final[Form[Record]] = Form(
    weigh=_weigh,
    is_live=lambda record: not isinstance(record, bytes),
    encode=lambda record: record if isinstance(record, bytes) else _encode(record),
    decode=lambda is_live, data: _open.decode(data) if is_live else data,
)
