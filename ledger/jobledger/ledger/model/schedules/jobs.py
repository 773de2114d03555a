"""The jobs that an event of a schedule asks for: their ids and their orders. Pure.

A process that appends such an event makes its jobs right after it, and the next process that acts on the schedule makes
missing ones. Ids follow from the event, so that no job is made twice.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.schedules.definition import OVERLAP_MODES, Definition, overlap_limit
from jobledger.ledger.model.schedules.events import Backfilled, ScheduleEvent, Ticked, Triggered
from jobledger.ledger.model.subjects import HOOKS_TASK, JobRef

_ID_CHARACTERS_MAX: Final = 64
_DIGEST_CHARACTERS: Final = 40
_SECONDS_LENGTH: Final = len("YYYYMMDDThhmmss")


def tick_name(schedule: str, tick: datetime) -> str:
    """Return `<schedule>-<YYYYMMDDThhmmssZ>`, the value of the field `tick` of the tick's job.

    Six digits of microseconds come before the `Z` if they are not 0, as the moment of `at` may have them.
    """
    utc = tick.astimezone(UTC)
    return f"{schedule}-{utc:%Y%m%dT%H%M%S}{f'{utc:%f}' if utc.microsecond else ''}Z"


def tick_moment(schedule: str, tick: str) -> datetime:
    """Return the moment in a tick's name, which `tick_name` made."""
    digits = tick.removeprefix(f"{schedule}-").rstrip("Z")
    return datetime.strptime(
        digits, "%Y%m%dT%H%M%S%f" if len(digits) > _SECONDS_LENGTH else "%Y%m%dT%H%M%S"
    ).replace(tzinfo=UTC)


def tick_job_id(schedule: str, tick: datetime) -> str:
    """Return the id of a tick's job: the tick's name, or if that is too long, `t` and part of its sha256."""
    return _job_id(tick_name(schedule, tick))


def manual_job_id(schedule: str, stream_sequence: int) -> str:
    """Return the id of the job that `triggered` at this stream sequence asks for."""
    return _job_id(f"{schedule}-manual-{stream_sequence}")


def hooks_task(schedule: str) -> str:
    """Return the task of the jobs that call a schedule's hooks."""
    return f"{HOOKS_TASK}{schedule}"


def hooks_job_id(job_id: str) -> str:
    """Return the id of the job that calls the hooks of the job of this id."""
    return _job_id(f"{job_id}-hooks")


def jobs_of(event: ScheduleEvent, stream_sequence: int) -> list[Enqueue]:
    """Return the jobs that an event asks for, the oldest tick first.

    For a schedule with hooks these jobs call the hooks, and then make the ticks' jobs.
    """
    match event:
        case Ticked(tick=datetime() as tick, skipped=""):
            limit = overlap_limit(event.schedule) if event.definition.overlap in OVERLAP_MODES else ""
            return [_of_tick(event, each, limit) for each in event.ticks or (tick,)]
        case Backfilled(ticks=ticks):
            return [_of_tick(event, each) for each in ticks]
        case Triggered():
            return [_job(event, event.at, f"{event.schedule}-manual-{stream_sequence}")]
        case _:
            return []


def own_ids(event: Backfilled) -> dict[str, str]:
    """Return the id of each tick's own job, by the id of the job from `jobs_of`; they differ only with hooks."""
    own = [tick_job_id(event.schedule, tick) for tick in event.ticks]
    return {hooks_job_id(each) if event.definition.hooks else each: each for each in own}


def order_of(definition: Definition, tick: str, limit: str = "") -> Order:
    """Return the order of a tick's job; `limit`: the limit that keeps jobs of ticks apart, "" for none."""
    limits = definition.order.limits
    return replace(definition.order, tick=tick, limits=tuple(sorted({*limits, limit})) if limit else limits)


def _of_tick(event: ScheduleEvent, tick: datetime, limit: str = "") -> Enqueue:
    return _job(event, tick, tick_name(event.schedule, tick), limit)


def _job(event: ScheduleEvent, moment: datetime, tick: str, limit: str = "") -> Enqueue:
    definition, job_id = event.definition, _job_id(tick)
    trace = "" if isinstance(event, Ticked) else event.trace  # the trace of the caller who asked for the job
    if not definition.hooks:
        ref = JobRef(queue=definition.queue, job_id=job_id)
        order = replace(order_of(definition, tick, limit), trace=trace)
        return Enqueue(ref=ref, task=definition.task, order=order)
    told = {"at": moment.astimezone(UTC), "job_id": job_id, "tick": tick, "limit": limit}
    text = msgspec.Raw(msgspec.json.encode(told))
    order = replace(definition.order, input=text, input_ref=None, limits=(), tick="", trace=trace)
    ref = JobRef(queue=definition.queue, job_id=hooks_job_id(job_id))
    return Enqueue(ref=ref, task=hooks_task(event.schedule), order=order)


def _job_id(name: str) -> str:
    if len(name) <= _ID_CHARACTERS_MAX:
        return name
    return f"t{hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"
