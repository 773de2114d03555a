"""Workers, tasks, locks, diagnoses, subscriptions, and the ledger itself: all at the present moment."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from jobledger.admin.diagnoses import Diagnosis, diagnose
from jobledger.admin.objects.fleet import SubscriptionShown, subscription_shown
from jobledger.admin.objects.locks import LockShown, list_locks
from jobledger.admin.projection import ProjectionStatus, projection_status
from jobledger.admin.rows import AnswerPosition
from jobledger.admin.workers import list_workers
from jobledger.audit.watch import AuditState, audited
from jobledger.gateway.acts.verification import begin_check
from jobledger.gateway.api.additions import JobEnqueued, added, existing
from jobledger.gateway.api.parameters import Limit
from jobledger.gateway.http.api_request import ApiRequest
from jobledger.gateway.http.endpoint import Answer, endpoint_maker
from jobledger.gateway.problems import ProblemError, without_files
from jobledger.gateway.remedies import over_http
from jobledger.gateway.visibility import diagnoses_for, workers_for
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.task_book import TaskEntry, find_task, read_tasks


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """The workers whose leases live, and those that stopped within the last lease time."""

    items: list[WorkerInfo]


class TaskShown(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the last worker announced it that started with it."""

    name: str
    queue: str  #: queue of its jobs, unless their enqueuer chooses another
    text: str  #: the docstring of its function, "" without
    input: Any  #: JSON Schema of its input; true (any value) where it is not known
    worker: str  #: the worker that announced it
    announced_at: datetime  #: by that worker's clock
    versions: tuple[str, ...] | None  #: versions of a workflow; null: the task is no workflow
    workers: int  #: living workers that have it; workers with very many tasks are not counted


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that workers ever had, by name."""

    items: list[TaskShown]


class LocksQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The number of locks to list."""

    limit: Limit = 100


class Locks(msgspec.Struct, frozen=True, kw_only=True):
    """The locks that are held, those that were taken last first."""

    items: list[LockShown]


class Diagnoses(msgspec.Struct, frozen=True, kw_only=True):
    """The diagnoses of the ledger; a standstill comes first."""

    items: list[Diagnosis]
    position: AnswerPosition  #: position of the rows that most diagnoses were read from


class Subscriptions(msgspec.Struct, frozen=True, kw_only=True):
    """The durable subscriptions at this moment."""

    items: list[SubscriptionShown]


