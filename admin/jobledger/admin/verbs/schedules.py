"""Schedule verbs: declare, pause, resume, reset and remove a schedule, make jobs of it, and tell its next ticks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final, cast

import msgspec

from jobledger.admin.amounts import age
from jobledger.admin.graphs import require_of_nodes
from jobledger.admin.objects.schedules import (
    JobMade,
    JobsNamed,
    NextTicks,
    ScheduleMade,
    ScheduleNow,
    job_made,
    next_ticks,
    schedule_made,
    schedule_now,
)
from jobledger.admin.schedule_words import next_words, when_words
from jobledger.admin.schedules import like_unloaded
from jobledger.admin.verbs.kit import Declaration, Note, Place, Reason, Verb, option, verb
from jobledger.ledger.graphs.verbs import GraphRun
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import InvalidInputError, ScheduleNotFoundError
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.schedules.definition import WINDOW_S_DEFAULT, Catchup, Overlap
from jobledger.ledger.model.schedules.events import Schedule
from jobledger.ledger.model.schedules.ticks import zone_of
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.options import ORDER_FIELDS
from jobledger.ledger.schedules.verbs import ScheduleVerbs, When

Name = Annotated[str, option("Name of the schedule.", "NAME")]
_CHANGES: Final = ("NOT_FOUND", "LEDGER_FULL", "LEDGER_BUSY")
#: Fields for a job of a task beside its input; nodes of a graph name these themselves.
_ORDER: Final = ("queue", "owner", *ORDER_FIELDS)
_TICKS: Final = ("cron", "every_s", "at", "on_demand")
_NONE: Final = {"paused": "is paused", "on_demand": "makes jobs on demand only", "ended": "has ended"}
_ACT: Final[dict[str, Any]] = {"permission": "manage", "about": "own"}


@verb(
    "schedules add",
    "PUT /v1/schedules/{name}",
    summary="Declare a schedule",
    problems=("DUPLICATE", "JOB_INVALID_INPUT", "PAYLOAD_TOO_LARGE", "LEDGER_FULL", "LEDGER_BUSY"),
    has_own_command=True,  # it may check the input by the code of the task
    **_ACT,
)
class DeclareSchedule(Verb[ScheduleMade], frozen=True, kw_only=True):
    """Declare a schedule; an existing one with the same definition stays as it is.

    Exactly one of `cron`, `every_s`, `at` and `on_demand` says when.
    """

    name: Name
    task: Annotated[str, option("Task of its jobs.", "TASK")] = ""
    graph: Annotated[
        str,
        option(
            "Instead of a task: a stored graph, whose newest version is run with `input` each time.", "NAME"
        ),
    ] = ""
    input: Annotated[dict[str, Any], option("Input of each job.", "JSON")] = msgspec.field(
        default_factory=dict[str, Any]
    )
    cron: Annotated[
        str, option("Five fields: minute, hour, day of the month, month, day of the week.", "EXPRESSION")
    ] = ""
    every_s: Annotated[
        int, option("Tick at each whole multiple of this time, counted from 1970.", "SPAN")
    ] = 0
    at: Annotated[datetime | None, option("Tick once, at this time.", "TIME")] = None
    on_demand: Annotated[bool, option("No ticks: `trigger` makes its jobs.")] = False
    timezone: Annotated[str, option("Whose clocks `cron` means.", "ZONE")] = "UTC"
    overlap: Annotated[
        Overlap, option("What happens while the job of the tick before has not ended.", "WHAT")
    ] = "skip"
    catchup: Annotated[Catchup, option("Which missed ticks get a job.", "WHICH")] = "latest"
    window_s: Annotated[int, option("With `catchup: all`: how far back.", "SPAN")] = WINDOW_S_DEFAULT
    jitter_s: Annotated[int, option("Each tick is due up to this much later.", "SPAN")] = 0
    ends_at: Annotated[datetime | None, option("No tick after this time.", "TIME")] = None
    queue: Annotated[str | None, option("Queue of its jobs.", "QUEUE")] = None
    priority: Annotated[Priority | None, option("Priority of its jobs.", "PRIORITY")] = None
    max_attempts: Annotated[int | None, option("How often a job is tried.", "N")] = None
    timeout_s: Annotated[float | None, option("How long one attempt may take.", "SPAN")] = None
    tenant: Annotated[str | None, option("Whom its jobs belong to.", "TENANT")] = None
    owner: Annotated[str | None, option("Whose data its jobs hold: their values are sealed.", "KIND:ID")] = (
        None
    )
    correlation: Annotated[str | None, option("What its jobs belong to.", "ID")] = None
    metadata: Annotated[dict[str, str] | None, option("What else is said of its jobs.", "KEY=VALUE")] = None
    limits: Annotated[tuple[str, ...], option("Limits of its jobs.", "LIMIT")] = ()
    replace: Annotated[bool, option("Change a schedule of this name that does something else.")] = False

    def __post_init__(self) -> None:
        """Refuse a wish with two targets or times, or without one. Raises: InvalidInputError."""
        if bool(self.task) == bool(self.graph):
            raise InvalidInputError("say what it runs: give either task, or graph")
        given = [each for each in _TICKS if getattr(self, each)]
        if len(given) != 1:
            said = f", not {' and '.join(given)}" if given else ""
            raise InvalidInputError(f"say when it ticks: give one of {', '.join(_TICKS)}{said}")
        of_jobs = {name: value for name, value in self.chosen.items() if name != "owner"}
        if self.graph and any(value not in (None, ()) for value in of_jobs.values()):
            raise InvalidInputError("the nodes of a graph say how their jobs are tried: leave that out")

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that were given for its jobs; None without any."""
        return {each: getattr(self, each) for each in _ORDER}

    @property
    def when(self) -> When:
        """When it ticks, and what it does about the ticks."""
        return cast("When", {each: getattr(self, each) for each in When.__annotations__})

    async def do(self, place: Place) -> ScheduleMade:
        """Declare it. Raises: as `ScheduleVerbs.declare`; ScheduleNotFoundError for one that the asker may not see."""
        schedules = place.ledger.schedules
        like, is_known = await self._like(place)
        there = (await schedules.read(check_token("schedule name", self.name))).schedule
        if there is not None:
            of, missing = there.definition, ScheduleNotFoundError(self.name)
            place.principal.require_about("manage", of.queue, of.task, missing)
        made = await schedules.declare(self.name, like, replace=self.replace, by=place.by, **self.when)
        return schedule_made(self.name, made, place.ledger.clock.now(), is_known=is_known)

    async def _like(self, place: Place) -> tuple[Enqueue, bool]:
        """Return what would enqueue one of its jobs, and whether a worker has had its task."""
        ledger, principal = place.ledger, place.principal
        if self.graph:
            require_of_nodes(principal, "manage", self.graph, await ledger.graphs.get(self.graph))
            return await ledger.schedules.like(GraphRun(self.graph, self.input, self.owner or "")), True
        principal.require("manage", self.queue, self.task)
        like, is_known = await like_unloaded(ledger, self.task, self.chosen, self.input)
        principal.require("manage", like.ref.queue)
        return like, is_known

    def say(self, found: ScheduleMade) -> Iterator[str]:
        """Say when it is due next, and whether its task is known."""
        when = when_words(self.cron, self.every_s, self.at, self.timezone)
        yield f"schedule {found.name}: {found.task} {when}; {next_words(found.next_run_at, found.at)}"
        if not found.task_known:
            yield Note(
                f"no worker has ever had a task {found.task}: its jobs go to queue {found.queue} and wait there for one"
            )


