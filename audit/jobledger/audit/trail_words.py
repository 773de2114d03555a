"""The words of a trail: what an event did, and what the job waits for after it.

Pure. Texts of users are cut, and made safe by the code that shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from jobledger.ledger.model.events import CancelRequested, Failed, JobEvent, Paused, event_type
from jobledger.ledger.model.job import Job, JobState
from jobledger.ledger.model.lifecycle import ORDERS, words
from jobledger.ledger.model.runs.steps import Step
from jobledger.ledger.model.times import as_utc, shown_time

_WORDS_MAX: Final = 300
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400


def happened(before: Job | None, event: JobEvent, at: datetime) -> str:
    """Say what happened with `event`, stored at `at`; `before` is the job until then, None before the first.

    The words of each type of event are in `lifecycle.LIFECYCLE`.
    """
    kind, said = event_type(event).replace("_", " "), _cut(words(event))
    if before is None:
        return f"{kind} in queue {event.queue}{f', {said}' if said else ''}"
    late = _punctual(before, at) if type(event) in ORDERS else ""
    return f"{kind}: {said}{late}" if said else f"{kind}{late}"


def _punctual(before: Job, at: datetime) -> str:
    """Say how far from its moment a timed wait ended."""
    if before.due_at is None:
        return ""
    late_s = (at - as_utc(before.due_at)).total_seconds()
    return f", {span(abs(late_s))} {'after' if late_s >= 0 else 'before'} its time"


def waits_for(after: Job, event: JobEvent) -> str | None:  # noqa: PLR0911 - one flat match over the states
    """Say what the job waits for once `event` is in; None when it runs or is finished, or continues in the same batch."""
    match after.state:
        case JobState.QUEUED:
            return f"a worker of queue {after.queue}"
        case JobState.SCHEDULED:
            return _time(after, event)
        case JobState.HELD:
            return "its limits to admit it"
        case JobState.RETRY_WAIT:
            if after.due_at is None or (
                isinstance(event, Failed) and as_utc(after.due_at) <= as_utc(event.at)
            ):
                return None  # the next event of the batch decides
            return _backoff(after.due_at, event) if isinstance(event, Failed) else _time(after, event)
        case JobState.WAITING | JobState.PAUSED:
            return _pause(after, event)
        case JobState.RUNNING:
            asked_to_end = isinstance(event, CancelRequested) and after.running_attempt is not None
            return (
                f"worker {after.attempts[-1].worker} to end attempt {after.attempts_count}"
                if asked_to_end
                else None
            )
        case JobState.DEAD_LETTERED:
            return "a person"
        case _:
            return None


def _pause(after: Job, event: JobEvent) -> str:
    if after.state is JobState.PAUSED:
        return "a person to resume it"
    asked = event.event if isinstance(event, Paused) else ""
    named = [f"event {_cut(asked)}"] if asked else []
    named += [_step(after.steps[key]) for key in after.awaited if key in after.steps]
    if after.due_at is not None:
        named = [*filter(None, named)] if after.awaited else named or ["an event"]
        return ", or ".join([*named, _time(after, event)])
    return " or ".join(filter(None, named)) or "an event"


def _step(step: Step) -> str:
    """Say what a run waits for at a step; "" if only for a time."""
    if step.order is not None:
        return f"{count(step.open.bit_count(), 'open child', 'open children')} of step {step.key}"
    if step.kind == "wait":
        return f"signal {step.target}"
    return "" if step.kind == "sleep" or step.state == "retrying" else f"step {step.key}"


def _time(after: Job, event: JobEvent) -> str:
    if after.due_at is None:
        return "no time that is known"
    return f"its time in {span(_seconds_to(after.due_at, event))}, at {shown_time(after.due_at)}"


def _backoff(due_at: datetime, event: JobEvent) -> str:
    return f"its backoff of {span(_seconds_to(due_at, event))}, until {shown_time(due_at)}"


def _seconds_to(due_at: datetime, event: JobEvent) -> float:
    """Return how far a moment lies ahead by the appender's clock, which set it."""
    return max(0.0, (as_utc(due_at) - as_utc(event.at)).total_seconds())


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


def first_few(names: Sequence[str], shown_max: int, total: int = 0) -> str:
    """Return the first of some names, and how many more there are: `a, b and 3 more`.

    `total`: how many there are where `names` holds only some of them.
    """
    shown = names[:shown_max]
    more = max(total, len(names)) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def count(number: int, what: str, several: str = "") -> str:
    """Return `1 attempt`, `2 attempts`; `several`: the word for more than one, where it is not that with an `s`."""
    return f"{number} {what}" if number == 1 else f"{number:,} {several or f'{what}s'}"