class LedgerShown(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the ledger."""

    environment: str
    first_sequence: int  #: stream sequence of the oldest event; above 1, an archive holds the events before
    last_sequence: int
    stored_bytes: int
    head_hash: str  #: hex sha256 of the newest event; "" without one
    audited: AuditState  #: how far the ledger is sealed, and when it was checked and archived last
    projection: ProjectionStatus  #: how far the lists are behind
    connected: bool


async def show_workers(asked: ApiRequest) -> Workers:
    """List the workers."""
    return Workers(items=workers_for(asked.principal, await list_workers(asked.gateway.ledger)))


async def list_tasks(asked: ApiRequest) -> Tasks:
    """List the tasks that workers ever had."""
    ledger = asked.gateway.ledger
    entries = await read_tasks(ledger.connection, ledger.inbox, ledger.names)
    workers = [each for each in await ledger.leases.all() if not each.stopped]
    may = asked.principal.may
    return Tasks(items=[_task(each, workers) for each in entries if may("view", each.queue, each.name)])


async def show_task(asked: ApiRequest, task: str) -> TaskShown:
    """Show a task: its queue, its description, and the JSON Schema of its input."""
    ledger = asked.gateway.ledger
    asked.principal.require("view", None, check_token("task name", task))
    found = await find_task(ledger.inbox, ledger.names, task)
    missing = ProblemError(
        "TASK_NOT_FOUND", f"no worker ever had a task {task}: GET /v1/tasks lists those that are known"
    )
    if found is None:
        raise missing
    asked.principal.require_about("view", found.queue, task, missing)
    return _task(found, [each for each in await ledger.leases.all() if not each.stopped])


def _task(entry: TaskEntry, workers: list[WorkerInfo]) -> TaskShown:
    with_it = sum(entry.name in (each.tasks or ()) for each in workers)
    return TaskShown(
        name=entry.name,
        queue=entry.queue,
        text=entry.text,
        input=entry.input,
        worker=entry.worker,
        announced_at=entry.announced_at,
        versions=entry.versions,
        workers=with_it,
    )


async def show_locks(asked: ApiRequest, *, query: LocksQuery) -> Locks:
    """List the locks that are held, to callers who may see every queue: a lock does not record its holder's queue."""
    asked.principal.require_everywhere("view")
    return Locks(items=await list_locks(asked.gateway.ledger, limit=query.limit))


async def list_diagnoses(asked: ApiRequest) -> Diagnoses:
    """List the diagnoses at this moment: what each is about, since when, and what to do."""
    async with asked.gateway.projection.opened() as view:
        found = diagnoses_for(
            asked.principal, await diagnose(asked.gateway.ledger, view, asked.principal.scope.queues)
        )
        items = [msgspec.structs.replace(each, advice=over_http(each.advice, each.queue)) for each in found]
        return Diagnoses(items=items, position=view.position())


async def list_subscriptions(asked: ApiRequest) -> Subscriptions:
    """List the durable subscriptions: the events that they read, and how far they are behind."""
    asked.principal.require_everywhere("view")
    found = await asked.gateway.ledger.subscriptions()
    return Subscriptions(items=list(map(subscription_shown, found)))


async def delete_subscription(asked: ApiRequest, name: str) -> SubscriptionShown:
    """Forget a durable subscription and its position; a reader that still uses it ends with an error."""
    asked.principal.require_everywhere("manage")
    return subscription_shown(await asked.gateway.ledger.delete_subscription(name))


async def show_ledger(asked: ApiRequest) -> LedgerShown:
    """Show the state of the ledger: its ends, its seals, and how far the lists are behind."""
    gateway = asked.gateway
    ledger = gateway.ledger
    head = await ledger.log.head()
    newest = await ledger.log.get(head.last_sequence) if head.last_sequence else None
    status, problem = await projection_status(ledger, await gateway.rows.path())
    return LedgerShown(
        environment=ledger.names.environment,
        first_sequence=head.first_sequence,
        last_sequence=head.last_sequence,
        stored_bytes=head.stored_bytes,
        head_hash="" if newest is None else newest.hash,
        audited=await audited(ledger.log),
        projection=msgspec.structs.replace(
            status, projection="", problem="" if problem is None else without_files(problem)
        ),
        connected=ledger.connection.is_connected,
    )


async def verify_now(asked: ApiRequest) -> Answer:
    """Check the whole ledger by a job whose result is the verdict; return the job that waits or runs already."""
    asked.principal.require_everywhere("manage")
    handle = await begin_check(asked.gateway.ledger, asked.principal.name)
    return await added(asked, handle, await existing(asked, handle))


_endpoint: Final = endpoint_maker("fleet", permission="view")

ENDPOINTS: Final = (
    _endpoint("GET", "/v1/workers", show_workers, "List who works", Workers),
    _endpoint("GET", "/v1/tasks", list_tasks, "List the tasks", Tasks),
    _endpoint(
        "GET",
        "/v1/tasks/{task}",
        show_task,
        "Show a task and the schema of its input",
        TaskShown,
        problems=("TASK_NOT_FOUND",),
    ),
    _endpoint(
        "GET",
        "/v1/diagnoses",
        list_diagnoses,
        "Tell what hurts",
        Diagnoses,
        problems=("PROJECTION_BEHIND", "BUSY", "LEDGER_DAMAGED"),
    ),
    _endpoint("GET", "/v1/locks", show_locks, "List the locks that are held", Locks, query=LocksQuery),
    _endpoint(
        "GET",
        "/v1/subscriptions",
        list_subscriptions,
        "List the durable subscriptions",
        Subscriptions,
        tag="events",
    ),
    _endpoint(
        "DELETE",
        "/v1/subscriptions/{name}",
        delete_subscription,
        "Forget a durable subscription",
        SubscriptionShown,
        permission="manage",
        tag="events",
        problems=("NOT_FOUND",),
    ),
    _endpoint(
        "GET",
        "/v1/ledger",
        show_ledger,
        "Show how the ledger is",
        LedgerShown,
        tag="ledger",
        problems=("LEDGER_DAMAGED",),
    ),
    _endpoint(
        "POST",
        "/v1/ledger/verify",
        verify_now,
        "Check the whole ledger, as a job",
        JobEnqueued,
        permission="manage",
        tag="ledger",
        heeds=("Prefer",),
        status=202,
        also=(200,),
        problems=("LEDGER_FULL", "LEDGER_BUSY"),
    ),
)
