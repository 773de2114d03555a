"""`decide`: which facts follow from a command, or which refusal.

Pure and total: for every job and command it returns events or raises one of our refusals; it reads no clock
and does no I/O. The conditional append checks later that the given view was the newest.
"""

from __future__ import annotations

import operator
from typing import Any, Final, assert_never

import msgspec

from jobledger.ledger.model.commands import (
    CancelJob,
    Carry,
    Checkpoint,
    Claim,
    ClaimHolderCommand,
    Command,
    Complete,
    CompleteStep,
    ConfirmCancel,
    CopyEnds,
    DeadLetter,
    Discard,
    Dispatch,
    Enqueue,
    Fail,
    FailStep,
    Fence,
    GiveSignal,
    Interrupt,
    Join,
    Note,
    Outcome,
    Pause,
    PutBack,
    RefuseSignal,
    ReportProgress,
    RequestPause,
    Requeue,
    Reschedule,
    Rescue,
    ResumeJob,
    Snooze,
    Stamp,
    StartStep,
    TakeOver,
)
from jobledger.ledger.model.decision_parts import facts
from jobledger.ledger.model.decision_parts.carried import carried_job
from jobledger.ledger.model.decision_parts.facts import (
    Events,
    cancelled,
    dead_lettered,
    ending,
    envelope,
    of_family,
    ready,
    require,
)
from jobledger.ledger.model.decision_parts.pauses import cancel, request_pause, resume
from jobledger.ledger.model.decision_parts.permissions import permit
from jobledger.ledger.model.decision_parts.runs import (
    copy_ends,
    give_signal,
    join,
    pause,
    paused,
    refuse_signal,
    step,
)
from jobledger.ledger.model.envelope import NO_VALUE, VERSION_RETRIED, VERSION_SEALED
from jobledger.ledger.model.errors import (
    IllegalTransitionError,
    JobExistsError,
    JobNotFoundError,
)
from jobledger.ledger.model.events import (
    Carried,
    Cause,
    Checkpointed,
    Completed,
    Discarded,
    ErrorInfo,
    Failed,
    Fenced,
    Held,
    Interrupted,
    JobEvent,
    Lost,
    Noted,
    Order,
    Progressed,
    Queued,
    Scheduled,
    Snoozed,
    Started,
)
from jobledger.ledger.model.forms import CARRIED_FORM, RETRIES_FORM, SEALED_FORM
from jobledger.ledger.model.job import CLOSED_STATES, OPERATOR, PENDING_STATES, Job, JobState
from jobledger.ledger.model.lifecycle import CAUSES
from jobledger.ledger.model.runs.carried_parts import parts_of
from jobledger.ledger.model.runs.orders import check_callbacks

#: Looked up once: enum member access goes through the metaclass, which is slow, and every event asks.
_QUEUED = JobState.QUEUED
_RUNNING = JobState.RUNNING
_asdict: Final = msgspec.structs.asdict


def decide(job: Job | None, command: Command, stamp: Stamp) -> Events:
    """Return the events that `command` adds to `job`, to be appended as one; at least one.

    Raises: JobExistsError, JobNotFoundError, StaleClaimError, IllegalTransitionError and its subclasses, and
    AccessDeniedError; nothing else.
    """
    if stamp.authority is not None:
        permit(stamp.authority, job, command)
    if job is None:
        if isinstance(command, Enqueue):
            return (_first(command, stamp),)
        raise JobNotFoundError("?")
    # The most frequent commands come first, since each case that does not match costs a tenth of a microsecond.
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
            require(job, "be rescued", JobState.RUNNING)
            facts.check_epoch(job, command.lost_epoch)
            return (*_lost(job, stamp), *(_end_lost(job, stamp) or (ready(job, stamp, "redispatched"),)))
        case CancelJob():
            return cancel(job, command, stamp)
        case DeadLetter():
            require(job, "be given up", JobState.QUEUED, JobState.RUNNING)
            facts.check_epoch(job, command.epoch)  # a later claim has its own outcome
            lost = _lost(job, stamp) if job.state is _RUNNING else ()
            return (*lost, dead_lettered(job, stamp, command.reason, command.error))
        case Requeue():
            return _requeue(job, command, stamp)
        case Discard():
            require(job, "be discarded", JobState.DEAD_LETTERED)
            return (Discarded(**ending(job, stamp), reason=command.reason),)
        case Join():
            return join(job, command, stamp)
        case GiveSignal():
            return give_signal(job, command, stamp)
        case RequestPause():
            return request_pause(job, command, stamp)
        case ResumeJob():
            return resume(job, command, stamp)
        case Note():
            return (Noted(**envelope(job, stamp), text=command.sealed or command.text),)
        case Fence():
            return _fence(job, command, stamp)
        case Carry():
            return _carry(job, command, stamp)
        case _:
            return _claimed(job, command, stamp)


