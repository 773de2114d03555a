"""One job for a reader: its facts, attempts and events, with its large values fetched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from jobledger.admin.events.lines import without_values
from jobledger.audit.export.payloads import PayloadFiles
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.attempts import Attempt, Progress
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import ErasedError, KeyUnavailableError, PayloadMissingError, PayloadState
from jobledger.ledger.model.events import ErrorInfo, Held, PayloadRef, Queued, RerunOf, Scheduled
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.rights.marks import NOTHING, OTHER_JOB, PAYLOAD, VALUES, Hidden, hide
from jobledger.ledger.model.same_fields import copied
from jobledger.ledger.nats.payloads import Payloads
from jobledger.ledger.opened_jobs import opened_history, opened_job
from jobledger.ledger.options import JobHead
from jobledger.ledger.timers import deadline_at


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job."""

    attempt: int  #: from 1
    status: str
    worker: str
    started_at: datetime
    finished_at: datetime | None
    error: ErrorInfo | None


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """A large input or result that is gone, or is not as it was when the event was stored."""

    sha256: str  #: digest of its JSON text, as the event says
    size_bytes: int
    state: PayloadState  #: `gone` or `differs`

    def text(self) -> str:
        """Return it for a person."""
        is_what = "differs from what was stored" if self.state == "differs" else "gone"
        return f"{is_what}: {self.size_bytes:,} bytes, sha256 {self.sha256[:12]}..."


class JobDetails(JobHead, frozen=True, kw_only=True):
    """A job with everything that its events tell; times are UTC."""

    input: Annotated[Any, PAYLOAD]  #: decoded; one that is gone or differs is an `Absent`
    result: Annotated[Any, PAYLOAD]
    error: ErrorInfo | None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    due_at: datetime | None
    deadline_at: (
        datetime | None
    )  #: when the run is cancelled if it has not ended; None: never, or it has ended
    max_attempts: int
    timeout_s: float | None
    dead_reason: str | None
    cancel_requested: bool
    cancel_reason: str | None
    progress: Progress | None
    last_sequence: int  #: stream sequence of its newest event
    trace: str  #: a W3C traceparent, of the enqueuer or of the job's own
    created_by: str  #: who appended its first event; "": an archive has it, and jobs did not keep it then
    made_by: Annotated[
        str | None, OTHER_JOB
    ]  #: the job whose code made it; None: none did, or an archive has its beginning
    rerun_of: RerunOf | None  #: the run whose first steps it copied
    attempts: list[AttemptView]
    events: list[dict[str, Any]]  #: events as they are stored, without inputs, results and checkpoints


D = TypeVar("D", bound=JobDetails)


async def job_details(
    ledger: Ledger,
    job: Job,
    history: Iterable[StoredEvent],
    archived: PayloadFiles | None = None,
    *,
    hidden: Hidden = NOTHING,
) -> JobDetails:
    """Return the job with its events, without their hidden fields.

    Inputs and results are fetched from the object store, or from the archive if they are gone there.

    Raises: UnreachableError.
    """
    return await details_as(JobDetails, ledger, job, history, archived, hidden=hidden)


async def details_as(
    kind: type[D],
    ledger: Ledger,
    job: Job,
    history: Iterable[StoredEvent],
    archived: PayloadFiles | None = None,
    *,
    hidden: Hidden = NOTHING,
    **more: Any,
) -> D:
    """Return the details as a structure that has `more` fields."""
    events = list(history)
    if not VALUES.marks & hidden.marks:
        job, events = await opened_job(ledger.keys, job), await opened_history(ledger.keys, events)
    results = ledger.results if job.order.member is None else ledger.inputs
    return copied(
        kind,
        job.order,
        id=job.id,
        queue=job.queue,
        task=job.task,
        status=job.state.value,
        input=await _value(ledger.inputs, job.order.input, job.order.input_ref, archived, key=job.order.key),
        result=await _value(results, job.result, job.result_ref, archived, key=job.order.key),
        error=job.error,
        created_at=job.created_at,
        updated_at=job.updated_at,
        completed_at=job.finished_at,
        due_at=job.due_at,
        deadline_at=deadline_at(job),
        dead_reason=job.dead_reason,
        cancel_requested=job.cancel_requested,
        cancel_reason=job.cancel_reason or None,
        progress=job.progress,
        last_sequence=job.last_sequence,
        trace=job.trace,
        created_by=job.created_by,
        made_by=_maker(events),
        attempts=attempt_views(job),
        events=[event_fields(stored, hidden) for stored in events],
        **more,
    )


def _maker(events: Sequence[StoredEvent]) -> str | None:
    first = events[0].event if events else None
    return first.causation or None if isinstance(first, Scheduled | Held | Queued) else None


async def _value(
    store: Payloads, value: msgspec.Raw, ref: PayloadRef | None, archived: PayloadFiles | None, *, key: str
) -> Any:
    """Return a value; an `Absent` if neither the object store nor the archive has it as it was."""
    if value is NO_VALUE and ref is None:
        return None
    try:
        return msgspec.json.decode(await store.get(value, ref, key=key))
    except ErasedError as error:
        return {"erased": error.key}
    except KeyUnavailableError:
        return {"sealed": key}
    except PayloadMissingError as error:
        assert ref is not None, "only a referenced value can be missing"
        state = error.state
    with contextlib.suppress(PayloadMissingError):
        if archived is not None:
            return msgspec.json.decode(await archived.get(value, ref))
    return Absent(sha256=ref.sha256, size_bytes=ref.size_bytes, state=state)


def event_fields(stored: StoredEvent, hidden: Hidden = NOTHING) -> dict[str, Any]:
    """Return an event with its stored fields, but without values: those of the job stand beside it.

    If something is hidden, or the job has an owner, whose texts may have been opened here, fields that only a newer
    version knows are left out.
    """
    is_as_stored = hidden is NOTHING and not stored.event.key
    data = stored.data if is_as_stored else msgspec.json.encode(hide(stored.event, hidden, by_default=True))
    fields: dict[str, Any] = without_values(msgspec.json.decode(data))
    return {"stream_sequence": stored.stream_sequence, "stored_at": stored.stored_at, **fields}


def attempt_views(job: Job) -> list[AttemptView]:
    """Return the attempts of a job, the first one first."""
    return [_attempt(attempt) for attempt in job.attempts]


def _attempt(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt=attempt.number,
        status=attempt.state,
        worker=attempt.worker,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        error=attempt.error,
    )
