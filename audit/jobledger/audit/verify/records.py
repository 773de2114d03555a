"""The little that is kept of a job while a whole ledger is checked, and how it is written when it is put aside."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, cast, get_args

import msgspec

from jobledger.audit.verify.book import Form
from jobledger.ledger.model.job import Attempt, AttemptState, Job, JobState


class Open(msgspec.Struct, gc=False):
    """A job that may go on."""

    digest: bytes  #: sha256 of its newest event
    job: Job | None  #: None when its chain began before the range that is checked
    age: int  #: stream sequence of its newest event


#: Of a closed job, the bytes that `ClosedJobs` packed.
Record = Open | bytes

_HEAD: Final = struct.Struct("<32sQIB")  # digest, last sequence, number of the task, state
_ATTEMPT: Final = struct.Struct("<QB")  # epoch, state
_STATES: Final = tuple(JobState)
_STATE_CODES: Final = {state: code for code, state in enumerate(_STATES)}
_ATTEMPT_STATES: Final[tuple[AttemptState, ...]] = get_args(AttemptState)
_ATTEMPT_CODES: Final = {state: code for code, state in enumerate(_ATTEMPT_STATES)}
_UNKNOWN_TIME: Final = datetime.min.replace(tzinfo=UTC)

#: Measured with `benchmarks/audit.py`; without the names, which the book counts.
OPEN_BYTES: Final = 640
ATTEMPT_BYTES: Final = 260
_BYTES_OBJECT: Final = 33


class ClosedJobs:
    """Writes jobs that are over as a few bytes, and reads them back as far as `fenced` and its rules need them."""

    def __init__(self) -> None:
        self._tasks: list[str] = []
        self._task_codes: dict[str, int] = {}

    def pack(self, job: Job, digest: bytes) -> bytes:
        """Return what is kept of a closed job."""
        task = self._task_codes.get(job.task)
        if task is None:
            task = self._task_codes[job.task] = len(self._tasks)
            self._tasks.append(job.task)
        head = _HEAD.pack(digest, job.last_sequence, task, _STATE_CODES[job.state])
        attempts = [_ATTEMPT.pack(each.epoch, _ATTEMPT_CODES[each.state]) for each in job.attempts]
        return b"".join((head, *attempts))

    def unpack(self, packed: bytes, queue: str, job_id: str) -> Open:
        """Return the job again, without what no rule looks at once it is closed."""
        digest, last_sequence, task, state = _head_of(packed)
        attempts = tuple(
            Attempt(
                number=number,
                worker="",
                epoch=epoch,
                started_at=_UNKNOWN_TIME,
                state=_ATTEMPT_STATES[attempt_state],
            )
            for number, (epoch, attempt_state) in enumerate(_attempts_of(packed), 1)
        )
        job = Job(
            id=job_id,
            queue=queue,
            task=self._tasks[task],
            state=_STATES[state],
            created_at=_UNKNOWN_TIME,
            updated_at=_UNKNOWN_TIME,
            last_sequence=last_sequence,
            attempts=attempts,
        )
        return Open(digest, job, last_sequence)


def _head_of(packed: bytes) -> tuple[bytes, int, int, int]:
    return cast("tuple[bytes, int, int, int]", _HEAD.unpack_from(packed))


def _attempts_of(packed: bytes) -> Iterator[tuple[int, int]]:
    return cast("Iterator[tuple[int, int]]", _ATTEMPT.iter_unpack(packed[_HEAD.size :]))


def glance(record: Record) -> tuple[JobState | None, int]:
    """Return a record's state (None when unknown) and the job's last stream sequence."""
    if isinstance(record, bytes):
        _, last_sequence, _, state = _head_of(record)
        return _STATES[state], last_sequence
    return (None if record.job is None else record.job.state), record.age


_encode: Final = msgspec.json.Encoder().encode  # JSON, because it keeps the zone of a time as it was written
_decoder: Final[msgspec.json.Decoder[Open]] = msgspec.json.Decoder(Open)


def _weigh(record: Record) -> int:
    if isinstance(record, bytes):
        return _BYTES_OBJECT + len(record)
    return OPEN_BYTES + ATTEMPT_BYTES * (len(record.job.attempts) if record.job is not None else 0)


def _age(record: Record) -> int:
    return 0 if isinstance(record, bytes) else record.age  # hardly anything follows on a closed job


def _is_live(record: Record) -> bool:
    return not isinstance(record, bytes)


def _write(record: Record) -> bytes:
    return record if isinstance(record, bytes) else _encode(record)


def _read(is_live: bool, data: bytes) -> Record:  # noqa: FBT001 - the shape that the book calls
    return _decoder.decode(data) if is_live else data


JOB_RECORDS: Final[Form[Record]] = Form(weigh=_weigh, age=_age, is_live=_is_live, write=_write, read=_read)