def retry_command(job: Job | None, job_id: str, reason: str) -> Dispatch | Requeue:
    """Return the command that makes a waiting job or a dead letter available now, as an operator wishes.

    Raises: JobNotFoundError, IllegalTransitionError for a job in any other state.
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
    JobState.WAITING: "resumed",
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


#: The fields of an order that `_first` names one by one; a job that sets another field takes the slower path below.
_OFTEN_SAID: Final = (
    "priority",
    "input",
    "max_attempts",
    "timeout_s",
    "notify",
    "tenant",
    "trace",
    "correlation",
    "key",
)
_rarely_said: Final = operator.attrgetter(
    *[field for field in Order.__struct_fields__ if field not in _OFTEN_SAID]
)
_RARELY_SAID: Final = _rarely_said(Order())


def _first(command: Enqueue, stamp: Stamp) -> JobEvent:
    given, ref = command.order, command.ref
    if given.key and stamp.form < SEALED_FORM:
        stamp.require_form(SEALED_FORM, f"the owner of job {ref.job_id}")
    if command.run_at is None and _rarely_said(given) == _RARELY_SAID:
        # Nearly all jobs begin here. For more than 15 named arguments Python makes a dict first, which doubles the
        # time.
        queued = Queued(
            v=1,
            at=stamp.at,
            by=stamp.by,
            trace=given.trace or stamp.trace,
            job=ref.job_id,
            queue=ref.queue,
            task=command.task,
            correlation=given.correlation or stamp.correlation,
            causation=stamp.causation,
            priority=given.priority,
            input=given.input,
            max_attempts=given.max_attempts,
            timeout_s=given.timeout_s,
            notify=given.notify,
            tenant=given.tenant,
        )
        if given.key:
            queued = msgspec.structs.replace(queued, v=VERSION_SEALED, key=given.key)
        return queued
    if not given.key and given.on_end:
        check_callbacks(command.task, given.on_end)
    order: dict[str, Any] = {
        "v": VERSION_SEALED if given.key else 1,
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
    if command.order.deadline_s is not None:  # the timers read such events, and no `queued`
        return Scheduled(**order, run_at=stamp.at)
    return Held(**order) if command.order.limits else Queued(**order)


def _order_fields(order: Order, stamp: Stamp) -> dict[str, Any]:
    fields = _asdict(order)
    fields["trace"] = order.trace or stamp.trace
    fields["correlation"] = order.correlation or stamp.correlation
    return fields


#: Causes of a dispatch that only another command makes, in the same batch or as its only event.
_NEVER_ASKED: Final = frozenset[Cause]({"carried", "interrupted", "ungranted", "cancelling"})
#: `queued` with the cause `admitted` repeats an input up to this many bytes: nearly every input fits, and little is
#: stored twice.
_AGAIN_BYTES_MAX: Final = 4096


def _dispatch(job: Job, command: Dispatch, stamp: Stamp) -> Events:
    require(job, "be queued", *PENDING_STATES)
    # A late timer or a redispatch must not cut another wait short.
    if command.cause not in CAUSES[job.state] or command.cause in _NEVER_ASKED:
        raise IllegalTransitionError(job.id, job.state.value, f"be queued as {command.cause!r}")
    if job.state is JobState.PAUSED and not command.reason:
        raise IllegalTransitionError(job.id, "paused by a person", f"be queued as {command.cause!r}")
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
        changes = {**_order_again(job), **changes, "grant": command.grant}
    elif command.cause == "retried":
        changes = {**_order_of_retry(job), **changes}
    return (ready(job, stamp, command.cause, **changes),)


def _order_again(job: Job) -> dict[str, Any]:
    """Return a job's whole order before its first attempt if its input is small: a worker then reads no chain."""
    return {} if job.attempts or not _is_small(job.order) else _asdict(job.order)