class ScheduleVerb(Verb[ScheduleNow], frozen=True, kw_only=True):
    """An act on one schedule."""

    name: Name

    async def act(self, schedules: ScheduleVerbs, by: str) -> Schedule:
        """Do it. Raises: what it says itself."""
        raise NotImplementedError

    async def do(self, place: Place) -> ScheduleNow:
        """Do it to a schedule that the asker may act on. Raises: ScheduleNotFoundError, and as `act`."""
        await _seen(place, self.declaration, self.name)
        found = await self.act(place.ledger.schedules, place.by)
        return schedule_now(self.name, found, place.ledger.clock.now())


@verb(
    "schedules pause",
    "POST /v1/schedules/{name}/pause",
    summary="Stop the ticks",
    problems=(*_CHANGES, "REFUSED"),
    form="/schedules/{name}/pause",
    then="/schedules",
    **_ACT,
)
class PauseSchedule(ScheduleVerb, frozen=True, kw_only=True):
    """Stop the ticks until they are resumed, also across deploys; jobs that exist go on."""

    reason: Reason = ""

    async def act(self, schedules: ScheduleVerbs, by: str) -> Schedule:
        """Pause it. Raises: RefusedError for one that is paused."""
        return await schedules.pause(self.name, reason=self.reason, by=by)

    def say(self, found: ScheduleNow) -> Iterator[str]:
        """Say that it is paused, and what ends that."""
        yield f"schedule {found.name} is paused: `jobledger schedules resume {found.name}`"


