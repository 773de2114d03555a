"""Schedules as a person sees and declares them: lists, one whole, what to prune, and tasks whose code is not here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import anyio.to_thread

from jobledger.admin.rows import Rows
from jobledger.ledger.client import Ledger
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import ScheduleNotFoundError
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.schedules.definition import LATE
from jobledger.ledger.model.subjects import JobRef, check_token, check_users_queue
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.task_book import find_task
from jobledger.ledger.options import Options
from jobledger.projections import Store
from jobledger.projections.tables.schedules import (
    LastFailure,
    ScheduleRow,
    last_failure,
    late_schedules,
    read_schedules,
)

#: Whether the schedule is in the code of a running worker; `unknown` where none runs, or one does not say.
InCode = Literal["yes", "no", "unknown"]
_LOOKED_AT_MAX: Final = 100
#: Options that are fields of the order, too.
_ORDERED: Final = ("priority", "max_attempts", "timeout_s", "tenant", "limits", "metadata", "correlation")
_LIKE: Final = "like"  # no job has it: the order is what counts


class Listed(NamedTuple):
    """A schedule with what only the present tells of it."""

    row: ScheduleRow
    in_code: InCode  #: `unknown` for an operator's, too
    is_late: bool  #: its tick was due more than a minute ago and has not come


async def list_schedules(rows: Rows, *, removed: bool = False) -> list[Listed]:
    """Return the schedules by name, with `removed` also those that were removed.

    Raises: ProjectionError, UnreachableError.
    """
    workers = await rows.ledger.leases.all()
    async with rows.opened() as view:
        found = read_schedules(view.store.select)
        late = {name for name, _ in late_schedules(view.store.select, view.now - LATE)}
    return [
        Listed(row, _in_code(row, workers), row.name in late)
        for row in found
        if removed or row.status != "removed"
    ]


class Shown(NamedTuple):
    """One schedule whole."""

    listed: Listed
    failure: LastFailure | None  #: the newest failure among the jobs of its ticks
    now: datetime


async def show_schedule(rows: Rows, name: str) -> Shown:
    """Return one schedule; one that was removed is not found.

    Raises: ScheduleNotFoundError, ProjectionError, UnreachableError.
    """
    check_token("schedule name", name)
    workers = await rows.ledger.leases.all()
    async with rows.opened() as view:
        found = read_schedules(view.store.select, name)
        if not found or found[0].status == "removed":
            raise ScheduleNotFoundError(name)
        late = [each for each, _ in late_schedules(view.store.select, view.now - LATE)]
        failure = last_failure(view.store.select, name)
        return Shown(Listed(found[0], _in_code(found[0], workers), name in late), failure, view.now)


async def to_prune(rows: Rows) -> list[ScheduleRow]:
    """Return the schedules that code declared and that no running worker's code has.

    Empty where no worker runs or one does not say what its code has: then nothing can be told.

    Raises: ProjectionError, UnreachableError.
    """
    return [each.row for each in await list_schedules(rows) if each.in_code == "no"]


def _in_code(row: ScheduleRow, workers: Collection[WorkerInfo]) -> InCode:
    living = [each.schedules for each in workers if not each.stopped and each.kind == "worker"]
    if row.source != "code" or not living:
        return "unknown"
    if any(row.name in (each or {}) for each in living):
        return "yes"
    return "unknown" if None in living else "no"


class Late(NamedTuple):
    """The schedules whose tick was due more than a minute ago and has not come."""

    names: list[str]  #: the one that waits longest first
    since: datetime | None  #: when that one was due
    known: int  #: how many schedules there are that tick


async def find_late(ledger: Ledger, path: Path) -> Late:
    """Return which schedules are late: found in a projection's file, then looked at in the ledger, since that may lag.

    Of very many the first hundred are looked at; if one of these is late, so are the others.

    Raises: ProjectionError, UnreachableError.
    """
    now = ledger.clock.now()
    candidates, known = await anyio.to_thread.run_sync(_candidates, path, now)
    found: list[tuple[datetime, str]] = []
    for name in candidates[:_LOOKED_AT_MAX]:
        schedule = (await ledger.schedules.read(name)).schedule
        if schedule is not None and schedule.next_at is not None and schedule.next_at < now - LATE:
            found.append((schedule.next_at, name))
    found.sort()
    names = [name for _, name in found] + (candidates[_LOOKED_AT_MAX:] if found else [])
    return Late(names, found[0][0] if found else None, known)


def _candidates(path: Path, now: datetime) -> tuple[list[str], int]:
    with Store.open(path) as store:
        late = late_schedules(store.select, now - LATE)
        ticking = sum(row.next_run_at is not None for row in read_schedules(store.select))
    return [name for name, _ in late], ticking


async def like_unloaded(
    ledger: Ledger, task: str, given: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Enqueue, bool]:
    """Return what would enqueue a job of a task whose code is not here, and whether a worker has ever had that task.

    Its input is not checked. `given`: the options that somebody chose. The queue is else the one that the last worker
    with this task named.

    Raises: InvalidInputError, InvalidTokenError, ConfigurationError, PayloadTooLargeError, UnreachableError.
    """
    check_token("task name", task)
    known = await find_task(ledger.inbox, ledger.names, task)
    chosen = {name: value for name, value in given.items() if value is not None}
    if "queue" in chosen:
        check_users_queue(chosen["queue"])
    elif known is not None:
        chosen["queue"] = known.queue
    options = Options(**chosen)
    what = f"input of task {task}"
    value, reference = await ledger.inputs.put(encode_value(dict(values), what=what), what=what)
    order = Order(input=value, input_ref=reference, **{name: getattr(options, name) for name in _ORDERED})
    like = Enqueue(ref=JobRef(queue=options.queue, job_id=_LIKE), task=task, order=order)
    return like, known is not None
