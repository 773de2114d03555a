"""Schedules: when each ticks next, and what its ticks came to."""

from __future__ import annotations

import msgspec

from jobledger.admin.schedules import list_schedules
from jobledger.gateway.pages.page import Looked, When
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.projections.tables.schedules import ScheduleRow, read_schedules


class ScheduleLine(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule."""

    row: ScheduleRow
    in_code: str  #: `yes`, `no` or `unknown`
    is_late: bool  #: its tick was due more than a minute ago and has not come


class Schedules(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    schedules: list[ScheduleLine]


async def schedules(looked: Looked, *, query: When) -> Schedules:
    """Return the schedules by name; what code the workers had at a past moment is not known."""
    past = query.as_of()
    listed = [] if past is not None else await list_schedules(looked.gateway.rows)
    async with looked.gateway.projection.opened(past) as view:
        shell = await surround(looked, view, past)
        found = [
            ScheduleLine(row=each.row, in_code=each.in_code, is_late=each.is_late) for each in listed
        ] or [
            ScheduleLine(row=row, in_code="unknown", is_late=False)
            for row in read_schedules(view.store.select)
            if row.status != "removed"
        ]
        return Schedules(
            shell=shell,
            schedules=[each for each in found if looked.principal.may("view", each.row.queue, each.row.task)],
        )
