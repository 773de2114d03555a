"""Decisions on a person's acts on a job: pause, resume, cancel. Pure."""

from __future__ import annotations

from typing import Any

from jobledger.ledger.model.commands import CancelJob, RequestPause, ResumeJob, Stamp
from jobledger.ledger.model.decision_parts.facts import Events, cancelled, envelope, ready, require
from jobledger.ledger.model.decision_parts.runs import paused
from jobledger.ledger.model.errors import IllegalTransitionError
from jobledger.ledger.model.events import CancelRequested, PauseRequested, Scheduled
from jobledger.ledger.model.job import OPERATOR, PENDING_STATES, Job, JobState
from jobledger.ledger.model.runs.steps import admissible, is_over


def cancel(job: Job, command: CancelJob, stamp: Stamp) -> Events:
    """End a waiting job at once, unless it may have to undo something first; ask a running one to end."""
    require(job, "be cancelled", JobState.RUNNING, *PENDING_STATES)
    if job.cancel_requested:
        raise IllegalTransitionError(job.id, "already asked to end", "be cancelled again")
    asked = CancelRequested(**envelope(job, stamp), reason=command.reason)
    if job.state is JobState.RUNNING:
        return (asked,)
    if not job.may_undo:
        return (cancelled(job, stamp, command.reason),)
    if job.state in (JobState.QUEUED, JobState.HELD):  # its next attempt finds the request
        return (asked,)
    return (ready(job, stamp, "cancelling", reason=command.reason),)


def request_pause(job: Job, command: RequestPause, stamp: Stamp) -> Events:
    """Let a waiting job wait until a person resumes it; ask a running one to pause."""
    if job.state is JobState.RUNNING:
        if job.pause_requested:
            raise IllegalTransitionError(job.id, "already asked to pause", "be paused again")
        if job.cancel_requested:
            raise IllegalTransitionError(job.id, "asked to end", "be paused")
        return (PauseRequested(**envelope(job, stamp), reason=command.reason),)
    require(job, "be paused", *PENDING_STATES)
    if job.state is JobState.PAUSED:
        raise IllegalTransitionError(job.id, "paused already", "be paused again")
    if job.cancel_requested:
        raise IllegalTransitionError(job.id, "asked to end", "be paused")
    return (paused(job, stamp, event=OPERATOR, reason=command.reason, **_waits(job)),)


def resume(job: Job, command: ResumeJob, stamp: Stamp) -> Events:
    """End a person's pause of a job: run the job if the awaited thing has come, else let it wait for that again."""
    if job.state is not JobState.PAUSED:
        state = "asked to pause and still running" if job.pause_requested else job.state.value
        raise IllegalTransitionError(job.id, state, "be resumed")
    is_due = job.due_at is not None and job.due_at <= stamp.at
    if job.awaited and not is_due and not _has_come(job, stamp):
        return (paused(job, stamp, event="", **_waits(job)),)
    if job.due_at is not None and not is_due and not job.awaited:
        order = job.order
        return (
            Scheduled(
                **envelope(job, stamp),
                priority=order.priority,
                max_attempts=order.max_attempts,
                timeout_s=order.timeout_s,
                run_at=job.due_at,
                reason=command.reason,
            ),
        )
    return (ready(job, stamp, "resumed", reason=command.reason),)


def _waits(job: Job) -> dict[str, Any]:
    """Return the fields of `paused` that name what a job waits for."""
    return {"until": job.due_at, "steps": job.awaited, "undos": job.undos}


def _has_come(job: Job, stamp: Stamp) -> bool:
    """Whether a step that the job waits for is over, or the step's group has room for more."""
    steps = [job.steps[key] for key in job.awaited if key in job.steps]
    return any(is_over(step, job.signals, stamp.at) or admissible(step) for step in steps)
