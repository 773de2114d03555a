"""Schedules as objects. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from jobledger.admin.schedules import InCode, ScheduleLine, ScheduleView
from jobledger.ledger.model.schedules.events import Schedule
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.model.trace import own_trace, trace_id
from jobledger.ledger.schedules.verbs import next_due
from jobledger.projections.tables.schedules import LastFailure, ScheduleRow, TickRow

#: Whether a schedule has ticks to come, and why it has none.
NextStatus = Literal["active", "paused", "on_demand", "ended"]


class ScheduleListed(ScheduleRow, frozen=True, kw_only=True):
    """A schedule with facts that are known only of the present."""

    in_code: InCode  #: whether the code of a running worker has it
    is_late: bool  #: its tick was due more than a minute ago and has not come


class ScheduleShown(ScheduleListed, frozen=True, kw_only=True):
    """One schedule whole."""

    last_failure: LastFailure | None  #: the newest failure among the jobs of its ticks
    ticks: list[TickRow]  #: the newest ticks that have jobs, the newest first


class ScheduleNow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule after an act."""

    name: str
    paused: bool
    removed: bool
    source: str  #: who declared it: `code` or `operator`
    next_run_at: datetime | None
    at: datetime  #: when this was answered, by the clock of the server


class ScheduleMade(ScheduleNow, frozen=True, kw_only=True):
    """A schedule that was declared."""

    task: str
    queue: str  #: the queue of its jobs
    task_known: bool  #: whether a worker ever had the task


class JobMade(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a schedule has made."""

    id: str
    queue: str
    trace_id: str  #: id of its W3C trace: that of the request, else the job's own


class JobsNamed(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that were made."""

    items: list[JobMade]


class NextTicks(msgspec.Struct, frozen=True, kw_only=True):
    """When the next ticks are due; fewer where the schedule ends, none while it is paused."""

    items: list[datetime]
    status: NextStatus
    timezone: str  #: the time zone of its cron expression
    at: datetime  #: when this was answered, by the clock of the server


def schedule_listed(listed: ScheduleLine) -> ScheduleListed:
    """Return a schedule of a list."""
    row = msgspec.structs.asdict(listed.row)
    return ScheduleListed(**row, in_code=listed.in_code, is_late=listed.is_late)


def schedule_shown(shown: ScheduleView) -> ScheduleShown:
    """Return one schedule whole."""
    listed = msgspec.structs.asdict(schedule_listed(shown.listed))
    return ScheduleShown(**listed, last_failure=shown.failure, ticks=shown.ticks)


def schedule_now(name: str, schedule: Schedule, at: datetime) -> ScheduleNow:
    """Return a schedule after an act."""
    return ScheduleNow(
        name=name,
        paused=schedule.paused,
        removed=schedule.removed,
        source=schedule.definition.source,
        next_run_at=schedule.next_at,
        at=at,
    )


def schedule_made(name: str, schedule: Schedule, at: datetime, *, is_known: bool) -> ScheduleMade:
    """Return a schedule that was declared."""
    now, of = msgspec.structs.asdict(schedule_now(name, schedule, at)), schedule.definition
    return ScheduleMade(**now, task=of.task, queue=of.queue, task_known=is_known)


def job_made(ref: JobRef, trace: str) -> JobMade:
    """Return a job that a schedule has made. `trace`: W3C traceparent of the request, "" without one."""
    trace = trace or own_trace(ref.queue, ref.job_id)
    return JobMade(id=ref.job_id, queue=ref.queue, trace_id=trace_id(trace))


def next_ticks(name: str, schedule: Schedule, count: int, at: datetime) -> NextTicks:
    """Return when the next ticks of a schedule are due."""
    spec, items = schedule.definition.spec, next_due(name, schedule, count)
    return NextTicks(items=items, status=_status(schedule, ticks=bool(items)), timezone=spec.timezone, at=at)


def _status(schedule: Schedule, *, ticks: bool) -> NextStatus:
    if ticks:
        return "active"
    if schedule.paused:
        return "paused"
    return "on_demand" if schedule.definition.spec.on_demand else "ended"
