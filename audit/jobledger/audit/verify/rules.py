"""What one event may not do to its job.

Pure. The state of a job is `job.evolve`'s alone; the rules here either ask `transitions` or look at that state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, cast

import msgspec

from jobledger.ledger.model.carried import difference
from jobledger.ledger.model.events import (
    NO_VALUE,
    Carried,
    CarriedJob,
    Checkpointed,
    Completed,
    DeadLettered,
    ErrorInfo,
    Event,
    Failed,
    Held,
    Interrupted,
    JobEvent,
    Paused,
    Queued,
    Scheduled,
    Snoozed,
    Started,
    event_type,
)
from jobledger.ledger.model.job import CLOSED_STATES, Job
from jobledger.ledger.model.transitions import violation

#: What a ledger is checked for; each name is the rule that a violation breaks.
Rule = Literal[
    "sequence",  # the stream sequence is dense and grows
    "readable",  # every message is an event this version knows, at a time with a zone
    "subject",  # the subject says what the event says
    "chain",  # `prev` is the hash of the event before it in its job
    "transition",  # the event may follow in the state the job is in
    "outcome",  # an attempt has one accepted outcome, and a lost one has none
    "epoch",  # every claim of a job is newer than the one before
    "attempts",  # no more attempts than the job may have, and only a requeue grants more
    "timer",  # nothing is dispatched before its time, and nothing waits long after it
    "batch",  # an attempt's end and what becomes of the job stand next to each other
    "history",  # the ledger begins as an earlier report saw it
    "archive",  # what is gone from the beginning was archived, and who was under way was carried over
    "projection",  # the tables say what the events add up to
    "export",  # an export's files are as its manifest says
    "seal",  # the ledger is what it was when it was sealed
    "enqueue",  # the jobs are those whose enqueue was acknowledged
    "final",  # every job has a final state
    "consumer",  # nothing is left in the consumers of work
]

Broken = tuple[Rule, str]

#: Only these end a wait because its time came; the others have reasons of their own to come early.
_BY_TIME: Final = frozenset({"due", "retried", "admitted"})
_Outcome = Completed | Failed | Interrupted | Snoozed | Paused


def broken_rule(job: Job | None, event: JobEvent, stream_sequence: int) -> Broken | None:
    """Return the first rule that `event` breaks and how, None when it breaks none; `job` is None before the first.

    What has a rule of its own is named by it; the transition table has the last word on everything.
    """
    if job is not None:
        rule = _RULE_OF.get(type(event))
        found = None if rule is None else rule(job, event, stream_sequence)
        if found is not None:
            return found
    sentence = violation(job, event)
    return None if sentence is None else ("transition", sentence.removeprefix(f"job {event.job}: "))


def _one_outcome(job: Job, event: JobEvent, _stream_sequence: int) -> Broken | None:
    number = cast("_Outcome", event).attempt
    if not 1 <= number <= len(job.attempts):
        return None  # of no attempt at all: the transition table tells
    attempt = job.attempts[number - 1]
    if attempt.state == "running" or attempt.number != number:
        return None
    kind = event_type(event)
    if attempt.state == "lost":
        return (
            "outcome",
            f"`{kind}` of attempt {number} was accepted, whose claim {attempt.epoch} was lost before",
        )
    return "outcome", f"`{kind}` is a second outcome of attempt {number}, which was {attempt.state} before"


def _may_claim(job: Job, _event: JobEvent, stream_sequence: int) -> Broken | None:
    if not job.attempts:
        return None
    newest = job.attempts[-1].epoch
    if stream_sequence <= newest:
        return "epoch", f"claim {stream_sequence} follows claim {newest}: epochs must grow"
    if not job.attempts_left and job.state not in CLOSED_STATES:
        counted = len(job.attempts) - job.attempts_given_back + 1
        return "attempts", f"attempt {counted} of {job.max_attempts} was started"
    return None


def _keeps_the_limit(job: Job, event: JobEvent, _stream_sequence: int) -> Broken | None:
    order = cast("Queued | Held", event)
    requeued = isinstance(order, Queued) and order.cause == "requeued"
    if order.max_attempts == job.max_attempts or requeued or job.state in CLOSED_STATES:
        return None
    return (
        "attempts",
        f"`{event_type(event)}` changes the limit of {job.max_attempts} attempts to {order.max_attempts}",
    )


def _carries_what_is(job: Job, event: JobEvent, _stream_sequence: int) -> Broken | None:
    carried = cast("Carried", event)
    if job.state not in CLOSED_STATES:
        found = difference(job, carried, lean=True)
    else:  # of a closed job little is kept
        said = carried.job_state
        attempts = [(each.epoch, each.state) for each in job.attempts]
        same = {
            "state": said.state == job.state,
            "last_sequence": said.last_sequence == job.last_sequence,
            "attempts": [(each.epoch, each.state) for each in said.attempts] == attempts,
        }
        found = next((field for field, is_same in same.items() if not is_same), None)
    return None if found is None else ("archive", f"`carried` says another {found} than the events before it")


_RULE_OF: Final[Mapping[type[Event], Callable[[Job, JobEvent, int], Broken | None]]] = {
    Completed: _one_outcome,
    Failed: _one_outcome,
    Interrupted: _one_outcome,
    Snoozed: _one_outcome,
    Paused: _one_outcome,
    Started: _may_claim,
    Queued: _keeps_the_limit,
    Held: _keeps_the_limit,
    Carried: _carries_what_is,
}


def early(job: Job, event: JobEvent, stored_at: datetime, tolerance: timedelta) -> str | None:
    """Return one sentence when `event` ends a wait before its time.

    Early means by both clocks, the appender's and the server's: a clock that is wrong is not an early timer. Who
    names a reason acts as an operator and may come early.
    """
    due_at = job.due_at
    if due_at is None or not isinstance(event, Queued) or event.cause not in _BY_TIME or event.reason:
        return None
    if due_at.tzinfo is None:
        return f"it waits for {due_at.isoformat()}, a time without a zone"
    ahead = due_at - max(event.at, stored_at)
    if ahead <= tolerance:
        return None
    return f"`queued` as {event.cause!r} {ahead.total_seconds():.3f} s before {due_at.isoformat()}, when it was due"


def overdue(job: Job, now: datetime, grace: timedelta) -> str | None:
    """Return one sentence when a job waits for a moment that is over by more than `grace`."""
    due_at = job.due_at
    if due_at is None or due_at.tzinfo is None or now - due_at <= grace:
        return None
    late_s = (now - due_at).total_seconds()
    return f"it was due at {due_at.isoformat()}, {late_s:,.0f} s ago, and is still {job.state.value}"


_NO_ERROR: Final = ErrorInfo(kind="exception", type="", message="")


def lean(event: JobEvent) -> JobEvent:
    """Return `event` without the values that no rule looks at, so that an open job keeps no payload alive."""
    changes = _HEAVY.get(type(event))
    if changes is None:
        return event
    if isinstance(event, Carried):
        return msgspec.structs.replace(event, job_state=_lean_state(event.job_state))
    return msgspec.structs.replace(event, **changes)


_NO_ORDER: Final[dict[str, Any]] = {
    "input": NO_VALUE,
    "input_ref": None,
    "trace": "",
    "correlation": "",
    "notify": "",
}
_HEAVY: Final[Mapping[type[Event], dict[str, Any]]] = {
    Queued: _NO_ORDER,
    Scheduled: _NO_ORDER,
    Held: _NO_ORDER,
    Failed: {"error": _NO_ERROR},
    DeadLettered: {"error": None},
    Checkpointed: {"value": NO_VALUE, "value_ref": None},
    Carried: {},  # what is heavy lies in its job
}


def _lean_state(state: CarriedJob) -> CarriedJob:
    attempts = tuple(
        each if each.error is None else msgspec.structs.replace(each, error=_NO_ERROR)
        for each in state.attempts
    )
    no_values = {"error": None, "result": NO_VALUE, "checkpoint": NO_VALUE, "checkpoint_ref": None}
    return msgspec.structs.replace(state, attempts=attempts, **_NO_ORDER, **no_values)
