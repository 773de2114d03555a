"""The jobs that call a schedule's hooks: `before` is called, then the tick's job is made, then `after` is called.

Such a job is an ordinary one, tried again when it fails or its worker dies. Then it may call the hooks again; but the
id of the tick's own job follows from the tick, so it is made once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

import anyio.to_thread
from msgspec.structs import replace

from jobledger.ledger.context import Context
from jobledger.ledger.decorator import task
from jobledger.ledger.derived_jobs import begin_derived, is_of_tick
from jobledger.ledger.enqueuer import Enqueuer
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import InvalidInputError, ScheduleNotFoundError
from jobledger.ledger.model.schedules.jobs import hooks_task, order_of
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.schedules.in_code import Schedule, Skip, Tick
from jobledger.ledger.tasks import Task, TaskRegistry


def with_hooks(tasks: TaskRegistry) -> TaskRegistry:
    """Return a worker's tasks, and the tasks that call the hooks of its schedules."""
    for schedule in tasks.schedules.values():
        if schedule.has_hooks and hooks_task(schedule.name) not in tasks:
            tasks.add(_calling(schedule))
    return tasks


def _calling(schedule: Schedule) -> Task[..., Any]:
    async def call_hooks(context: Context, at: datetime, job_id: str, tick: str, limit: str) -> str | None:
        told = Tick(schedule=schedule.name, at=at, job_id=job_id)
        values: Any = await _ask(schedule.before, told) if schedule.before is not None else None
        if isinstance(values, Skip):
            context.logger.info("no job for tick %s: %s", tick, values.reason or "skipped")
            return None
        if values is not None and not isinstance(values, Mapping):
            raise InvalidInputError(
                f"`before` of schedule {schedule.name} returned a {type(values).__name__}: return a dict, Skip or None"
            )
        if values is None and schedule.declared_input is None:
            raise InvalidInputError(
                f"`before` of schedule {schedule.name} returned None, and the schedule has no input: return a dict or "
                "Skip, or give the schedule an input"
            )
        given = cast("Mapping[str, Any] | None", values)
        job = await _make(context, schedule, job_id, given, tick=tick, limit=limit)
        if schedule.after is not None:
            await _ask(schedule.after, told, job)
        return job_id

    return task(name=hooks_task(schedule.name), queue=schedule.queue)(call_hooks)


async def _make(
    context: Context,
    schedule: Schedule,
    job_id: str,
    values: Mapping[str, Any] | None,
    *,
    tick: str,
    limit: str,
) -> Any:
    """Begin the tick's job by the present declaration, with the input that `before` returned."""
    ledger = context.ledger
    known = (await ledger.schedules.read(schedule.name)).schedule
    if known is None:
        raise ScheduleNotFoundError(schedule.name)
    definition = known.definition
    enqueuer = Enqueuer(ledger, config=ledger.config, clock=ledger.clock, tracing=None)
    if values is not None:
        assert schedule.task is not None, "it was checked when it was loaded"
        given = (await enqueuer.like(schedule.task, values)).order
        # Keys of limits and of fair turns may be arguments.
        fields = {
            field: getattr(given, field)
            for field in ("input", "input_ref", "limits", "fair", "tenant", "key", "metadata")
        }
        definition = replace(definition, order=replace(definition.order, **fields))
    ref = JobRef(queue=context.queue, job_id=job_id)
    order = order_of(definition, tick, limit)
    command = Enqueue(ref=ref, task=definition.task, order=order)
    begun = await begin_derived(ledger.log, command, ledger.stamp, is_of_tick(command))
    return ledger.handle_of(begun.ref, created=begun.created, sequence=begun.sequence)


async def _ask(hook: Callable[..., Any], *told: Any) -> Any:
    """Call a hook: on the loop if it is async, else in a thread."""
    if inspect.iscoroutinefunction(hook):
        return await hook(*told)
    return await anyio.to_thread.run_sync(hook, *told, abandon_on_cancel=True)
