"""The content of each type of event beyond its type, in a few words for a person; "" if there is none. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from jobledger.ledger.model.envelope import NO_VALUE
from jobledger.ledger.model.events import (
    Cancelled,
    CancelRequested,
    ChildOrder,
    Completed,
    DeadLettered,
    Discarded,
    ErrorInfo,
    Failed,
    Held,
    Joined,
    JoinFact,
    Paused,
    PauseRequested,
    Progressed,
    Queued,
    Scheduled,
    SignalFact,
    Signalled,
    SignalRefused,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from jobledger.ledger.model.job import OPERATOR
from jobledger.ledger.model.times import shown_time


def of_reason(event: CancelRequested | PauseRequested) -> str:
    """Return the reason, if somebody gave one."""
    return event.reason


def of_end(event: Cancelled | Discarded) -> str:
    """Return why a job ended, and how many of its children were still open."""
    return ": ".join(filter(None, (_open_ones(event.open_children), event.reason)))


def of_completed(event: Completed) -> str:
    """Return how a job completed."""
    parts = [of_attempt(event.attempt), _open_ones(event.open_children)]
    if event.unvisited:
        parts.append(f"recorded steps that it did not ask for: {', '.join(event.unvisited)}")
    if event.successor:
        parts.append(f"goes on as {event.successor}")
    return ", ".join(filter(None, parts))


def of_dead_letter(event: DeadLettered) -> str:
    """Return why a job cannot be finished."""
    parts = (event.reason, _open_ones(event.open_children))
    error = "" if event.error is None else f": {error_words(event.error)}"
    return ", ".join(filter(None, parts)) + error


def _open_ones(count: int) -> str:
    return f"{count:,} of its children open" if count else ""


def of_queued(event: Queued) -> str:
    """Return why a job may be taken."""
    return f"{_ready(event)}, by grant {event.grant}" if event.grant else _ready(event)


def of_held(event: Held) -> str:
    """Return why a job waits for its limits, and for which."""
    ready, limits = _ready(event), ", ".join(event.limits)
    return f"{ready}{', ' if ready else ''}for {limits}" if limits else ready


def _ready(event: Queued | Held) -> str:
    parts = [] if event.cause == "new" else [event.cause, f"attempt {event.attempt} is next"]
    if event.tenant and event.cause == "new":
        parts.append(f"tenant {event.tenant}")
    if event.priority != "normal":
        parts.append(f"priority {event.priority}")
    if event.cause == "new":
        parts += _family(event)
    if event.joined is not None:
        parts.append(of_joined(event.joined))
    if event.signal is not None:
        parts.append(of_signal(event.signal))
    is_changed = event.cause not in {"new", "admitted", "retried"}
    if is_changed and (event.input is not NO_VALUE or event.input_ref is not None):
        parts.append("new input")
    return ", ".join(parts) + (f": {event.reason}" if event.reason else "")


def _family(event: Queued | Held | Scheduled) -> Iterator[str]:
    if event.version:
        yield f"version {event.version}"
    if event.member is not None:
        yield f"item {event.member.item:,} of step {event.member.step} of {event.member.job}"
    if event.rerun_of is not None:
        why = f" ({event.rerun_of.reason})" if event.rerun_of.reason else ""
        yield f"rerun of {event.rerun_of.job} {event.rerun_of.words}{why}"


def of_scheduled(event: Scheduled) -> str:
    """Return when a job is due."""
    said = ["moved there"] if event.prev else [f"tenant {event.tenant}"] if event.tenant else []
    said = [f"due at {shown_time(event.run_at)}", *said, *_family(event)]
    return f"{', '.join(said)}{f': {event.reason}' if event.reason else ''}"


def error_words(error: ErrorInfo) -> str:
    """Return an error as a person reads it in one line: its type, and its message if it has one."""
    if error.sealed:
        return f"{error.type} in {error.where}" if error.where else error.type
    return f"{error.type}: {error.message}" if error.message else error.type


def of_attempt(attempt: int, rest: str = "", *, until: datetime | None = None) -> str:
    """Return the attempt that an event is about, and the rest of its words."""
    moment = "" if until is None else f" until {shown_time(until)}"
    return f"attempt {attempt}{moment}{f': {rest}' if rest else ''}"


def of_failure(event: Failed) -> str:
    """Return why an attempt failed, and whether that queued its job again."""
    again = ", queued again" if event.offers_again else ""
    return f"attempt {event.attempt}{again}: {error_words(event.error)}"


def of_pause(event: Paused) -> str:
    """Return what a job waits for."""
    for_what = f"for event {event.event}" if event.event else ""
    if event.event == OPERATOR:
        for_what = "until a person resumes it"
    elif event.steps:
        steps = f"for {', '.join(event.steps)}"
        for_what = f"{for_what}, {steps}" if for_what else steps
    said = ", ".join(filter(None, (for_what, _open_ones(event.open_children))))
    reason = f": {event.reason}" if event.reason else ""
    return of_attempt(event.attempt, f"{said}{reason}", until=event.until)


def of_step_started(event: StepStarted) -> str:
    """Return which step begins, and what it does."""
    until = "" if event.until is None else f" until {shown_time(event.until)}"
    if event.order is not None:
        return f"{event.step}: {_ordered(event.order)}{until}"
    if event.kind == "wait":
        return f"{event.step}: waits for signal {event.target}{until}"
    return f"{event.step}: sleeps{until}" if event.kind == "sleep" else f"{_step(event)}{until}"


def _ordered(order: ChildOrder) -> str:
    if order.is_open:
        return "jobs, as many as are added"
    one_task = f" of task {order.task}" if not order.nodes else ""
    limit = f", at most {order.limit:,} at a time" if order.limit else ""
    return f"{order.count:,} {'job' if order.count == 1 else 'jobs'}{one_task}{limit}"


def _step(event: StepStarted | StepCompleted | StepFailed) -> str:
    about = f" {event.target}" if event.target and event.target != event.step else ""
    return f"{event.step} ({event.kind}{about})"


def of_step_end(event: StepCompleted | StepFailed) -> str:
    """Return which step ended, and how."""
    tries = f", try {event.tries}" if event.tries > 1 else ""
    copied = "" if event.copied is None else f", copied from sequence {event.copied.sequence}"
    if isinstance(event, StepCompleted):
        return f"{_step(event)}{tries}{copied}"
    if event.step.endswith("/"):  # a scope of keys, not a step: the event only tells why undoing begins
        return f"undoing begins: {error_words(event.error)}"
    again = "" if event.retry_at is None else f", again at {shown_time(event.retry_at)}"
    return f"{_step(event)}{tries}{again}{copied}: {error_words(event.error)}"


def of_joined(fact: Joined | JoinFact) -> str:
    """Return which children of a step are counted and opened."""
    parts = [
        f"{sum(last - first + 1 for first, last in ranges):,} {what}"
        for ranges, what in ((fact.completed, "completed"), (fact.failed, "failed"), (fact.opened, "opened"))
        if ranges
    ]
    parts += [] if fact.count is None else [f"{fact.count:,} in all"]
    if isinstance(fact, Joined) and fact.copied is not None:
        parts[0] += f" in run {fact.copied.job} (copied)"
    return f"children of {fact.step}{': ' if parts else ''}{', '.join(parts)}"


def of_signal(fact: Signalled | SignalFact) -> str:
    """Return which message a run was sent."""
    return f"signal {fact.name}{f' ({fact.id})' if fact.id else ''}"


def of_refused_signal(event: SignalRefused) -> str:
    """Return which message a run cannot read, and why."""
    sent = f"signal {event.name}{f' ({event.id})' if event.id else ''} of sequence {event.signal}"
    return f"{event.step}: {sent}{f': {event.reason}' if event.reason else ''}"


def of_progress(event: Progressed) -> str:
    """Return how far an attempt is."""
    of = "" if event.total is None else f" of {event.total:g}"
    return f"{event.done:g}{of} {event.note}".strip()
