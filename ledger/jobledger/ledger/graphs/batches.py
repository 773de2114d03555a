"""Beginning batches: jobs that are enqueued together under one name, and what is enqueued once all of them have ended.

A batch is a run of the built-in workflow `run_batch`, whose children are its jobs: they are made here, by the client,
and counted as the children of any run.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from jobledger.ledger.additions.bulk import BulkResult
from jobledger.ledger.additions.kind import Kind
from jobledger.ledger.enqueuer import Enqueuer, require_member
from jobledger.ledger.graphs.batch_end import count_of, end_jobs, spec_of
from jobledger.ledger.graphs.batch_run import END_STEP, BatchSpec, run_batch
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.commands import GiveSignal
from jobledger.ledger.model.errors import IllegalTransitionError, InvalidInputError, TaskDefinitionError
from jobledger.ledger.model.events import Member
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.errors import UnknownSignalError
from jobledger.ledger.model.runs.orders import BATCH_CLOSED, BUILT_IN_QUEUE, RUN_BATCH
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.options import Options, refuse_of_maker
from jobledger.ledger.protocols import Client
from jobledger.ledger.runs.nodes import node_of
from jobledger.ledger.sent_signals import send
from jobledger.ledger.tasks import Task, TaskWithOptions

AnyTask = Task[..., Any] | TaskWithOptions[..., Any]
Inputs = Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]
#: What the task at the end of a batch may ask for by the names of its parameters.
_TOLD: Final = ("batch", "counts")
#: What a batch cannot do any more that a person ended before all its jobs were added.
_TAKE_JOBS: Final = "take more jobs as a batch, so give this one another name"


async def enqueue_batch(  # noqa: PLR0917 - what `enqueue_many` was given
    client: Client,
    enqueuer: Enqueuer,
    of: tuple[str | None, AnyTask | None],
    task: AnyTask,
    inputs: Inputs,
    ids: object,
    on_progress: Callable[[int], None] | None,
) -> BulkResult:
    """Open a batch, add a job for each input, and close it; see `Ledger.enqueue_many`.

    `of`: its name, and what is enqueued once all of them have ended.
    """
    name, on_end = of
    if name is None:
        raise InvalidInputError("on_end is what follows a batch: name one with batch=")
    if ids is not None:
        raise InvalidInputError("a batch names its jobs by their places in it: leave ids= out")
    plain, options = cast("tuple[Task[Any, Any], Options]", task.unpacked)
    spec = BatchSpec(task=plain.name, queue=options.queue)
    if on_end is not None:
        last, chosen = cast("tuple[Task[Any, Any], Options]", on_end.unpacked)
        spec = with_end(spec, name, last, chosen)
        await client.patience.read(lambda: client.code_limits.ensure(chosen, last.name, last.defaults.limits))
    await require_free_end(client, name, spec)
    batch = await enqueuer.one(run_batch.options(id=name, by=options.by, on_other_input="keep"), batch=spec)
    count = None if batch.created else count_of(await known_batch(client, batch.ref, spec))
    result = await enqueuer.many(task, inputs, ids=None, on_progress=on_progress, batch=name, batch_max=count)
    if count is None:
        await close(client, batch.ref, result.created + result.existing)
    return result


async def require_free_end(client: Client, name: str, spec: BatchSpec) -> None:
    """Refuse a batch while another job has the id of the one that is to follow it. Raises: InvalidInputError."""
    if spec.end is None:
        return
    ref = JobRef(queue=spec.end.queue, job_id=spec.end.id)
    known = await client.patience.read(lambda: client.log.read_chain(client.log.names.chain(ref)))
    if known:
        require_member(ref, Member(queue=BUILT_IN_QUEUE, job=name, step=END_STEP, item=0), known[0].event)


async def known_batch(client: Client, ref: JobRef, spec: BatchSpec) -> Job:
    """Return a batch that exists.

    Raises: InvalidInputError for one of other jobs; IllegalTransitionError for one that was ended before it was closed.
    """
    job = (await client.patience.read(lambda: load(client.log, ref))).job
    if job is None or job.task != RUN_BATCH:
        raise InvalidInputError(
            f"job {ref.job_id} of queue {ref.queue} is no batch: give this one another name"
        )
    if await spec_of(client, job) != spec:
        raise InvalidInputError(
            f"batch {ref.job_id} exists with another task, queue or end: give this one another name"
        )
    await require_unended(client, job)
    return job


async def require_unended(client: Client, job: Job) -> None:
    """Refuse a batch that was ended before it was closed, after its jobs were cancelled. Raises: IllegalTransitionError."""
    if job.is_final and count_of(job) is None:
        await end_jobs(client, JobRef(queue=job.queue, job_id=job.id))
        raise IllegalTransitionError(job.id, job.state.value, _TAKE_JOBS)


async def close(client: Client, ref: JobRef, count: int, *, by: str = "") -> None:
    """Say how many jobs the batch has; who said so before said the same.

    Raises: IllegalTransitionError for a batch that was ended meanwhile; then its jobs are cancelled.
    """
    command = GiveSignal(name=BATCH_CLOSED, id=BATCH_CLOSED, value=msgspec.Raw(msgspec.json.encode(count)))
    try:
        await send(client, ref, command, by=by)
    except UnknownSignalError as error:
        await end_jobs(client, ref)
        raise IllegalTransitionError(ref.job_id, error.state, _TAKE_JOBS) from error


def with_end(spec: BatchSpec, name: str, task: Kind, options: Options) -> BatchSpec:
    """Return the spec with what follows the batch. Raises: InvalidInputError, TaskDefinitionError."""
    told = tuple(each for each in _TOLD if each in task.signature.names)
    task.signature.check_known(dict.fromkeys(told), told)
    refuse_of_maker(options, f"task {task.name} at the end of batch {name}", "its batch")
    if options.declared or options.declared_queue is not None:
        raise TaskDefinitionError(
            f"task {task.name} cannot end a batch: its limits have keys; name them in options(limits=...)"
        )
    node = node_of(task, options, id=check_token("batch", f"{name}-end"))
    return msgspec.structs.replace(spec, end=node, told=told)
