"""`enqueue_named` and `enqueue_named_many`: jobs by the names of their tasks, without the tasks' code."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypedDict, Unpack

import msgspec

from jobledger.ledger.additions.announced import AnnouncedTask
from jobledger.ledger.additions.bulk import BulkResult, OrderedJob
from jobledger.ledger.enqueuer import Enqueuer, of_batch, refuse_in_bulk
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import InvalidInputError
from jobledger.ledger.model.subjects import check_token, check_users_queue, check_users_task
from jobledger.ledger.named.book import AnnouncedTasks, find_announced
from jobledger.ledger.options import Options, OrderFields, OrderOptions
from jobledger.ledger.patience import Patience


class NamedOptions(OrderOptions, total=False):
    """How a job is enqueued by the name of its task; what is left out, or None, is as the task's code says."""

    queue: str | None  #: None: that of the task
    limits: Iterable[str]  #: beside those of the task
    by: str  #: who asks for it; "": this client
    trace: str  #: W3C traceparent of the caller; "": that of the span under way
    unknown_ok: bool  #: also a task that no worker ever announced; its input is then not checked


class Portion(NamedTuple):
    """Jobs that are added to a batch; each has its place in it."""

    batch: str
    task: str  #: of every job of the batch
    queue: str
    first: int  #: the place of the first one, from 0
    jobs_max: int | None  #: how many jobs the batch has; None: it is open


class NamedMany(TypedDict, total=False):
    """How many jobs are enqueued by the names of their tasks."""

    by: str  #: who asks for them; "": this client
    trace: str  #: W3C traceparent of the caller; "": that of the span under way
    on_progress: Callable[[int], None] | None  #: gets the number of jobs done, at times
    #: gets each job whose id is taken already; an error of it ends the stream
    on_existing: Callable[[Enqueue], Awaitable[None]] | None
    portion: Portion | None  #: of a batch, as `named_batches` adds it


