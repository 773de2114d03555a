"""`enqueue_named` and `enqueue_named_many`: jobs by the names of their tasks, without the tasks' code."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

import msgspec

from jobledger.ledger.adding.announced import AnnouncedTask
from jobledger.ledger.adding.bulk import BulkResult
from jobledger.ledger.enqueueing import Enqueuer, refuse_in_bulk
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.events import Priority
from jobledger.ledger.model.subjects import check_token, check_users_queue
from jobledger.ledger.named.book import AnnouncedTasks
from jobledger.ledger.options import Options
from jobledger.ledger.patience import Patience


class Named(TypedDict, total=False):
    """How a job is enqueued by the name of its task; what is left out, or None, is as the task's code says."""

    queue: str | None  #: None: that of the task
    id: str | None  #: None: a new UUIDv7
    priority: Priority | None
    max_attempts: int | None
    timeout_s: float | None  #: of one attempt
    delay_s: float | None  #: not before so many seconds
    run_at: datetime | None  #: not before this moment
    limits: Iterable[str]  #: beside those of the task
    tenant: str | None
    correlation: str | None
    metadata: Mapping[str, str] | None
    by: str  #: who asks for it; "": this client
    trace: str  #: W3C traceparent of the caller; "": that of the span under way
    unknown_ok: bool  #: also a task that no worker ever announced; its input is then not checked


class NamedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of many jobs to enqueue by the names of their tasks; the fields are those of `Named`."""

    task: str
    input: msgspec.Raw = msgspec.Raw(b"{}")  #: JSON object of the arguments
    queue: str | None = None
    id: str | None = None
    priority: Priority | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    delay_s: float | None = None
    run_at: datetime | None = None
    limits: tuple[str, ...] = ()
    tenant: str | None = None
    correlation: str | None = None
    metadata: dict[str, str] | None = None


_CHOSEN: Final = (
    "priority",
    "max_attempts",
    "timeout_s",
    "delay_s",
    "run_at",
    "tenant",
    "correlation",
    "metadata",
)


#: What a job says that is as its task: queue, limits, and those of `_CHOSEN`.
_NOTHING: Final = (None, (), *[None] * 8)


async def enqueue_named(
    patience: Patience,
    announced: AnnouncedTasks,
    enqueuer: Enqueuer,
    task: str,
    value: object,
    **how: Unpack[Named],
) -> JobHandle[Any]:
    """Add one job; see `Ledger.enqueue_named`."""
    given: dict[str, Any] = dict(how)
    unknown_ok = given.pop("unknown_ok", False)
    found = await patience.read(lambda: announced.get(task, unknown_ok=unknown_ok))
    queue, limits = given.pop("queue", None), given.pop("limits", ())
    options = found.defaults.changed(given, queue=queue, limits=limits)
    check_users_queue(found.defaults.queue)
    _check(found, options)
    return await enqueuer.one_of(found, options, found.signature.text(value))


async def enqueue_named_many(
    patience: Patience,
    announced: AnnouncedTasks,
    enqueuer: Enqueuer,
    jobs: Iterable[NamedJob] | AsyncIterable[NamedJob],
    *,
    by: str,
    trace: str,
    on_progress: Callable[[int], None] | None,
) -> BulkResult:
    """Add many jobs as a stream; see `Ledger.enqueue_named_many`."""
    who = Options(by=by, trace=trace)  # checked once
    bases: dict[str, tuple[AnnouncedTask, Options]] = {}

    async def order(job: NamedJob, _: int) -> Enqueue:
        found = announced.known(job.task)
        if found is None:
            found = await patience.read(lambda: announced.get(job.task))
        kept = bases.get(job.task)
        if kept is None or kept[0] is not found:
            check_users_queue(found.defaults.queue)
            base = found.defaults.changed(
                {"by": who.by or None, "trace": who.trace or None}, queue=None, limits=()
            )
            kept = bases[job.task] = (found, base)
        options = _options(job, kept[1])
        if options.unique is not None:
            refuse_in_bulk(found, options.unique, job.id)
            _check(found, options)
        job_id = enqueuer.new_id(job.task) if job.id is None else check_token("job id", job.id)
        return await enqueuer.bulk_order(found, options, job_id, found.signature.text(job.input))

    return await enqueuer.stream(jobs, order, enqueuer.begin_again(by), by, on_progress)


def _options(job: NamedJob, base: Options) -> Options:
    said = (
        job.queue,
        job.limits,
        job.priority,
        job.max_attempts,
        job.timeout_s,
        job.delay_s,
        job.run_at,
        job.tenant,
        job.correlation,
        job.metadata,
    )
    if said == _NOTHING:  # as nearly all of many are
        return base
    given = {name: getattr(job, name) for name in _CHOSEN}
    return base.changed(given, queue=job.queue, limits=job.limits)


def _check(task: AnnouncedTask, options: Options) -> None:
    """Refuse a unique job whose key cannot be made without the task's code. Raises: InvalidInputError."""
    if options.unique is None:
        return
    chosen = task.signature.names if options.unique.args is None else options.unique.args
    unclear = [name for name in chosen if name not in task.plain]
    if unclear or not task.signature.is_known:
        which = f"argument {unclear[0]!r}" if unclear else "input"
        raise InvalidInputError(
            f"task {task.name} is unique by its {which}, which only its code reads in one way: enqueue it with its code"
        )
