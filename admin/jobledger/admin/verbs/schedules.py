"""Schedule verbs: pause, resume, reset and remove a schedule, make jobs of it, and tell its next ticks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from jobledger.admin.amounts import age
from jobledger.admin.objects.schedules import (
    JobMade,
    JobsNamed,
    NextTicks,
    ScheduleNow,
    job_made,
    next_ticks,
    schedule_now,
)
from jobledger.admin.schedule_words import next_words
from jobledger.admin.verbs.kit import Declaration, Place, Reason, Verb, option, verb
from jobledger.ledger.model.errors import ScheduleNotFoundError
from jobledger.ledger.model.schedules.events import Schedule
from jobledger.ledger.model.schedules.ticks import zone_of
from jobledger.ledger.model.times import shown_time
from jobledger.ledger.schedules.verbs import ScheduleVerbs

Name = Annotated[str, option("Name of the schedule.", "NAME")]
_CHANGES: Final = ("NOT_FOUND", "LEDGER_FULL", "LEDGER_BUSY")
_NONE: Final = {"paused": "is paused", "on_demand": "makes jobs on demand only", "ended": "has ended"}
_ACT: Final[dict[str, Any]] = {"permission": "manage", "about": "own"}


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
    """Let a paused schedule tick again, from now on: what it did not tick meanwhile is not caught up."""

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
    """Let the code's declaration count again, after an operator's, or one of a newer version."""

    async def act(self, schedules: ScheduleVerbs, by: str) -> Schedule:
        """Reset it."""
        return await schedules.reset(self.name, by=by)

    def say(self, found: ScheduleNow) -> Iterator[str]:
        """Say what is waited for."""
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
        """Name the job as programs are told, as of `enqueue`: that is what gets pasted into the next command."""
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
