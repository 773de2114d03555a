"""The aggregate `schedule`: its name in subjects, its texts, and the rules of a check of the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from jobledger.ledger.model.aggregate import Aggregate, ArchiveBound, Broken
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.forms import in_form
from jobledger.ledger.model.schedules.events import (
    Backfilled,
    Carried,
    Declared,
    Paused,
    Removed,
    Resumed,
    Schedule,
    ScheduleEvent,
    Ticked,
    Triggered,
    evolve,
)
from jobledger.ledger.model.schedules.jobs import tick_job_id
from jobledger.ledger.model.schedules.ticks import Spec, is_tick
from jobledger.ledger.model.times import shown_time

#: The tolerance for ticks that another machine planned with other time zone rules: half an hour or an hour.
_RULES_APART: Final = tuple(timedelta(minutes=minutes) for minutes in (0, -60, 60, -30, 30))


def _words(event: ScheduleEvent) -> str:
    match event:
        case Declared(definition=definition):
            spec = definition.spec
            otherwise = "on demand" if spec.on_demand else f"at {spec.at}"
            when = spec.cron or (f"every {spec.every_s} s" if spec.every_s else otherwise)
            zone = f" in {spec.timezone}" if spec.cron else ""
            return f"{definition.task} {when}{zone}, by {definition.source}"
        case Ticked(skipped="", job=job, missed=missed):
            return f"job {job}" + (f", {missed:,} missed" if missed else "")
        case Ticked(skipped=why):
            return f"no job: {'the last one runs' if why == 'running' else 'it was missed'}"
        case Backfilled(ticks=ticks):
            return f"{len(ticks):,} ticks, by {event.by}"
        case Carried(through=through):
            return f"as it was, for an archive run up to {through}"
        case (
            Triggered(reason=reason) | Paused(reason=reason) | Resumed(reason=reason) | Removed(reason=reason)
        ):
            return f"by {event.by}" + (f": {reason}" if reason else "")


def _check(before: Schedule | None, event: ScheduleEvent, _stream_sequence: int) -> Iterator[Broken]:
    """Check rules of every version: ticks grow, belong to the spec, and are counted one by one."""
    kind = SCHEDULE.type_of(event)
    if (before is None or before.removed) and not isinstance(event, Declared):
        yield "transition", f"`{kind}` of a schedule that nobody declared"
    known = before or Schedule(definition=event.definition)
    if isinstance(event, Carried):
        said = evolve(None, event, _stream_sequence)
        if said != in_form(event.form, known, said):
            yield "archive", "`carried` does not say what the events before it add up to"
    elif isinstance(event, Ticked):
        yield from _check_tick(known, event)
    elif _ticks_told(event) != _ticks_told(known) and not _forgets_future(known, event):
        yield "tick", f"`{kind}` says of the ticks before it what they do not say"
    if event.next_tick is not None and event.tick is not None and event.next_tick <= event.tick:
        yield "tick", f"the next tick {shown_time(event.next_tick)} is not after {shown_time(event.tick)}"


def _ticks_told(fields: Schedule | ScheduleEvent) -> tuple[datetime | None, int, datetime | None, int]:
    return fields.tick, fields.number, fields.ran, fields.runs


def _forgets_future(before: Schedule, event: ScheduleEvent) -> bool:
    """Return whether an event plans the schedule from now on, because a wrong clock had made a later tick."""
    if before.tick is None or before.tick <= event.at or not isinstance(event, Declared | Resumed):
        return False
    return _ticks_told(event) == (None, before.number, before.ran, before.runs)


def _check_tick(before: Schedule, event: Ticked) -> Iterator[Broken]:
    tick = event.tick
    if tick is None or (before.tick is not None and tick <= before.tick):
        yield "tick", "the tick is not after the one before it: ticks must grow"
        return
    if event.number != before.number + 1:
        yield "tick", f"tick number {event.number} follows number {before.number}"
    ticks = event.ticks or (tick,)
    if before.next_tick is None:
        yield "tick", f"a tick at {shown_time(tick)} of a schedule that had none to come"
    elif ticks[0] < before.next_tick:
        yield "tick", f"a tick at {shown_time(ticks[0])}, and {shown_time(before.next_tick)} was the next one"
    for each in ticks:
        if each != before.next_tick and not _is_of(event.definition.spec, each):
            yield "tick", f"{shown_time(each)} is no tick of {event.definition.spec.cron or 'its interval'}"
            break
    if list(ticks) != sorted(set(ticks)) or ticks[-1] != tick:
        yield "tick", "the ticks that it catches up do not grow up to its own"
    if event.job != ("" if event.skipped else tick_job_id(event.schedule, tick)):
        yield "tick", f"its job {event.job!a} is not that of its tick"


def _is_of(spec: Spec, tick: datetime) -> bool:
    shifts = _RULES_APART if spec.timezone != "UTC" else _RULES_APART[:1]
    try:
        return any(is_tick(spec, tick + shift) for shift in shifts)
    except (
        InvalidInputError,
        OverflowError,
    ):  # an unknown zone or the end of time: no statement is possible
        return True


def _keeps(_event: ScheduleEvent, _stream_sequence: int) -> ArchiveBound | None:
    """Keep nothing: an archive run first carries over every schedule that was not removed."""
    return None


SCHEDULE: Aggregate[ScheduleEvent, Schedule] = Aggregate(
    "schedule",
    ("schedule",),
    ScheduleEvent,
    state=Schedule,
    evolve=evolve,
    words=_words,
    check=_check,
    keeps=_keeps,
)
