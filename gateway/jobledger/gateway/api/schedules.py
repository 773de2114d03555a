"""Schedules: their ticks and jobs; also a request that makes due ticks, for platforms where no worker runs."""

from __future__ import annotations

from typing import Final

import msgspec

from jobledger.admin.objects.schedules import (
    ScheduleListed,
    ScheduleShown,
    schedule_listed,
    schedule_shown,
)
from jobledger.admin.rows import AnswerPosition
from jobledger.admin.schedules import DueTick, listed_in, shown_in, tick_due
from jobledger.gateway.api.pagination import READ, looking
from jobledger.gateway.api.parameters import Look
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import endpoint_maker
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.model.errors import ScheduleNotFoundError
from jobledger.ledger.model.subjects import check_token


class SchedulesQuery(Look, frozen=True, kw_only=True):
    """A filter of schedules."""

    removed: bool = False  #: include removed schedules


class Schedules(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules, by name."""

    items: list[ScheduleListed]
    position: AnswerPosition


class HandledTicks(msgspec.Struct, frozen=True, kw_only=True):
    """The ticks that were due and that this request made."""

    items: list[DueTick]
    left: bool  #: True: more ticks are due than one request makes; send another


async def list_schedules(asked: ApiRequest, *, query: SchedulesQuery) -> Schedules:
    """List the schedules: their times, the next tick, and the last run."""
    workers = await asked.gateway.ledger.leases.all()
    async with looking(asked, query) as (view, place):
        found = listed_in(view, workers, removed=query.removed)
    may = asked.principal.may
    seen = [each for each in found if may("view", each.row.queue, each.row.task)]
    return Schedules(items=list(map(schedule_listed, seen)), position=place)


async def show_schedule(asked: ApiRequest, name: str, *, query: Look) -> ScheduleShown:
    """Show one schedule: its definition, its ticks, and the newest failure among its jobs."""
    check_token("schedule name", name)
    workers = await asked.gateway.ledger.leases.all()
    async with looking(asked, query) as (view, _):
        found = shown_in(view, workers, name)
    row = found.listed.row
    asked.principal.require_about("view", row.queue, row.task, ScheduleNotFoundError(name))
    may = asked.principal.may
    shown = schedule_shown(found)  # ticks from before a change may be of another queue or task
    seen = [each for each in shown.ticks if may("view", each.queue, each.task)]
    return msgspec.structs.replace(shown, ticks=seen)


async def handle_schedules(asked: ApiRequest) -> HandledTicks:
    """Make the ticks that are due, each once even if others make them too: for platforms without a constant worker."""
    async with looking(asked, Look()) as (view, _):
        rows = [row.row for row in listed_in(view, (), removed=False)]
    may = asked.principal.may
    seen = [row for row in rows if may("run", row.queue, row.task)]
    with acting_for(None):  # the gateway is the worker
        ticked, left = await tick_due(asked.gateway.ledger, seen)
    return HandledTicks(items=ticked, left=left)


_ONE: Final = "/v1/schedules/{name}"


_endpoint: Final = endpoint_maker("schedules")

_LIST: Final = {"permission": "view", "query": SchedulesQuery, "problems": READ}
_SHOW: Final = {"permission": "view", "query": Look, "problems": (*READ, "NOT_FOUND")}
_HANDLE: Final = {"permission": "run", "problems": ("LEDGER_FULL", "PROJECTION_BEHIND")}

ENDPOINTS: Final = (
    _endpoint("GET", "/v1/schedules", list_schedules, "List the schedules", Schedules, **_LIST),
    _endpoint(
        "POST",
        "/v1/schedules/handle",
        handle_schedules,
        "Make the ticks that are due",
        HandledTicks,
        **_HANDLE,
    ),
    _endpoint("GET", _ONE, show_schedule, "Show a schedule", ScheduleShown, **_SHOW),
)
