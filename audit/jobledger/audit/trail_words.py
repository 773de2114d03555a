"""The words of a trail: what happened with an event, and what the job waits for after it.

Pure. Texts of users are cut, and made safe to show by whoever shows them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, assert_never

from jobledger.ledger.model.events import (
    NO_VALUE,
    Cancelled,
    CancelRequested,
    Carried,
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
    Paused,
    Progressed,
    Queued,
    Scheduled,
    Snoozed,
    Started,
)
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.times import as_utc

_WORDS_MAX: Final = 300
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400

_DEAD: Final = {
    "exhausted": "its attempts are used up",
    "max_deliver": "it was delivered again and again without an outcome",
    "rejected": "given up without another try",
    "invalid": "its input does not fit its task",
}
_QUEUED: Final = {
    "due": "due, so queued",
    "admitted": "admitted by its limits, so queued",
    "retried": "queued again for attempt {attempt}",
    "requeued": "requeued for attempt {attempt}",
    "resumed": "resumed, queued for attempt {attempt}",
    "interrupted": "queued again for attempt {attempt}",
    "redispatched": "dispatched anew for attempt {attempt}",
    "carried": "handed out by a fresh event, as it is",
}


def happened(before: Job | None, event: JobEvent, at: datetime) -> str:  # noqa: C901, PLR0911, PLR0912 - one flat match over the facts
    """Say what happened with `event`, stored at `at`; `before` is the job until then, None before the first."""
    running = None if before is None else before.running_attempt
    ended = "" if running is None else f"attempt {running.number} ends: "
    match event:
        case Scheduled():
            return f"scheduled in queue {event.queue}{_order(event)}"
        case Held():
            return f"held in queue {event.queue}{_order(event)}"
        case Queued():
            return _queued(before, event, at)
        case Started(attempt=attempt, worker=worker):
            return f"attempt {attempt} starts on worker {worker}"
        case Completed(attempt=attempt):
            return f"attempt {attempt} completed"
        case Failed(attempt=attempt, error=error):
            return f"attempt {attempt} failed: {_error(error)}"
        case Interrupted(attempt=attempt, reason=reason):
            return f"attempt {attempt} was given back unfinished and does not count{_because(reason)}"
        case Snoozed(attempt=attempt):
            return f"attempt {attempt} asked to run again later and does not count"
        case Paused(attempt=attempt):
            return f"attempt {attempt} paused the job and does not count"
        case Checkpointed(attempt=attempt):
            return f"attempt {attempt} kept a checkpoint"
        case Progressed(attempt=attempt, done=done, total=total, note=note):
            of = "" if total is None else f" of {total:g}"
            return f"attempt {attempt} is at {done:g}{of}{_because(note)}"
        case CancelRequested(reason=reason):
            return f"asked to end{_because(reason)}"
        case Cancelled(reason=reason):
            return f"{ended}cancelled{_because(reason)}"
        case DeadLettered(reason=reason, error=error):
            known = error is None or (before is not None and before.error == error)
            last = "" if error is None or known else f" ({_error(error)})"
            return f"dead letter: {_DEAD[reason]}{last}"
        case Discarded(reason=reason):
            return f"discarded{_because(reason)}"
        case Fenced(attempt=attempt, worker=worker, outcome=outcome):
            return f"`{outcome}` of attempt {attempt} on worker {worker} came too late and was refused"
        case Carried(through=through):
            return f"carried over, since events up to stream sequence {through} go into an archive"
        case _:
            assert_never(event)


def _order(event: Scheduled | Held | Queued) -> str:
    return "" if event.priority == "normal" else f" with priority {event.priority}"


def _queued(before: Job | None, event: Queued, at: datetime) -> str:
    if before is None or event.cause == "new":
        return f"queued in queue {event.queue}{_order(event)}"
    edited = event.input is not NO_VALUE or event.input_ref is not None
    words = _QUEUED[event.cause].format(attempt=event.attempt)
    changes = [f"priority {event.priority}"] if event.priority != before.priority else []
    changes += ["a new input"] if edited else []
    words += f" with {' and '.join(changes)}" if changes else ""
    return f"{words}{_punctual(before, at)}{_because(event.reason)}"


def _punctual(before: Job, at: datetime) -> str:
    """Say how far from its moment a timed wait ended."""
    if before.due_at is None:
        return ""
    late_s = (at - as_utc(before.due_at)).total_seconds()
    return f", {span(abs(late_s))} {'after' if late_s >= 0 else 'before'} its time"


def waits_for(after: Job, event: JobEvent) -> str | None:  # noqa: PLR0911 - one flat match over the states
    """Say what the job waits for once `event` is in; None when it runs or is over, or goes on in the same batch."""
    match after.state:
        case JobState.QUEUED:
            return f"a worker of queue {after.queue}"
        case JobState.SCHEDULED:
            return _time(after, event)
        case JobState.HELD:
            return f"its limits ({_cut(', '.join(after.limits)) or 'none named'}) to admit it"
        case JobState.RETRY_WAIT:
            if after.due_at is None or (
                isinstance(event, Failed) and as_utc(after.due_at) <= as_utc(event.at)
            ):
                return None  # the next event of the batch decides
            return _backoff(after.due_at, event) if isinstance(event, Failed) else _time(after, event)
        case JobState.PAUSED:
            asked = event.event if isinstance(event, Paused) else ""
            named = f"event {_cut(asked)}" if asked else "an event"
            return named if after.due_at is None else f"{named}, or {_time(after, event)}"
        case JobState.RUNNING:
            asked_to_end = isinstance(event, CancelRequested) and after.running_attempt is not None
            return (
                f"worker {after.attempts[-1].worker} to end attempt {len(after.attempts)}"
                if asked_to_end
                else None
            )
        case JobState.DEAD_LETTERED:
            return "a person"
        case _:
            return None


def _time(after: Job, event: JobEvent) -> str:
    if after.due_at is None:
        return "no time that is known"
    return f"its time in {span(_seconds_to(after.due_at, event))}, at {_utc(after.due_at)}"


def _backoff(due_at: datetime, event: JobEvent) -> str:
    return f"its backoff of {span(_seconds_to(due_at, event))}, until {_utc(due_at)}"


def _seconds_to(due_at: datetime, event: JobEvent) -> float:
    """Return how far a moment lies ahead by the appender's clock, which set it."""
    return max(0.0, (as_utc(due_at) - as_utc(event.at)).total_seconds())


def _utc(at: datetime) -> str:
    return as_utc(at).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + " UTC"


def _error(error: ErrorInfo) -> str:
    return _cut(f"{error.type}: {error.message}" if error.message else error.type)


def _because(reason: str) -> str:
    return f": {_cut(reason)}" if reason else ""


def _cut(text: str) -> str:
    return text if len(text) <= _WORDS_MAX else f"{text[: _WORDS_MAX - 1]}…"


def span(seconds: float) -> str:
    """Return a time span in the units that fit: `12 ms`, `3.4 s`, `5 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return _in_units(int(seconds), (_MINUTE_S, "min"), (1, "s"))
    if seconds < _DAY_S:
        return _in_units(int(seconds), (_HOUR_S, "h"), (_MINUTE_S, "min"))
    return _in_units(int(seconds), (_DAY_S, "d"), (_HOUR_S, "h"))


def _in_units(seconds: int, large: tuple[int, str], small: tuple[int, str]) -> str:
    whole, rest = divmod(seconds, large[0])
    parts = rest // small[0]
    return f"{whole} {large[1]}" + (f" {parts} {small[1]}" if parts else "")


def count(number: int, what: str) -> str:
    """Return `1 attempt`, `2 attempts`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
