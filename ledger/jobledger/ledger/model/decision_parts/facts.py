"""What decisions on jobs have in common: the envelope, the way into the queue, the way to an end, refusals. Pure."""

from __future__ import annotations

from typing import Any, Final

from jobledger.ledger.model.commands import Stamp
from jobledger.ledger.model.envelope import VERSION_SEALED
from jobledger.ledger.model.errors import IllegalTransitionError, StaleClaimError
from jobledger.ledger.model.events import (
    Cancelled,
    Cause,
    DeadLettered,
    DeadReason,
    ErrorInfo,
    ErrorKind,
    Held,
    JobEvent,
    Queued,
)
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.lifecycle import PAST_ITS_LIMITS
from jobledger.ledger.model.runs.steps import open_children

Events = tuple[JobEvent, ...]

#: A run with such an error goes on from its steps once a person has mended the cause.
MENDABLE: Final = frozenset[ErrorKind]({"diverged", "in_doubt"})

#: Looked up once: enum member access goes through the metaclass, which is slow, and every event asks.
_RUNNING = JobState.RUNNING


def envelope(job: Job, stamp: Stamp) -> dict[str, Any]:
    """Return the fields that every event of a job has."""
    return {
        "v": VERSION_SEALED
        if job.order.key
        else 1,  # given here, because a default factory costs a call per event
        "key": job.order.key,
        "prev": "",
        "job": job.id,
        "queue": job.queue,
        "task": job.task,
        "at": stamp.at,
        "by": stamp.by,
        "trace": stamp.trace or job.order.trace,
        "correlation": stamp.correlation or job.order.correlation,
        "causation": stamp.causation,
    }


def ending(job: Job, stamp: Stamp) -> dict[str, Any]:
    """Return the fields of every event that ends a job: its envelope, and those for its parent and its children."""
    return {**envelope(job, stamp), **of_family(job)}


def cancelled(job: Job, stamp: Stamp, reason: str) -> Cancelled:
    """End a job by request."""
    return Cancelled(**ending(job, stamp), reason=reason, calls_back=_is_told(job))


def dead_lettered(job: Job, stamp: Stamp, reason: DeadReason, error: ErrorInfo | None) -> DeadLettered:
    """Give a job up. If it is a run that can go on once a person has mended the cause, its parent is not told."""
    told = _is_told(job) and reason != "diverged" and (error is None or error.kind not in MENDABLE)
    return DeadLettered(**ending(job, stamp), reason=reason, error=error, calls_back=told)


def _is_told(job: Job) -> bool:
    return any(each.on == "fail" for each in job.order.on_end)


def of_family(job: Job) -> dict[str, Any]:
    """Return the fields with which the end of a job tells its parent, and names its open children."""
    return {"member": job.order.member, "open_children": open_children(job.steps)}


def ready(job: Job, stamp: Stamp, cause: Cause, **changes: Any) -> Queued | Held:
    """Make an existing job ready: `held` if it has limits that did not admit it yet, else `queued`.

    This is the only way into both states, so that nothing bypasses a limit. The event repeats only changed parts of
    the order.
    """
    order = job.order
    fields: dict[str, Any] = {
        **envelope(job, stamp),
        "cause": cause,
        "attempt": job.attempts_count + 1,
        "priority": order.priority,
        "max_attempts": order.max_attempts,
        "timeout_s": order.timeout_s,
    } | changes
    if order.limits and cause not in PAST_ITS_LIMITS:
        return Held(**fields, limits=order.limits, fair=order.fair)
    return Queued(**fields)


def require(job: Job, what: str, *states: JobState) -> None:
    """Refuse a command if the job is in none of these states.

    Raises: IllegalTransitionError.
    """
    if job.state not in states:
        raise IllegalTransitionError(job.id, job.state.value, what)


def check_epoch(job: Job, epoch: int) -> None:
    """Refuse any claim but the newest.

    Raises: StaleClaimError.
    """
    if job.claim_epoch != epoch:
        raise StaleClaimError(job.id, epoch, job.claim_epoch)


def check_claim(job: Job, epoch: int) -> None:
    """Refuse a caller without the claim.

    Raises: StaleClaimError, IllegalTransitionError.
    """
    check_epoch(job, epoch)
    if job.state is not _RUNNING:  # both epochs may be 0: nobody holds the job
        raise IllegalTransitionError(job.id, job.state.value, "report an outcome")
