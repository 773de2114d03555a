"""`Ledger.schedules`: acts of an application or a person on schedules; workers make the ticks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, runtime_checkable

from jobledger.ledger.model.commands import Enqueue, Remove
from jobledger.ledger.model.errors import InvalidInputError, ScheduleNotFoundError
from jobledger.ledger.model.inputs import keep_utc
from jobledger.ledger.model.schedules.decisions import (
    Backfill,
    Declare,
    Pause,
    Reset,
    Resume,
    ScheduleCommand,
    Trigger,
    due_at,
    tick_after,
)
from jobledger.ledger.model.schedules.definition import Catchup, Definition, Overlap
from jobledger.ledger.model.schedules.events import Backfilled, Schedule
from jobledger.ledger.model.schedules.ticks import Spec
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.protocols import Client
from jobledger.ledger.schedules.changes import KnownSchedule, Schedules
from jobledger.ledger.schedules.in_code import AnyTask, check_options

R = TypeVar("R")
_COUNT_MAX = 1_000


class When(TypedDict, total=False):
    """The options of a schedule on its ticks; see `Definition`."""

    cron: str
    every_s: int
    at: datetime | None
    timezone: str
    on_demand: bool
    overlap: Overlap
    catchup: Catchup
    window_s: int
    jitter_s: int
    ends_at: datetime | None


@runtime_checkable
class HasTask(Protocol):
    """A value that runs as the input of a task: a `Graph`."""

    async def as_task(self, client: Client, *, owner: str = "") -> tuple[Any, Mapping[str, Any]]:
        """Return the task and its input; `owner`: whose data it holds, "": what it says itself."""
        ...


class Enqueues(Protocol):
    """The interface of an enqueuer; see `Enqueuer`."""

    async def like(self, task: AnyTask, values: Mapping[str, Any]) -> Enqueue:
        """Return the command that would enqueue a job with this input now."""
        ...


def definition_of(like: Enqueue, **when: Unpack[When]) -> Definition:
    """Return an operator's definition of a schedule; `like`: an example of its jobs.

    Raises: InvalidInputError for a moment without a time zone; `Declare` checks the other values.
    """
    settings: dict[str, Any] = dict(when)
    spec = Spec(**{name: settings.pop(name) for name in Spec.__struct_fields__ if name in settings})
    found = Definition(spec=spec, task=like.task, queue=like.ref.queue, order=like.order, **settings)
    keep_utc(found.spec, "at")
    keep_utc(found, "ends_at")
    return found


class ScheduleVerbs(Schedules):
    """The schedules of a ledger. Each verb reads the schedule's newest event, so none is stale.

    All raise UnreachableError; those that change something also LedgerFullError, and ScheduleNotFoundError if no
    schedule has the name.
    """

    def __init__(self, client: Client, enqueuer: Enqueues) -> None:
        super().__init__(client)
        self._enqueuer = enqueuer

    async def add(
        self,
        name: str,
        task: AnyTask | HasTask,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the field's word
        replace: bool = False,
        owner: str = "",
        by: str = "",
        **when: Unpack[When],
    ) -> Schedule:
        """Declare a schedule: exactly one of `cron`, `every_s`, `at` and `on_demand`; for the others see `Definition`.

        `owner`: whose data a graph holds; a task has it among its options.

        With `on_demand=True` it does not tick: only `trigger` makes its jobs. Instead of a task, `task` may be a
        `Graph`, which is then stored under this name: each job is a run of it. Each job has the task's options. An
        existing schedule with the same definition stays as it is; with `replace` one with another definition is
        changed.

        Raises: ScheduleExistsError without `replace`; InvalidInputError, InvalidTokenError, PayloadTooLargeError;
            ConfigurationError for an id, a run_at or a delay_s, which each tick decides.
        """
        check_token("schedule name", name)
        if isinstance(task, HasTask):
            if input is not None:
                raise InvalidInputError(
                    f"schedule {name} runs a graph, which has all its input: leave input out"
                )
            run, input = await task.as_task(self._client, owner=owner)  # noqa: A001 - as above
            plain: AnyTask = run.options(owner=owner) if owner else run
        elif owner:
            raise InvalidInputError(
                f"schedule {name} runs a task: give it the owner, as task.options(owner=...)"
            )
        else:
            plain = task
        check_options(name, plain.unpacked[1])
        like = await self._enqueuer.like(plain, input or {})
        return await self.declare(name, like, replace=replace, by=by, **when)

    async def like(self, run: HasTask) -> Enqueue:
        """Return the command that would enqueue a graph, or a run of a stored one, for `declare`. Raises: as `add`."""
        return await self._enqueuer.like(*await run.as_task(self._client))

    async def declare(
        self, name: str, like: Enqueue, *, replace: bool = False, by: str = "", **when: Unpack[When]
    ) -> Schedule:
        """Declare a schedule, with `like` as an example of its jobs; see `add`. For callers without the task's code."""
        check_token("schedule name", name)
        command = Declare(definition=definition_of(like, **when), replace=replace)
        return await self._done(name, command, by)

    async def get(self, name: str) -> Schedule:
        """Return a schedule as it is now; a removed one is not found."""
        check_token("schedule name", name)
        schedule = (await self._patiently(lambda: self.read(name))).schedule
        if schedule is None or schedule.removed:
            raise ScheduleNotFoundError(name)
        return schedule

    async def next(self, name: str, count: int = 1) -> list[datetime]:
        """Return when the next ticks are due, in UTC: fewer than `count` if it ends, none while it is paused."""
        return next_due(name, await self.get(name), count)

    async def pause(self, name: str, *, reason: str = "", by: str = "") -> Schedule:
        """Stop the ticks until `resume`, also across deploys. Raises: RefusedError for a paused schedule."""
        return await self._done(name, Pause(reason=reason), by)

    async def resume(self, name: str, *, reason: str = "", by: str = "") -> Schedule:
        """Resume the ticks from now on, without catching up. Raises: RefusedError for a schedule that is not paused."""
        return await self._done(name, Resume(reason=reason), by)

    async def remove(self, name: str, *, reason: str = "", by: str = "") -> Schedule:
        """End the schedule. Its jobs stay as they are, and its name may be declared again."""
        return await self._done(name, Remove(reason=reason), by)

    async def reset(self, name: str, *, by: str = "") -> Schedule:
        """Let the code's declaration count again, instead of an operator's or a newer version's."""
        return await self._done(name, Reset(), by)

    async def trigger(self, name: str, *, reason: str = "", by: str = "", trace: str = "") -> JobRef:
        """Make a job now, regardless of ticks and running jobs; return its reference. Each call makes another job.

        `trace`: the W3C traceparent that the job belongs to; "": that of the span under way.
        """
        (job,) = (await self._act(name, Trigger(reason=reason), by, trace)).made
        return job

    async def backfill(
        self, name: str, from_at: datetime, to_at: datetime, *, reason: str = "", by: str = ""
    ) -> list[JobRef]:
        """Make the jobs of the past ticks of a range, both ends included; return them, with those that existed.

        A job in another queue, which the schedule had before, counts as existing.

        Raises: InvalidInputError for a range without ticks, with more than 1,000 ticks, or with a future end.
        """
        known = await self._act(name, Backfill(from_at=from_at, to_at=to_at, reason=reason), by)
        assert isinstance(known.event, Backfilled), "the command is never as it was"
        jobs, event = known.jobs(), known.event
        places = await self._patiently(lambda: self.places(event, jobs))
        return [place or job.ref for place, job in zip(places, jobs, strict=True)]

    async def _done(self, name: str, command: ScheduleCommand, by: str) -> Schedule:
        schedule = (await self._act(name, command, by)).schedule
        assert schedule is not None, "a command that was accepted leaves a schedule"
        return schedule

    async def _act(self, name: str, command: ScheduleCommand, by: str, trace: str = "") -> KnownSchedule:
        check_token("schedule name", name)
        return await self._patiently(lambda: self.act(name, command, by=by, trace=trace))

    async def _patiently(self, work: Callable[[], Awaitable[R]]) -> R:
        return await self._client.patience.read(work)


def next_due(name: str, schedule: Schedule, count: int) -> list[datetime]:
    """Return when the next ticks of a schedule are due, at most 1,000. Pure."""
    found: list[datetime] = []
    tick = schedule.next_tick
    while tick is not None and len(found) < min(count, _COUNT_MAX):
        found.append(due_at(name, schedule.definition, tick))
        tick = tick_after(schedule.definition, tick)
    return found
