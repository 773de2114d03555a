"""`decide`: which facts follow from a command, or which refusal.

Pure and total: for every job and command it returns events or raises one of our refusals; it reads no clock
and does no I/O. Whether the view it was given was the newest is checked later, by the conditional append.
"""

from __future__ import annotations

from typing import Any, Final, assert_never

import msgspec

from jobledger.ledger.model.carried import carried_job
from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Checkpoint,
    Claim,
    ClaimHolderCommand,
    Command,
    Complete,
    ConfirmCancel,
    DeadLetter,
    Discard,
    Dispatch,
    Enqueue,
    Fail,
    Fence,
    Interrupt,
    Outcome,
    Pause,
    PutBack,
    ReportProgress,
    Requeue,
    Reschedule,
    Rescue,
    Snooze,
    Stamp,
    TakeOver,
)
from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    JobExistsError,
    JobNotFoundError,
    StaleClaimError,
)
from jobledger.ledger.model.events import (
    Cancelled,
    CancelRequested,
    Carried,
    Cause,
    Checkpointed,
    Completed,
    DeadLettered,
    Discarded,
    ErrorInfo,
    Failed,
    Fenced,
    Held,
    Interrupted,
    JobEvent,
    Order,
    Paused,
    Progressed,
    Queued,
    Scheduled,
    Snoozed,
    Started,
)
from jobledger.ledger.model.job import CLOSED_STATES, WAITING_STATES, Job, JobState
from jobledger.ledger.model.lifecycle import CAUSES, PAST_ITS_LIMITS

Events = tuple[JobEvent, ...]

#: Looked up once: enum member access goes through the metaclass, which is slow, and every event asks.
_QUEUED = JobState.QUEUED
_RUNNING = JobState.RUNNING
_asdict: Final = msgspec.structs.asdict


def decide(job: Job | None, command: Command, stamp: Stamp) -> Events:
    """Return the events that `command` adds to `job`, to be appended as one; at least one.

    Raises: JobExistsError, JobNotFoundError, IllegalTransitionError, StaleClaimError; nothing else.
    """
    if job is None:
        if isinstance(command, Enqueue):
            return (_first(command, stamp),)
        raise JobNotFoundError("?")
    # What every job asks comes first, for each case that does not fit costs a tenth of a microsecond.
    match command:
        case Claim():
            return _claim(job, command, stamp)
        case Complete():
            return _complete(job, command, stamp)
        case Enqueue():
            raise JobExistsError(job.id)
        case Dispatch():
            return _dispatch(job, command, stamp)
        case PutBack():
            return _put_back(job, command, stamp)
        case Reschedule():
            return (_reschedule(job, command, stamp),)
        case TakeOver():
            return _take_over(job, command, stamp)
        case Rescue():
            _require(job, "be rescued", JobState.RUNNING)
            _check_epoch(job, command.lost_epoch)
            return _end_lost(job, stamp) or (_ready(job, stamp, "redispatched"),)
        case CancelJob():
            return _cancel(job, command, stamp)
        case DeadLetter():
            _require(job, "be given up", JobState.QUEUED, JobState.RUNNING)
            _check_epoch(job, command.epoch)  # a claim made meanwhile deserves its own verdict
            return (DeadLettered(**_envelope(job, stamp), reason=command.reason, error=command.error),)
        case Requeue():
            return _requeue(job, command, stamp)
        case Discard():
            _require(job, "be discarded", JobState.DEAD_LETTERED)
            return (Discarded(**_envelope(job, stamp), reason=command.reason),)
        case Fence():
            return _fence(job, command, stamp)
        case Carry():
            return _carry(job, command, stamp)
        case _:
            return _claimed(job, command, stamp)


def retry_command(job: Job | None, job_id: str, reason: str) -> Dispatch | Requeue:
    """Return the command that makes a waiting job or a dead letter available now, as an operator wishes.

    Raises: JobNotFoundError, IllegalTransitionError for a job that waits for nothing.
    """
    if job is None:
        raise JobNotFoundError(job_id)
    if job.state is JobState.DEAD_LETTERED:
        return Requeue(reason=reason)
    cause = _ENDS_WAIT.get(job.state)
    if cause is None:
        raise IllegalTransitionError(job.id, job.state.value, "be retried")
    # A reason tells a person's wish from a timer that came early.
    return Dispatch(cause=cause, asked_by=job.wait_sequence, reason=reason or "retried by hand")