@verb(
    "schedules resume",
    "POST /v1/schedules/{name}/resume",
    summary="Let it tick again",
    problems=(*_CHANGES, "REFUSED"),
    form="/schedules/{name}/resume",
    then="/schedules",
    **_ACT,
)
class ResumeSchedule(ScheduleVerb, frozen=True, kw_only=True):
    """Let a paused schedule tick again from now on; ticks missed meanwhile are not made up for."""

    reason: Reason = ""

    async def act(self, schedules: ScheduleVerbs, by: str) -> Schedule:
        """Resume it. Raises: RefusedError for one that is not paused."""
        return await schedules.resume(self.name, reason=self.reason, by=by)

    def say(self, found: ScheduleNow) -> Iterator[str]:
        """Say when it is due next."""
        yield f"schedule {found.name} is resumed; {next_words(found.next_run_at, found.at)}"


@verb(
    "schedules reset",
    "POST /v1/schedules/{name}/reset",
    summary="Let the code's declaration count again",
    problems=_CHANGES,
    **_ACT,
)
class ResetSchedule(ScheduleVerb, frozen=True, kw_only=True):
    """Let the code's declaration count again, instead of an operator's or one of a newer version."""

    async def act(self, schedules: ScheduleVerbs, by: str) -> Schedule:
        """Reset it."""
        return await schedules.reset(self.name, by=by)

    def say(self, found: ScheduleNow) -> Iterator[str]:
        """Say what has to happen next."""
        yield f"schedule {found.name} is as it was, until a worker whose code has it declares it"


@verb(
    "schedules remove",
    "DELETE /v1/schedules/{name}",
    summary="End a schedule",
    problems=_CHANGES,
    **_ACT,
)
class RemoveSchedule(ScheduleVerb, frozen=True, kw_only=True):
    """End a schedule; its jobs stay. A worker whose code still has it declares it again when it starts."""

    reason: Reason = ""

    async def act(self, schedules: ScheduleVerbs, by: str) -> Schedule:
        """Remove it."""
        return await schedules.remove(self.name, reason=self.reason, by=by)

    def say(self, found: ScheduleNow) -> Iterator[str]:
        """Say that it is gone."""
        yield f"schedule {found.name} is removed; its jobs stay as they are"


