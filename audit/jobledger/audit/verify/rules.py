"""What one event may not do to its job.

Pure. `job.evolve` alone gives the state of a job; the rules here ask `transitions`, or read that state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, cast

from jobledger.audit.verify.options import Expectation
from jobledger.audit.verify.runs.run_rules import broken_run
from jobledger.ledger.model.aggregate import Broken
from jobledger.ledger.model.decision_parts.carried import difference
from jobledger.ledger.model.events import (
    Carried,
    Completed,
    Event,
    Failed,
    Held,
    Interrupted,
    JobEvent,
    Paused,
    Queued,
    Snoozed,
    Started,
    event_type,
)
from jobledger.ledger.model.job import CLOSED_STATES, FINAL_STATES, OPERATOR, Job, JobState
from jobledger.ledger.model.lifecycle import OUTCOMES
from jobledger.ledger.model.transitions import violation

#: Only these end a wait because its time came; the others have reasons of their own to come early.
_BY_TIME: Final = frozenset({"due", "retried"})
_Outcome = Completed | Failed | Interrupted | Snoozed | Paused


def broken_rule(job: Job | None, event: JobEvent, stream_sequence: int) -> Broken | None:
    """Return the first rule that `event` breaks and how, None when it breaks none; `job` is None before the first.

    A more specific rule comes first; the transition table decides all other cases.
    """
    if job is not None:
        rule = _RULE_OF.get(type(event))
        found = None if rule is None else rule(job, event, stream_sequence)
        if found is None:
            found = broken_run(job, event)
        if found is not None:
            return found
    sentence = violation(job, event)
    return None if sentence is None else ("transition", sentence.removeprefix(f"job {event.job}: "))


def _one_outcome(job: Job, event: JobEvent, _stream_sequence: int) -> Broken | None:
    number = cast("_Outcome", event).attempt
    attempt = job.attempt(number)
    if attempt is None:
        return None  # its attempt never was, or is long past: the transition table reports it
    if attempt.state == "running" or attempt.number != number:
        return None
    if isinstance(event, Paused) and (event.event == OPERATOR or job.state is JobState.PAUSED):
        return None  # a waiting job, which a person pauses or resumes
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
    if not job.attempts_left_if_lost and job.state not in CLOSED_STATES:
        counted = job.attempts_count - job.attempts_given_back + 1
        return "attempts", f"attempt {counted} of {job.order.max_attempts} was started"
    return None


def _keeps_the_limit(job: Job, event: JobEvent, _stream_sequence: int) -> Broken | None:
    order = cast("Queued | Held", event)
    if (
        order.max_attempts == job.order.max_attempts
        or order.cause == "requeued"
        or job.state in CLOSED_STATES
    ):
        return None
    return (
        "attempts",
        f"`{event_type(event)}` changes the limit of {job.order.max_attempts} attempts to {order.max_attempts}",
    )


def _carries_what_is(job: Job, event: JobEvent, _stream_sequence: int) -> Broken | None:
    carried = cast("Carried", event)
    if job.state not in CLOSED_STATES:
        found = difference(job, carried, is_lean=True)
    else:  # only little is kept of a closed job
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
    **dict.fromkeys(OUTCOMES, _one_outcome),
    Started: _may_claim,
    **dict.fromkeys((Queued, Held), _keeps_the_limit),
    Carried: _carries_what_is,
}


def early(job: Job, event: JobEvent, stored_at: datetime, tolerance: timedelta) -> str | None:
    """Return one sentence when `event` ends a wait before its time.

    Early means by both clocks, the appender's and the server's: one wrong clock does not make a timer early. An event
    with a reason is an operator's act, and may come early.
    """
    due_at = job.due_at
    if due_at is None or not isinstance(event, Queued | Held) or event.cause not in _BY_TIME or event.reason:
        return None
    if due_at.tzinfo is None:
        return f"it waits for {due_at.isoformat()}, a time without a zone"
    ahead = due_at - max(event.at, stored_at)
    if ahead <= tolerance:
        return None
    return f"`{event_type(event)}` as {event.cause!r} {ahead.total_seconds():.3f} s before {due_at.isoformat()}, when it was due"


def overdue(job: Job, now: datetime, grace: timedelta) -> str | None:
    """Return one sentence when a job waits for a moment that passed more than `grace` ago, and for no person."""
    due_at = None if job.state is JobState.PAUSED else job.due_at
    if due_at is None or due_at.tzinfo is None or now - due_at <= grace:
        return None
    late_s = (now - due_at).total_seconds()
    return f"it was due at {due_at.isoformat()}, {late_s:,.0f} s ago, and is still {job.state.value}"


def broken_at_end(
    job: Job, expected: Expectation, now: datetime | None, grace: timedelta
) -> Iterator[Broken]:
    """Yield what is wrong with a job that is not over when the ledger ends; `now`: None if not known."""
    if expected.all_final and job.state not in FINAL_STATES:
        yield "final", f"it is still {job.state.value}: it has no final state"
    until, due_at = expected.timers_until, None if job.state is JobState.PAUSED else job.due_at
    if until is not None and due_at is not None and due_at.tzinfo is not None and due_at < until:
        yield "timer", f"it was due at {due_at.isoformat()} and is still {job.state.value}"
        return
    late = overdue(job, now, grace) if now is not None else None
    if late is not None:
        yield "timer", late
