"""The tasks that workers ever had, and a form for each to add a job."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from jobledger.admin.lists.stats import stats
from jobledger.gateway.pages.page import Looked, When
from jobledger.gateway.pages.schema_fields import Field, fields_of
from jobledger.gateway.pages.shell import Shell, surround
from jobledger.gateway.problems import ProblemError
from jobledger.ledger.model.subjects import check_token, is_own_queue
from jobledger.ledger.nats.task_book import TaskEntry, find_task, read_tasks
from jobledger.projections.statistics.rates import Rates


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """One task."""

    entry: TaskEntry
    workers: int  #: how many living workers have it
    rates: Rates | None  #: what happened to its jobs in the last hour; None: nothing


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """The page."""

    shell: Shell
    tasks: list[TaskLine]


class TaskForm(msgspec.Struct, frozen=True, kw_only=True):
    """The page of one task."""

    shell: Shell
    entry: TaskEntry
    fields: tuple[Field, ...] | None  #: None: its input is typed as JSON
    workers: int


async def tasks(looked: Looked, *, query: When) -> Tasks:
    """Return the tasks by name, but those of the ledger's own jobs, which nobody adds here."""
    del query
    ledger, may = looked.gateway.ledger, looked.principal.may
    entries = await read_tasks(ledger.connection, ledger.inbox, ledger.names)
    living = [each for each in await ledger.leases.all() if not each.stopped]
    principal = looked.principal
    async with looked.gateway.projection.opened() as view:
        shell = await surround(looked, view, None, fleet=False)
        found = await stats(
            view,
            view.now - timedelta(hours=1),
            view.now + timedelta(minutes=1),
            visible_queues=principal.scope.queues,
            visible_tasks=principal.scope.tasks,
        )
    rates = {each.name: each for each in found.tasks}
    return Tasks(
        shell=shell,
        tasks=[
            TaskLine(
                entry=each,
                workers=sum(each.name in (worker.tasks or ()) for worker in living),
                rates=rates.get(each.name),
            )
            for each in entries
            if not is_own_queue(each.queue) and may("view", each.queue, each.name)
        ],
    )


async def task_form(looked: Looked, task: str, *, query: When) -> TaskForm:
    """Return the form of one task. Raises: ProblemError (TASK_NOT_FOUND)."""
    del query
    ledger = looked.gateway.ledger
    found = await find_task(ledger.inbox, ledger.names, check_token("task name", task))
    missing = ProblemError("TASK_NOT_FOUND", f"no worker ever had a task {task}")
    if found is None:
        raise missing
    looked.principal.require_about("view", found.queue, found.name, missing)
    living = [each for each in await ledger.leases.all() if not each.stopped]
    async with looked.gateway.projection.opened() as view:
        shell = await surround(looked, view, None, fleet=False)
    return TaskForm(
        shell=shell,
        entry=found,
        fields=fields_of(found.input),
        workers=sum(found.name in (each.tasks or ()) for each in living),
    )