@verb(
    "schedules trigger",
    "POST /v1/schedules/{name}/trigger",
    permission="queue",
    about="own",
    summary="Make a job of it now",
    problems=_CHANGES,
    status=202,
    location="/v1/jobs/{queue}/{id}",
    form="/schedules/{name}/trigger",
    then="/jobs/{queue}/{id}",
)
class TriggerSchedule(Verb[JobMade], frozen=True, kw_only=True):
    """Make a job of the schedule now, beside its ticks, also while it is paused; each call makes one."""

    name: Name
    reason: Reason = ""

    async def do(self, place: Place) -> JobMade:
        """Make it. Raises: ScheduleNotFoundError."""
        await _seen(place, self.declaration, self.name)
        trace = place.trace or place.ledger.stamp().trace
        made = await place.ledger.schedules.trigger(self.name, reason=self.reason, by=place.by, trace=trace)
        return job_made(made, trace)

    def say(self, found: JobMade) -> Iterator[str]:
        """Print the job's name as `enqueue` does for programs: people paste it into the next command."""
        yield msgspec.json.encode({"id": found.id, "queue": found.queue}).decode()


@verb(
    "schedules backfill",
    "POST /v1/schedules/{name}/backfill",
    permission="queue",
    about="own",
    summary="Make the jobs of past ticks",
    problems=(*_CHANGES, "JOB_INVALID_INPUT"),
    is_list=True,
)
class BackfillSchedule(Verb[JobsNamed], frozen=True, kw_only=True, rename={"begin": "from", "end": "to"}):
    """Make the jobs of past ticks, at most 1,000; one that exists stays as it is, so that a repeat does no harm."""

    name: Name
    begin: Annotated[datetime, option("First moment of the range (UTC).", "TIME", past=True)]
    end: Annotated[
        datetime | None, option("Last moment of the range (UTC). (default: now)", "TIME", past=True)
    ] = None
    reason: Reason = ""

    async def do(self, place: Place) -> JobsNamed:
        """Make them. Raises: ScheduleNotFoundError, and InvalidInputError as `ScheduleVerbs.backfill`."""
        await _seen(place, self.declaration, self.name)
        end = place.ledger.clock.now() if self.end is None else self.end
        made = await place.ledger.schedules.backfill(
            self.name, self.begin, end, reason=self.reason, by=place.by
        )
        trace = place.ledger.stamp().trace
        return JobsNamed(items=[job_made(each, trace) for each in made])

    def say(self, found: JobsNamed) -> Iterator[str]:
        """Say how many there are, with the first and the last."""
        jobs = found.items
        count = "1 tick has its job" if len(jobs) == 1 else f"{len(jobs):,} ticks have their jobs"
        yield f"{count}: {jobs[0].id}" + (f" to {jobs[-1].id}" if len(jobs) > 1 else "")


@verb(
    "schedules next",
    "GET /v1/schedules/{name}/next",
    permission="view",
    about="own",
    summary="List when it is due next",
    problems=("NOT_FOUND",),
)
class ListNextTicks(Verb[NextTicks], frozen=True, kw_only=True):
    """Say when the next ticks are due, also in the schedule's own time zone; none while it is paused."""

    name: Name
    count: Annotated[int, option("How many.", "N", ge=1, le=1_000)] = 1

    async def do(self, place: Place) -> NextTicks:
        """List them. Raises: ScheduleNotFoundError."""
        return next_ticks(
            self.name, await _seen(place, self.declaration, self.name), self.count, place.ledger.clock.now()
        )

    def say(self, found: NextTicks) -> Iterator[str]:
        """Say each, or why there is none."""
        if not found.items:
            yield f"schedule {self.name} {_NONE[found.status]}: no run is to come"
        zone = found.timezone
        for at in found.items:
            there = "" if zone == "UTC" else f"   {at.astimezone(zone_of(zone)):%Y-%m-%d %H:%M:%S%z} {zone}"
            yield f"{shown_time(at)}{there}   {age(at, found.at)}"


async def _seen(place: Place, declaration: Declaration, name: str) -> Schedule:
    """Return a schedule for whose jobs the asker has the permission. Raises: ScheduleNotFoundError."""
    found = await place.ledger.schedules.get(name)
    of, missing = found.definition, ScheduleNotFoundError(name)
    place.principal.require_about(declaration.permission, of.queue, of.task, missing)
    return found