class NamedJob(OrderFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of many jobs to enqueue by the names of their tasks; the fields are those of `NamedOptions`."""

    task: str
    input: msgspec.Raw = msgspec.Raw(b"{}")  #: JSON object of the arguments


#: What a job may say in place of its task.
_CHOSEN: Final = tuple(
    name for name in OrderFields.__struct_fields__ if name not in {"queue", "id", "limits"}
)
_said_by: Final = operator.attrgetter("limits", *_CHOSEN)
#: The fields that may be given where a job's options are kept for others like it.
_PLAIN: Final = frozenset({"queue", "by", "id", "limits", "trace"})
#: What `_said_by` reads from a job that leaves all of it to its task.
_NOTHING: Final = ((), *[None] * len(_CHOSEN))
#: Types of a queue and an asker that options are kept by; others are for the checks to refuse.
_NAMES: Final = {str, type(None)}
_KEPT_MAX: Final = 1_000  #: options of one task: callers choose the names of queues


async def enqueue_named(
    patience: Patience,
    announced: AnnouncedTasks,
    enqueuer: Enqueuer,
    task: str,
    value: object,
    **how: Unpack[NamedOptions],
) -> JobHandle[Any]:
    """Add one job; see `Ledger.enqueue_named`."""
    given: dict[str, Any] = dict(how)
    unknown_ok = given.pop("unknown_ok", False)
    found = await find_announced(patience, announced, task, unknown_ok=unknown_ok)
    options = options_of(found, given)
    _check(found, options)
    return await enqueuer.one_of(found, options, found.signature.text(value))


def options_of(task: AnnouncedTask, given: Mapping[str, Any]) -> Options:
    """Return the options of one job of a task; what is not given, or None, is as its code says.

    Raises: InvalidTokenError, ConfigurationError; InvalidInputError also for a task of the ledger's own.
    """
    queue, by, kept = given.get("queue"), given.get("by"), task.kept
    is_plain = given.keys() <= _PLAIN and type(queue) in _NAMES and type(by) in _NAMES
    is_plain = is_plain and not (given.get("id") is not None or given.get("limits") or given.get("trace"))
    if is_plain and (found := kept.get((queue, by))) is not None:
        return found
    check_users_task(task.name)
    check_users_queue(task.defaults.queue)
    chosen = {name: value for name, value in given.items() if name not in {"queue", "limits"}}
    made = task.defaults.changed(chosen, queue=queue, limits=given.get("limits", ()))
    if is_plain:
        if len(kept) >= _KEPT_MAX:
            kept.clear()
        kept[queue, by] = made
    return made


async def enqueue_named_many(
    patience: Patience,
    announced: AnnouncedTasks,
    enqueuer: Enqueuer,
    jobs: Iterable[NamedJob] | AsyncIterable[NamedJob],
    **how: Unpack[NamedMany],
) -> BulkResult:
    """Add many jobs as a stream; see `Ledger.enqueue_named_many`."""
    by, on_existing, portion = how.get("by", ""), how.get("on_existing"), how.get("portion")
    who = Options(by=by, trace=how.get("trace", ""))  # checked once
    begin = enqueuer.begin_again(by)
    bases: dict[str, tuple[AnnouncedTask, _ChosenOptions]] = {}

    async def order(job: NamedJob, number: int) -> OrderedJob:
        found = announced.known(job.task) or await find_announced(patience, announced, job.task)
        kept = bases.get(job.task)
        if kept is None or kept[0] is not found:
            check_users_task(found.name)
            check_users_queue(found.defaults.queue)
            base = found.defaults.changed(
                {"by": who.by or None, "trace": who.trace or None}, queue=None, limits=()
            )
            kept = bases[job.task] = (found, _ChosenOptions(base))
        options = kept[1].options(job)
        if portion is not None:
            _require_of(portion, job, options)
        if options.unique is not None:
            refuse_in_bulk(found, options.unique, job.id if portion is None else portion.batch)
            _check(found, options)
        job_id = None if job.id is None else check_token("job id", job.id)
        command = await enqueuer.bulk_order(found, options, job_id, found.signature.text(job.input))
        is_named = job.id is not None or portion is not None or bool(options.id_template)
        compare = enqueuer.comparing(found, options, is_named=is_named)
        if portion is not None:
            command = of_batch(command, portion.batch, portion.first + number, portion.jobs_max)
        return OrderedJob(command, compare)

    async def begin_again(ordered: OrderedJob) -> tuple[int, bool]:
        sequence, created = await begin(ordered)
        if not created and on_existing is not None:
            await on_existing(ordered.command)
        return sequence, created

    return await enqueuer.stream(jobs, order, begin_again, by, how.get("on_progress"))


def _require_of(portion: Portion, job: NamedJob, options: Options) -> None:
    """Refuse a job that cannot be one of a batch. Raises: InvalidInputError."""
    if (job.task, options.queue) != (portion.task, portion.queue):
        raise InvalidInputError(
            f"batch {portion.batch} has jobs of task {portion.task} in queue {portion.queue}, and this is one of task "
            f"{job.task} in queue {options.queue}: leave it out, and enqueue it by itself"
        )
    if job.id is not None:
        raise InvalidInputError("a batch names its jobs by their places in it: leave id out")


class _ChosenOptions:
    """The options of one task's jobs: made and checked once for all that say nothing but their queue, as most do."""

    def __init__(self, base: Options) -> None:
        self._base = base
        self._of_queues: dict[str, Options] = {}

    def options(self, job: NamedJob) -> Options:
        """Return those of one job. Raises: as `Options.changed`."""
        queue = job.queue
        if _said_by(job) != _NOTHING or type(queue) not in _NAMES:
            return self._made(job)
        if queue is None:
            return self._base
        found = self._of_queues.get(queue)
        if found is None:
            if len(self._of_queues) >= _KEPT_MAX:
                self._of_queues.clear()
            found = self._of_queues[queue] = self._made(job)
        return found

    def _made(self, job: NamedJob) -> Options:
        given = {name: getattr(job, name) for name in _CHOSEN}
        return self._base.changed(given, queue=job.queue, limits=job.limits)


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