def _order_of_retry(job: Job) -> dict[str, Any]:
    """Return a job's order and its attempts given back, if the next attempt needs only these and the input is small."""
    given_back = _given_back(job)
    if given_back is None or job.order.limits or not _is_small(job.order):
        return {}
    return {**_asdict(job.order), "given_back": given_back}


def _is_small(order: Order) -> bool:
    return order.input_ref is None and len(bytes(order.input)) <= _AGAIN_BYTES_MAX


def _put_back(job: Job, command: PutBack, stamp: Stamp) -> Events:
    require(job, "be put back behind its limits", JobState.QUEUED)
    if command.asked_by != job.wait_sequence or not job.order.limits:
        raise IllegalTransitionError(
            job.id,
            f"queued since sequence {job.wait_sequence} with {len(job.order.limits)} limits",
            f"be put back for {command.asked_by}",
        )
    return (ready(job, stamp, "ungranted"),)


def _reschedule(job: Job, command: Reschedule, stamp: Stamp) -> Scheduled:
    """Move the moment for which a job waits; its older timer then belongs to a wait that is over."""
    require(job, "be rescheduled", JobState.SCHEDULED, JobState.RETRY_WAIT)
    if job.due_at is None:  # between two events of one batch
        raise IllegalTransitionError(job.id, "about to go on", "be rescheduled")
    order = job.order
    return Scheduled(
        **envelope(job, stamp),
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
    key = job.order.key
    return Started(  # the envelope is written out here and in `_complete`, for speed: each job has one of both events
        v=VERSION_SEALED if key else 1,
        key=key,
        prev="",
        job=job.id,
        queue=job.queue,
        task=job.task,
        at=stamp.at,
        by=stamp.by,
        trace=stamp.trace or job.order.trace,
        correlation=stamp.correlation or job.order.correlation,
        causation=stamp.causation,
        attempt=job.attempts_dropped + len(job.attempts) + 1,
        worker=worker,
        lease_s=lease_s,
    )


def _take_over(job: Job, command: TakeOver, stamp: Stamp) -> Events:
    require(job, "be taken over", JobState.RUNNING)
    facts.check_epoch(job, command.lost_epoch)
    after = _end_lost(job, stamp) or (_start(job, stamp, command.worker, command.lease_s),)
    return (*_lost(job, stamp), *after)


def _lost(job: Job, stamp: Stamp) -> Events:
    """Return the event that tells readers of the loss of the running attempt; the next event is in the same append.

    The next event implies it, too: an earlier release does not know `lost`, and its ledger gets none.
    """
    if stamp.form < Lost.since_form:
        return ()
    running = job.attempts[-1]
    return (Lost(**envelope(job, stamp), attempt=running.number, worker=running.worker, epoch=running.epoch),)


def _end_lost(job: Job, stamp: Stamp) -> Events:
    """Return the end of a job whose newest attempt is lost; () if it may be tried again, or may have undos to do."""
    if job.cancel_requested and not job.may_undo:
        return (cancelled(job, stamp, job.cancel_reason),)
    if not job.attempts_left_if_lost:
        lost = job.attempts[-1]
        error = ErrorInfo(
            kind="lost", type="lost", message=f"worker {lost.worker} died while running the last attempt"
        )
        return (dead_lettered(job, stamp, "exhausted", error),)
    return ()


def _requeue(job: Job, command: Requeue, stamp: Stamp) -> Events:
    require(job, "be requeued", JobState.DEAD_LETTERED)
    granted = job.attempts_count - job.attempts_given_back + max(1, command.attempts)
    priority = command.priority or job.order.priority
    changes: dict[str, Any] = {"max_attempts": granted, "priority": priority, "reason": command.reason}
    if command.input is not NO_VALUE or command.input_ref is not None:
        changes |= {"input": command.input, "input_ref": command.input_ref}
    return (ready(job, stamp, "requeued", **changes),)


def _fence(job: Job, command: Fence, stamp: Stamp) -> Events:
    if command.epoch == job.claim_epoch:
        raise IllegalTransitionError(job.id, "held by this claim", "be fenced")
    held = job.attempt(command.attempt)
    if held is None or held.epoch != command.epoch:
        raise IllegalTransitionError(job.id, job.state.value, "be fenced for a claim it never had")
    return (
        Fenced(
            **envelope(job, stamp),
            attempt=command.attempt,
            worker=command.worker,
            held_epoch=command.epoch,
            current_epoch=job.claim_epoch,
            outcome=command.outcome,
        ),
    )


def _carry(job: Job, command: Carry, stamp: Stamp) -> Events:
    """Return the whole job, and a new work item if the old one is archived and a worker still needs it."""
    in_use = job.state in (JobState.QUEUED, JobState.RUNNING)
    needs_work_item = in_use and job.dispatch_sequence <= command.through
    # An archive run that went less far carried it but left the work item in place: then it is carried once more.
    if job.carried_sequence > command.through and not needs_work_item:
        raise IllegalTransitionError(job.id, f"carried at {job.carried_sequence} already", "be carried again")
    # A child may still be needed: its run reads the child's end when the last child of the step has ended.
    if job.state in CLOSED_STATES and job.last_sequence <= command.through and job.member is None:
        raise IllegalTransitionError(job.id, f"{job.state.value} and goes away whole", "be carried")
    state = carried_job(job, tracebacks=command.tracebacks)
    carried = [
        Carried(
            **envelope(job, stamp),
            through=command.through,
            job_state=msgspec.structs.replace(state, steps=part.steps, signals=part.signals),
            steps_before=part.steps_before,
            signals_before=part.signals_before,
            more=part.more,
            form=CARRIED_FORM,
        )
        for part in parts_of(state.steps, state.signals)
    ]
    return (*carried, ready(job, stamp, "carried")) if needs_work_item else tuple(carried)


def _complete(job: Job, command: Complete, stamp: Stamp) -> Events:
    facts.check_claim(job, command.epoch)
    key = job.order.key
    completed = Completed(
        v=VERSION_SEALED if key else 1,
        key=key,
        prev="",
        job=job.id,
        queue=job.queue,
        task=job.task,
        at=stamp.at,
        by=stamp.by,
        trace=stamp.trace or job.order.trace,
        correlation=stamp.correlation or job.order.correlation,
        causation=stamp.causation,
        attempt=job.attempts_dropped + len(job.attempts),
        result=command.result,
        result_ref=command.result_ref,
        limited=job.order.limits != (),
    )
    if job.order.member is not None or job.steps:  # seldom: a run, or a child that tells its run
        told = {"unvisited": command.unvisited, "successor": command.successor, **of_family(job)}
        completed = msgspec.structs.replace(completed, **told)
    return (completed,)


def _claimed(job: Job, command: ClaimHolderCommand, stamp: Stamp) -> Events:
    """Decide a command that only the holder of the claim may give."""
    facts.check_claim(job, command.epoch)
    if isinstance(command, Interrupt | Snooze) and (job.cancel_requested or job.pause_requested):
        asked = _instead(job, command, stamp)
        if asked is not None:
            return (asked,)
    fields = envelope(job, stamp)
    attempt = job.attempts_count
    match command:
        case Complete():
            return _complete(job, command, stamp)
        case StartStep() | CompleteStep() | FailStep():
            return step(job, command, stamp)
        case RefuseSignal():
            return refuse_signal(job, command, stamp)
        case CopyEnds():
            return copy_ends(job, command, stamp)
        case Fail():
            return _failed(job, command, stamp)
        case Interrupt():
            interrupted = Interrupted(**fields, attempt=attempt, reason=command.reason)
            return (interrupted, ready(job, stamp, "interrupted"))
        case Snooze():
            return (Snoozed(**fields, attempt=attempt, until=command.until),)
        case Pause():
            return pause(job, command, stamp)
        case ConfirmCancel():
            return (cancelled(job, stamp, command.reason or job.cancel_reason),)
        case Checkpoint():
            return (
                Checkpointed(**fields, attempt=attempt, value=command.value, value_ref=command.value_ref),
            )
        case ReportProgress():
            return (
                Progressed(
                    **fields, attempt=attempt, done=command.done, total=command.total, note=command.note
                ),
            )
        case _:
            assert_never(command)


def _instead(job: Job, command: Interrupt | Snooze, stamp: Stamp) -> JobEvent | None:
    """Return the events if somebody asked the attempt to end or to pause; None: its own command counts.

    A run goes on in another attempt, which finds the request: only that attempt knows what has to be undone.
    """
    if job.may_undo:
        return None
    if job.cancel_requested:  # it will not run again
        return cancelled(job, stamp, job.cancel_reason)
    until = command.until if isinstance(command, Snooze) else None
    return paused(job, stamp, event=OPERATOR, until=until)


def _failed(job: Job, command: Fail, stamp: Stamp) -> Events:
    """Return a failure and, in the same batch, its consequence, so that no reader sees the job between the two."""
    fields: dict[str, Any] = {
        **envelope(job, stamp),
        "attempt": job.attempts_count,
        "error": command.error,
    }
    is_last = command.give_up is not None or not job.attempts_left
    if job.cancel_requested and (not job.may_undo or (is_last and command.give_up is None)):
        return (Failed(**fields), cancelled(job, stamp, job.cancel_reason))
    if is_last:
        reason = command.give_up or "exhausted"
        return (Failed(**fields), dead_lettered(job, stamp, reason, command.error))
    # A run that has to end does its undos in another attempt, which need not wait for the time of a retry.
    is_later = command.retry_at is not None and command.retry_at > stamp.at and not job.cancel_requested
    if job.pause_requested and not job.cancel_requested:
        until = command.retry_at if is_later else None
        failed = Failed(**fields, retry_at=stamp.at, retry_priority=command.retry_priority)
        return (failed, paused(job, stamp, event=OPERATOR, until=until))
    known: dict[str, Any] = {
        "dispatch": job.dispatch_sequence,
        "epoch": command.epoch,
        "given_back": _given_back(job),
    }
    if is_later:
        known = {} if known["given_back"] is None else known
        return (Failed(**fields, **known, retry_at=command.retry_at, retry_priority=command.retry_priority),)
    priority = command.retry_priority or job.order.priority
    offers_again = command.offers_again and stamp.form >= RETRIES_FORM
    if offers_again and priority == job.order.priority and not job.order.limits:
        # Its work item is delivered again, since an append of one event costs the server a tenth of an append of two.
        return (msgspec.structs.replace(Failed(**fields, **known), v=VERSION_RETRIED),)
    after = ready(job, stamp, "retried", **{**_order_of_retry(job), "priority": priority})
    return (Failed(**fields, retry_at=stamp.at), after)


def _given_back(job: Job) -> int | None:
    """Return how many attempts do not count; None if the next attempt needs more of the job than that and its order."""
    has_more = job.steps or job.signals or job.checkpoint is not NO_VALUE or job.checkpoint_ref is not None
    return None if has_more else job.attempts_given_back
