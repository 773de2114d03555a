"""Schedules as a person sees and declares them: lists, one whole, what to prune, and tasks whose code is not here."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec

from jobledger.admin.rows import Rows, View
from jobledger.ledger.additions.announced import AnnouncedTask
from jobledger.ledger.client import Ledger
from jobledger.ledger.job_orders import with_tenant
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import ScheduleNotFoundError, WrongSequenceError
from jobledger.ledger.model.forms import SEALED_FORM
from jobledger.ledger.model.json_text import encode_value
from jobledger.ledger.model.schedules.definition import LATE
from jobledger.ledger.model.seals import OWNER_DEFAULT, seal_words
from jobledger.ledger.model.subjects import JobRef, check_token, check_users_queue, check_users_task
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.task_book import find_task
from jobledger.ledger.options import Options
from jobledger.ledger.owner_names import owner_named
from jobledger.projections.tables.schedules import (
    LastFailure,
    ScheduleRow,
    TickRow,
    last_failure,
    last_ticks,
    late_schedules,
    read_schedules,
)

#: Whether the schedule is in the code of a running worker; `unknown` if none runs, or one does not report it.
InCode = Literal["yes", "no", "unknown"]
_TICKS_AT_ONCE: Final = 500
_LIKE: Final = "like"  # a placeholder id: only the order counts


class ScheduleLine(NamedTuple):
    """A schedule with facts that are known only of the present."""

    row: ScheduleRow
    in_code: InCode  #: `unknown` for an operator's, too
    is_late: bool  #: its tick was due more than a minute ago and has not come


async def list_schedules(rows: Rows, *, removed: bool = False) -> list[ScheduleLine]:
    """Return the schedules by name, with `removed` also those that were removed.

    Raises: ProjectionError, UnreachableError.
    """
    workers = await rows.ledger.leases.all()
    async with rows.opened() as view:
        return listed_in(view, workers, removed=removed)


def listed_in(view: View, workers: Collection[WorkerInfo], *, removed: bool) -> list[ScheduleLine]:
    """Return the schedules of one moment by name; see `list_schedules`. Raises: ProjectionError."""
    with view.store.one_moment():
        found = read_schedules(view.store.select)
        late = {name for name, _ in late_schedules(view.store.select, view.now - LATE)}
    return [
        ScheduleLine(row, _in_code(row, workers), row.name in late)
        for row in found
        if removed or row.status != "removed"
    ]


class ScheduleView(NamedTuple):
    """One schedule whole."""

    listed: ScheduleLine
    failure: LastFailure | None  #: the newest failure among the jobs of its ticks
    ticks: list[TickRow]  #: the newest ticks that have jobs
    now: datetime


async def show_schedule(rows: Rows, name: str) -> ScheduleView:
    """Return one schedule; one that was removed is not found.

    Raises: ScheduleNotFoundError, ProjectionError, UnreachableError.
    """
    check_token("schedule name", name)
    workers = await rows.ledger.leases.all()
    async with rows.opened() as view:
        return shown_in(view, workers, name)


def shown_in(view: View, workers: Collection[WorkerInfo], name: str) -> ScheduleView:
    """Return one schedule at one moment; see `show_schedule`. Raises: ScheduleNotFoundError, ProjectionError."""
    with view.store.one_moment():
        found = read_schedules(view.store.select, name)
        if not found or found[0].status == "removed":
            raise ScheduleNotFoundError(name)
        late = [each for each, _ in late_schedules(view.store.select, view.now - LATE)]
        failure = last_failure(view.store.select, name)
        ticks = last_ticks(view.store.select, name)
    return ScheduleView(
        ScheduleLine(found[0], _in_code(found[0], workers), name in late), failure, ticks, view.now
    )


class DueTick(msgspec.Struct, frozen=True, kw_only=True):
    """A tick that was due and was made."""

    schedule: str
    jobs: tuple[str, ...]  #: `<queue>/<job id>` of the jobs that it asks for; none if it was skipped


async def tick_due(ledger: Ledger, known: Collection[ScheduleRow]) -> tuple[list[DueTick], bool]:
    """Make the ticks of these schedules that are due; return them, and whether more are due than are made at once.

    Each tick is appended on condition that the event it was decided on is still the newest, so it is made once, even
    if others make ticks at the same time. One that somebody else makes first is left out.

    Raises: LedgerFullError, UnreachableError, CorruptLedgerError; InvalidInputError for a time zone that this machine
        does not know.
    """
    made: list[DueTick] = []
    now = ledger.clock.now()
    for row in sorted(known, key=lambda each: each.next_run_at or ""):
        if row.next_run_at is None or datetime.fromisoformat(row.next_run_at) > now:
            continue
        if len(made) >= _TICKS_AT_ONCE:
            return made, True
        stored = await ledger.schedules.read(row.name)
        due_at = None if stored.schedule is None else stored.schedule.next_at
        if due_at is None or due_at > now:
            continue
        with contextlib.suppress(WrongSequenceError):
            after = await ledger.schedules.tick(row.name, stored)
            jobs = tuple(f"{job.ref.queue}/{job.ref.job_id}" for job in after.jobs())
            made.append(DueTick(schedule=row.name, jobs=jobs))
    return made, False


async def to_prune(rows: Rows) -> list[ScheduleRow]:
    """Return the schedules that code declared and that no running worker's code has.

    Empty if no worker runs, or one does not report its schedules: then nobody knows.

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


async def like_unloaded(
    ledger: Ledger, task: str, given: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Enqueue, bool]:
    """Return the `Enqueue` of a job of a task whose code is not here, and whether a worker has ever had that task.

    Its input is not checked. `given`: the options that somebody chose. Without a queue there, it is the one that the
    last worker with this task announced.

    Raises: InvalidInputError, InvalidTokenError, ConfigurationError, PayloadTooLargeError, UnreachableError;
        AccessDeniedError for a limit that the jobs may not name.
    """
    check_users_task(task)
    known = await find_task(ledger.inbox, ledger.names, task)
    chosen = {name: value for name, value in given.items() if value is not None}
    if "queue" in chosen:
        check_users_queue(chosen["queue"])
    elif known is not None:
        chosen["queue"] = known.queue
    announced = None if known is None else AnnouncedTask(known)
    options = Options(**chosen)
    own = () if announced is None else announced.defaults.limits
    job = (options.queue, task)
    await ledger.patience.read(lambda: ledger.code_limits.require(options.limits, job, own))
    what = f"input of task {task}"
    text = encode_value(dict(values), what=what)
    if announced is not None:
        declared = msgspec.structs.replace(options, tenant_template=announced.defaults.tenant_template)
        options = with_tenant(announced, declared, text)
        if not options.owner:
            options = msgspec.structs.replace(options, owner=announced.defaults.owner)
    owner = options.owner if announced is None else owner_named(announced, options, text)
    owner = owner or (OWNER_DEFAULT if ledger.config.seal == "all" else "")
    key = None
    if owner:
        ledger.stamp().require_form(SEALED_FORM, f"the owner of the jobs of a schedule of task {task}")
        key = await ledger.patience.read(lambda: ledger.keys.key_for(owner))
    value, reference = await ledger.inputs.put(text, what=what, key="" if key is None else key.id)
    order = options.order(value, reference)
    if key is not None:
        order = msgspec.structs.replace(order, key=key.id, metadata=seal_words(key, order.metadata))
    like = Enqueue(ref=JobRef(queue=options.queue, job_id=_LIKE), task=task, order=order)
    return like, known is not None
