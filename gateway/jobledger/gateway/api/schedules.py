"""Schedules: when they tick, what came of it, and what they are told; also their due ticks, for who runs no worker."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.admin.graphs import require_of_nodes
from jobledger.admin.objects.schedules import (
    ScheduleListed,
    ScheduleNow,
    ScheduleShown,
    schedule_listed,
    schedule_now,
    schedule_shown,
)
from jobledger.admin.rows import AnswerPosition
from jobledger.admin.schedules import DueTick, like_unloaded, listed_in, shown_in, tick_due
from jobledger.gateway.api.pagination import READ, looking
from jobledger.gateway.api.parameters import Look, aware
from jobledger.gateway.http.asked import ApiRequest
from jobledger.gateway.http.endpoint import Endpoint
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.access.current_authority import acting_for
from jobledger.ledger.graphs.verbs import GraphRun
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import ScheduleNotFoundError
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.schedules.definition import WINDOW_S_DEFAULT, Catchup, Overlap
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.schedules.verbs import When


class SchedulesQuery(Look, frozen=True, kw_only=True):
    """Which schedules."""

    removed: bool = False  #: also those that were removed


class Schedules(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules, by name."""

    items: list[ScheduleListed]
    position: AnswerPosition


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a schedule does: exactly one of `cron`, `every_s`, `at` and `on_demand` says when."""

    task: str = ""
    graph: str = ""  #: instead of a task: a stored graph, whose newest version is run with `input` each time
    input: dict[str, Any] = {}
    cron: str = ""  #: five fields: minute, hour, day of the month, month, day of the week
    every_s: int = 0  #: tick at each whole multiple of this time, counted from 1970
    at: datetime | None = None  #: tick once
    on_demand: bool = False  #: no ticks: `trigger` makes its jobs
    timezone: str = "UTC"  #: whose clocks `cron` means
    overlap: Overlap = "skip"  #: what happens while the job of the tick before has not ended
    catchup: Catchup = "latest"  #: which missed ticks get a job
    window_s: int = WINDOW_S_DEFAULT  #: with `catchup: all`: how far back
    jitter_s: int = 0  #: each tick is due up to this much later
    ends_at: datetime | None = None  #: no tick after this
    queue: str | None = None
    priority: Priority | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    tenant: str | None = None
    correlation: str | None = None
    metadata: dict[str, str] | None = None
    limits: tuple[str, ...] = ()
    replace: bool = False  #: change a schedule of this name that does something else


class ScheduleMade(ScheduleNow, frozen=True, kw_only=True):
    """A schedule that was declared."""

    task: str
    queue: str  #: of its jobs
    task_known: bool  #: whether a worker ever had the task


class HandledTicks(msgspec.Struct, frozen=True, kw_only=True):
    """The ticks that were due and that this request made."""

    items: list[DueTick]
    left: bool  #: more were due than one request makes: ask again


async def list_schedules(asked: ApiRequest, *, query: SchedulesQuery) -> Schedules:
    """List the schedules: when they are due next, when they ran last, and when they tick."""
    workers = await asked.gateway.ledger.leases.all()
    async with looking(asked, query) as (view, place):
        found = listed_in(view, workers, removed=query.removed)
    may = asked.principal.may
    seen = [each for each in found if may("view", each.row.queue, each.row.task)]
    return Schedules(items=list(map(schedule_listed, seen)), position=place)


async def show_schedule(asked: ApiRequest, name: str, *, query: Look) -> ScheduleShown:
    """Show one schedule: all that it was told, its ticks, and the newest failure among its jobs."""
    check_token("schedule name", name)
    workers = await asked.gateway.ledger.leases.all()
    async with looking(asked, query) as (view, _):
        found = shown_in(view, workers, name)
    row = found.listed.row
    asked.principal.require_about("view", row.queue, row.task, ScheduleNotFoundError(name))
    may = asked.principal.may
    shown = schedule_shown(found)  # its ticks may be of another queue or task, from before it was changed
    seen = [each for each in shown.ticks if may("view", each.queue, each.task)]
    return msgspec.structs.replace(shown, ticks=seen)


async def put_schedule(asked: ApiRequest, name: str, *, body: NewSchedule) -> ScheduleMade:
    """Declare a schedule; one that does the same already stays as it is."""
    ledger = asked.gateway.ledger
    given = [each for each in ("cron", "every_s", "at", "on_demand") if getattr(body, each)]
    if len(given) != 1:
        raise ProblemError("BAD_REQUEST", "say when it ticks: give one of cron, every_s, at and on_demand")
    like, is_known = await _like(asked, body)
    check_token("schedule name", name)
    there = (await ledger.schedules.read(name)).schedule
    if there is not None:
        of = there.definition
        asked.principal.require_about("manage", of.queue, of.task, ScheduleNotFoundError(name))
    when: When = {
        "cron": body.cron,
        "every_s": body.every_s,
        "at": aware("at", body.at),
        "on_demand": body.on_demand,
        "timezone": body.timezone,
        "overlap": body.overlap,
        "catchup": body.catchup,
        "window_s": body.window_s,
        "jitter_s": body.jitter_s,
        "ends_at": aware("ends_at", body.ends_at),
    }
    by = asked.principal.name
    schedule = await ledger.schedules.declare(name, like, replace=body.replace, by=by, **when)
    now = msgspec.structs.asdict(schedule_now(name, schedule, ledger.clock.now()))
    definition = schedule.definition
    return ScheduleMade(**now, task=definition.task, queue=definition.queue, task_known=is_known)


async def _like(asked: ApiRequest, body: NewSchedule) -> tuple[Enqueue, bool]:
    """Return what would enqueue one of a schedule's jobs, and whether a worker has had its task. Raises: ProblemError."""
    ledger, principal = asked.gateway.ledger, asked.principal
    if bool(body.task) == bool(body.graph):
        raise ProblemError("BAD_REQUEST", "say what it runs: give either task, or graph")
    chosen = {each: getattr(body, each) for each in _ORDER}
    if not body.graph:
        principal.require("manage", body.queue, body.task)
        like, is_known = await like_unloaded(ledger, body.task, chosen, body.input)
        principal.require("manage", like.ref.queue)
        return like, is_known
    if any(value is not None and value != () for value in chosen.values()):
        raise ProblemError("BAD_REQUEST", "the nodes of a graph say how their jobs are tried: leave that out")
    require_of_nodes(principal, "manage", body.graph, await ledger.graphs.get(body.graph))
    return await ledger.schedules.like(GraphRun(body.graph, body.input)), True


