"""Schedules: the next tick of each, and the jobs of its ticks."""

from __future__ import annotations

import msgspec

from jobledger.admin.schedules import list_schedules
from jobledger.gateway.pages.page import Viewer, When
from jobledger.gateway.pages.shell import PageFacts, opened
from jobledger.projections.tables.schedules import ScheduleRow, TickRow, last_ticks, read_schedules


class ScheduleLine(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule."""

    row: ScheduleRow
    in_code: str  #: `yes`, `no` or `unknown`
    is_late: bool  #: True if its tick is overdue by more than a minute
    ticks: list[TickRow]  #: the newest ticks with jobs, the oldest first


class Schedules(PageFacts, frozen=True, kw_only=True):
    """The page."""

    schedules: list[ScheduleLine]


async def schedules(looked: Viewer, *, query: When) -> Schedules:
    """Return the schedules by name; for a past moment the code of the workers is not known."""
    past = query.as_of()
    listed = [] if past is not None else await list_schedules(looked.gateway.rows)
    async with opened(looked, past) as (view, shell):
        found = [(each.row, each.in_code, each.is_late) for each in listed] or [
            (row, "unknown", False) for row in read_schedules(view.store.select) if row.status != "removed"
        ]
        may = looked.principal.may
        return Schedules(
            shell=shell,
            schedules=[
                ScheduleLine(
                    row=row,
                    in_code=in_code,
                    is_late=is_late,
                    ticks=[
                        each
                        for each in reversed(last_ticks(view.store.select, row.name))
                        if may("view", each.queue, each.task)
                    ],
                )
                for row, in_code, is_late in found
                if may("view", row.queue, row.task)
            ],
        )
