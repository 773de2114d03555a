"""Schedules as objects. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from jobledger.admin.schedules import InCode, Listed, Shown
from jobledger.ledger.model.schedules.events import Schedule
from jobledger.projections.tables.schedules import LastFailure, ScheduleRow, TickRow


class ScheduleListed(ScheduleRow, frozen=True, kw_only=True):
    """A schedule with what only the present tells of it."""

    in_code: InCode  #: whether the code of a running worker has it
    is_late: bool  #: its tick was due more than a minute ago and has not come


class ScheduleShown(ScheduleListed, frozen=True, kw_only=True):
    """One schedule whole."""

    last_failure: LastFailure | None  #: the newest failure among the jobs of its ticks
    ticks: list[TickRow]  #: the newest that have jobs, the newest first


class ScheduleNow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule after an act."""

    name: str
    paused: bool
    removed: bool
    source: str  #: who declared it: `code` or `operator`
    next_run_at: datetime | None


def schedule_listed(listed: Listed) -> ScheduleListed:
    """Return a schedule of a list."""
    row = msgspec.structs.asdict(listed.row)
    return ScheduleListed(**row, in_code=listed.in_code, is_late=listed.is_late)


def schedule_shown(shown: Shown) -> ScheduleShown:
    """Return one schedule whole."""
    listed = msgspec.structs.asdict(schedule_listed(shown.listed))
    return ScheduleShown(**listed, last_failure=shown.failure, ticks=shown.ticks)


def schedule_now(name: str, schedule: Schedule) -> ScheduleNow:
    """Return a schedule after an act."""
    return ScheduleNow(
        name=name,
        paused=schedule.paused,
        removed=schedule.removed,
        source=schedule.definition.source,
        next_run_at=schedule.next_at,
    )