async def handle_schedules(asked: ApiRequest) -> HandledTicks:
    """Make the ticks that are due, once whoever else makes them: for platforms where no worker runs all the time."""
    async with looking(asked, Look()) as (view, _):
        rows = [row.row for row in listed_in(view, (), removed=False)]
    may = asked.principal.may
    seen = [row for row in rows if may("run", row.queue, row.task)]
    with acting_for(None):  # the gateway is the worker
        ticked, left = await tick_due(asked.gateway.ledger, seen)
    return HandledTicks(items=ticked, left=left)


_ORDER: Final = (
    "queue",
    "priority",
    "max_attempts",
    "timeout_s",
    "tenant",
    "correlation",
    "metadata",
    "limits",
)
_ONE: Final = "/v1/schedules/{name}"


def _endpoint(method: Any, path: str, handler: Any, summary: str, returns: Any, **more: Any) -> Endpoint:
    return Endpoint(
        method=method, path=path, handler=handler, summary=summary, tag="schedules", returns=returns, **more
    )


_LIST: Final = {"permission": "view", "query": SchedulesQuery, "problems": READ}
_SHOW: Final = {"permission": "view", "query": Look, "problems": (*READ, "NOT_FOUND")}
_HANDLE: Final = {"permission": "run", "problems": ("LEDGER_FULL", "PROJECTION_BEHIND")}
_PUT: Final = {
    "permission": "manage",
    "body": NewSchedule,
    "problems": ("DUPLICATE", "JOB_INVALID_INPUT", "PAYLOAD_TOO_LARGE", "LEDGER_FULL", "LEDGER_BUSY"),
}

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
    _endpoint("PUT", _ONE, put_schedule, "Declare a schedule", ScheduleMade, **_PUT),
)