_ENDS_WAIT: dict[JobState, Cause] = {
    JobState.SCHEDULED: "due",
    JobState.RETRY_WAIT: "retried",
    JobState.PAUSED: "resumed",
}


def outcome_type(outcome: Outcome) -> str:
    """Return the type of the event that an outcome appends first: `completed`, `failed`, ..."""
    return _OUTCOME_TYPES[type(outcome)]


_OUTCOME_TYPES: dict[type[Outcome], str] = {
    Complete: "completed",
    Fail: "failed",
    Interrupt: "interrupted",
    Snooze: "snoozed",
    Pause: "paused",
    ConfirmCancel: "cancelled",
}


def _envelope(job: Job, stamp: Stamp) -> dict[str, Any]:
    return {
        "v": 1,  # given, though they are the defaults: a default factory is a call per event
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


def _require(job: Job, what: str, *states: JobState) -> None:
    if job.state not in states:
        raise IllegalTransitionError(job.id, job.state.value, what)


def _first(command: Enqueue, stamp: Stamp) -> JobEvent:
    order: dict[str, Any] = {
        "v": 1,
        "prev": "",
        "job": command.ref.job_id,
        "queue": command.ref.queue,
        "task": command.task,
        "at": stamp.at,
        "by": stamp.by,
        "causation": stamp.causation,
        **_order_fields(command.order, stamp),
    }
    if command.run_at is not None and command.run_at > stamp.at:
        return Scheduled(**order, run_at=command.run_at)
    return Held(**order) if command.order.limits else Queued(**order)


def _order_fields(order: Order, stamp: Stamp) -> dict[str, Any]:
    fields = _asdict(order)
    fields["trace"] = order.trace or stamp.trace
    fields["correlation"] = order.correlation or stamp.correlation
    return fields


def _ready(job: Job, stamp: Stamp, cause: Cause, **changes: Any) -> Queued | Held:
    """Make a job that exists ready: `queued`, but `held` where it has limits and they did not admit it yet.

    The one way into both states, so that nothing bypasses a limit. The order stays in the chain, only changes are
    written again.
    """
    order = job.order
    fields: dict[str, Any] = {
        **_envelope(job, stamp),
        "cause": cause,
        "attempt": len(job.attempts) + 1,
        "priority": order.priority,
        "max_attempts": order.max_attempts,
        "timeout_s": order.timeout_s,
    } | changes
    if order.limits and cause not in PAST_ITS_LIMITS:
        return Held(**fields, limits=order.limits, fair=order.fair)
    return Queued(**fields)


#: Causes of a dispatch that only follows from another command, in the same batch or as its only event.
_NEVER_ASKED: Final = frozenset[Cause]({"carried", "interrupted", "ungranted"})
#: Bytes of an input that `queued` as admitted has again: more than nearly every one, and little to store twice.
_AGAIN_BYTES_MAX: Final = 4096


def _dispatch(job: Job, command: Dispatch, stamp: Stamp) -> Events:
    _require(job, "be queued", *WAITING_STATES)
    # A late timer or a redispatch must not cut another wait short.
    if command.cause not in CAUSES[job.state] or command.cause in _NEVER_ASKED:
        raise IllegalTransitionError(job.id, job.state.value, f"be queued as {command.cause!r}")
    if command.asked_by is not None and command.asked_by != job.wait_sequence:
        raise IllegalTransitionError(
            job.id, f"waiting since sequence {job.wait_sequence}", f"be queued for {command.asked_by}"
        )
    if (command.cause == "admitted") != bool(command.grant):
        raise IllegalTransitionError(
            job.id, job.state.value, f"be queued as {command.cause!r} by grant {command.grant}"
        )
    changes: dict[str, Any] = {
        "priority": command.priority or job.order.priority,
        "reason": command.reason,
    }
    if command.grant:
        changes |= {**_order_again(job), **changes, "grant": command.grant}
    return (_ready(job, stamp, command.cause, **changes),)


def _order_again(job: Job) -> dict[str, Any]:
    """Return the whole order of a job before its first attempt, if its input is small: a worker then need not read it."""
    order = job.order
    if job.attempts or order.input_ref is not None or len(bytes(order.input)) > _AGAIN_BYTES_MAX:
        return {}
    return _asdict(order)


def _put_back(job: Job, command: PutBack, stamp: Stamp) -> Events:
    _require(job, "be put back behind its limits", JobState.QUEUED)
    if command.asked_by != job.wait_sequence or not job.order.limits:
        raise IllegalTransitionError(
            job.id,
            f"queued since sequence {job.wait_sequence} with {len(job.order.limits)} limits",
            f"be put back for {command.asked_by}",
        )
    return (_ready(job, stamp, "ungranted"),)


def _reschedule(job: Job, command: Reschedule, stamp: Stamp) -> Scheduled:
    """Let a job wait for another moment than the one it waits for; its older timer then names a wait that is over."""
    _require(job, "be rescheduled", JobState.SCHEDULED, JobState.RETRY_WAIT)
    if job.due_at is None:  # between two events of one batch
        raise IllegalTransitionError(job.id, "about to go on", "be rescheduled")
    order = job.order
    return Scheduled(
        **_envelope(job, stamp),
        priority=order.priority,
        max_attempts=order.max_attempts,
        timeout_s=order.timeout_s,
        input=command.input,
        input_ref=command.input_ref,
        run_at=command.run_at,
        reason=command.reason,
    )


def _claim(job: Job, command: Claim, stamp: Stamp) -> Events:
    if job.state is not _QUEUED:
        raise IllegalTransitionError(job.id, job.state.value, "be started")
    if not job.attempts_left:
        raise IllegalTransitionError(job.id, "out of attempts", "be started")
    return (_start(job, stamp, command.worker, command.lease_s),)


def _start(job: Job, stamp: Stamp, worker: str, lease_s: float) -> Started:
    return Started(  # its envelope written out, as `_complete` has it: each job has one of both
        v=1,
        prev="",
        job=job.id,
        queue=job.queue,
        task=job.task,
        at=stamp.at,
        by=stamp.by,
        trace=stamp.trace or job.order.trace,
        correlation=stamp.correlation or job.order.correlation,
        causation=stamp.causation,
        attempt=len(job.attempts) + 1,
        worker=worker,
        lease_s=lease_s,
    )


def _take_over(job: Job, command: TakeOver, stamp: Stamp) -> Events:
    _require(job, "be taken over", JobState.RUNNING)
    _check_epoch(job, command.lost_epoch)
    return _end_lost(job, stamp) or (_start(job, stamp, command.worker, command.lease_s),)


def _end_lost(job: Job, stamp: Stamp) -> Events:
    """What ends a job whose newest attempt is lost; nothing where it may be tried again."""
    if job.cancel_requested:
        return (Cancelled(**_envelope(job, stamp), reason=job.cancel_reason),)
    if not job.attempts_left:
        lost = job.attempts[-1]
        error = ErrorInfo(
            kind="lost", type="lost", message=f"worker {lost.worker} died while running the last attempt"
        )
        return (DeadLettered(**_envelope(job, stamp), reason="exhausted", error=error),)
    return ()


def _cancel(job: Job, command: CancelJob, stamp: Stamp) -> Events:
    if job.state is JobState.RUNNING:
        if job.cancel_requested:
            raise IllegalTransitionError(job.id, "already asked to end", "be cancelled again")
        return (CancelRequested(**_envelope(job, stamp), reason=command.reason),)
    _require(job, "be cancelled", *WAITING_STATES)
    return (Cancelled(**_envelope(job, stamp), reason=command.reason),)


def _requeue(job: Job, command: Requeue, stamp: Stamp) -> Events:
    _require(job, "be requeued", JobState.DEAD_LETTERED)
    granted = len(job.attempts) - job.attempts_given_back + max(1, command.attempts)
    priority = command.priority or job.order.priority
    changes: dict[str, Any] = {"max_attempts": granted, "priority": priority, "reason": command.reason}
    if command.input is not NO_VALUE or command.input_ref is not None:
        changes |= {"input": command.input, "input_ref": command.input_ref}
    return (_ready(job, stamp, "requeued", **changes),)


def _fence(job: Job, command: Fence, stamp: Stamp) -> Events:
    if command.epoch == job.claim_epoch:
        raise IllegalTransitionError(job.id, "held by this claim", "be fenced")
    if not any(held.epoch == command.epoch and held.number == command.attempt for held in job.attempts):
        raise IllegalTransitionError(job.id, job.state.value, "be fenced for a claim it never had")
    return (
        Fenced(
            **_envelope(job, stamp),
            attempt=command.attempt,
            worker=command.worker,
            held_epoch=command.epoch,
            current_epoch=job.claim_epoch,
            outcome=command.outcome,
        ),
    )


def _carry(job: Job, command: Carry, stamp: Stamp) -> Events:
    """The whole job, and a fresh work item where the one that its worker or its next one needs goes away."""
    in_use = job.state in (JobState.QUEUED, JobState.RUNNING)
    needs_work_item = in_use and job.dispatch_sequence <= command.through
    # A run that went less far carried it, and left the work item where it was: then it is carried once more.
    if job.carried_sequence > command.through and not needs_work_item:
        raise IllegalTransitionError(job.id, f"carried at {job.carried_sequence} already", "be carried again")
    if job.state in CLOSED_STATES and job.last_sequence <= command.through:
        raise IllegalTransitionError(job.id, f"{job.state.value} and goes away whole", "be carried")
    state = carried_job(job, tracebacks=command.tracebacks)
    carried = Carried(**_envelope(job, stamp), through=command.through, job_state=state)
    if needs_work_item:
        return (carried, _ready(job, stamp, "carried"))
    return (carried,)


def _check_epoch(job: Job, epoch: int) -> None:
    if job.claim_epoch != epoch:
        raise StaleClaimError(job.id, epoch, job.claim_epoch)


def _check_claim(job: Job, epoch: int) -> None:
    _check_epoch(job, epoch)
    if job.state is not _RUNNING:  # a claim epoch of 0 from nowhere
        raise IllegalTransitionError(job.id, job.state.value, "report an outcome")


def _complete(job: Job, command: Complete, stamp: Stamp) -> Events:
    _check_claim(job, command.epoch)
    completed = Completed(
        v=1,
        prev="",
        job=job.id,
        queue=job.queue,
        task=job.task,
        at=stamp.at,
        by=stamp.by,
        trace=stamp.trace or job.order.trace,
        correlation=stamp.correlation or job.order.correlation,
        causation=stamp.causation,
        attempt=len(job.attempts),
        result=command.result,
        result_ref=command.result_ref,
        limited=job.order.limits != (),
    )
    return (completed,)


def _claimed(job: Job, command: ClaimHolderCommand, stamp: Stamp) -> Events:
    """What only the holder of the claim may say."""
    _check_claim(job, command.epoch)
    envelope = _envelope(job, stamp)
    attempt = len(job.attempts)
    if job.cancel_requested and isinstance(command, Interrupt | Snooze | Pause):  # it will not run again
        return (Cancelled(**envelope, reason=job.cancel_reason),)
    match command:
        case Complete():
            return _complete(job, command, stamp)
        case Fail():
            return _failed(job, command, stamp)
        case Interrupt():
            interrupted = Interrupted(**envelope, attempt=attempt, reason=command.reason)
            return (interrupted, _ready(job, stamp, "interrupted"))
        case Snooze():
            return (Snoozed(**envelope, attempt=attempt, until=command.until),)
        case Pause():
            return (Paused(**envelope, attempt=attempt, until=command.until, event=command.event),)
        case ConfirmCancel():
            return (Cancelled(**envelope, reason=command.reason or job.cancel_reason),)
        case Checkpoint():
            return (
                Checkpointed(**envelope, attempt=attempt, value=command.value, value_ref=command.value_ref),
            )
        case ReportProgress():
            return (
                Progressed(
                    **envelope, attempt=attempt, done=command.done, total=command.total, note=command.note
                ),
            )
        case _:
            assert_never(command)


def _failed(job: Job, command: Fail, stamp: Stamp) -> Events:
    """A failure, and in the same atomic batch what becomes of the job, so that no reader sees it in between."""
    envelope = _envelope(job, stamp)
    attempt = len(job.attempts)
    if job.cancel_requested:
        failed = Failed(**envelope, attempt=attempt, error=command.error)
        return (failed, Cancelled(**envelope, reason=job.cancel_reason))
    if command.give_up is not None or not job.attempts_left:
        failed = Failed(**envelope, attempt=attempt, error=command.error)
        reason = command.give_up or "exhausted"
        return (failed, DeadLettered(**envelope, reason=reason, error=command.error))
    if command.retry_at is not None and command.retry_at > stamp.at:
        return (
            Failed(
                **envelope,
                attempt=attempt,
                error=command.error,
                retry_at=command.retry_at,
                retry_priority=command.retry_priority,
            ),
        )
    priority = command.retry_priority or job.order.priority
    failed = Failed(**envelope, attempt=attempt, error=command.error, retry_at=stamp.at)
    return (failed, _ready(job, stamp, "retried", priority=priority))
