"""Batches that are opened, filled and closed one call after another, for programs without the code of the tasks.

`graphs.batches` says what a batch is and what closes it. Here its jobs come in portions, each after the one before it. A
lock lets one caller at a time add jobs or close the batch, so that no job is added after the last one and none is missed.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from typing import Any, Final, NamedTuple

from jobledger.ledger.additions.bulk import BulkResult
from jobledger.ledger.client import Ledger
from jobledger.ledger.graphs.batch_end import count_of, spec_of
from jobledger.ledger.graphs.batch_run import BatchSpec, run_batch
from jobledger.ledger.graphs.batches import close, known_batch, require_free_end, require_unended, with_end
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.chain import load
from jobledger.ledger.model.errors import InvalidInputError, NotFoundError, RefusedError
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import BUILT_IN_QUEUE, ITEMS_MAX, RUN_BATCH, child_id
from jobledger.ledger.model.subjects import JobRef, check_token
from jobledger.ledger.named.book import find_announced
from jobledger.ledger.named.verbs import NamedJob, Portion, options_of
from jobledger.ledger.tasks import TaskWithOptions

_LOCK: Final = "batch"


class Batch(NamedTuple):
    """A batch as it is now."""

    job: Job  #: the run that stands for it
    spec: BatchSpec

    @property
    def ref(self) -> JobRef:
        """The name of its run."""
        return JobRef(queue=self.job.queue, job_id=self.job.id)

    @property
    def size(self) -> int | None:
        """The number of its jobs; None while it is open."""
        return count_of(self.job)


async def batch_spec(
    ledger: Ledger,
    name: str,
    task: str,
    options: Mapping[str, Any],
    end: tuple[str, Mapping[str, Any]] | None,
) -> BatchSpec:
    """Return the stored form of a batch of announced tasks; `end`: the task that follows it, with its options.

    Raises: TaskNotFoundError, InvalidError, UnreachableError; AccessDeniedError for a limit that the following job may
    not name.
    """
    found = await find_announced(ledger.patience, ledger.announced, task)
    spec = BatchSpec(task=found.name, queue=options_of(found, options).queue)
    if end is None:
        return spec
    last, chosen = end
    ending = await find_announced(ledger.patience, ledger.announced, last)
    of_end, own = options_of(ending, chosen), ending.defaults.limits
    spec = with_end(spec, name, ending, of_end)
    await ledger.patience.read(lambda: ledger.code_limits.ensure(of_end, ending.name, own))
    return spec


async def open_batch(
    ledger: Ledger, name: str, spec: BatchSpec, *, by: str = "", trace: str = ""
) -> JobHandle[dict[str, int]]:
    """Open a batch; an existing one with the same task, queue and end does not change.

    Raises: InvalidInputError, also if another job has the id of the job that follows the batch; IllegalTransitionError
    for a batch that was ended before it was closed; and as `enqueue`.
    """
    await require_free_end(ledger, name, spec)
    options = run_batch.defaults.changed(
        {"id": name, "by": by, "trace": trace, "on_other_input": "keep"}, queue=None, limits=()
    )  # `known_batch` compares it with one that exists
    handle = await ledger.enqueue(TaskWithOptions(run_batch, options), batch=spec)
    if not handle.created:
        await known_batch(ledger, handle.ref, spec)
    return handle


async def find_batch(ledger: Ledger, name: str) -> Batch:
    """Return a batch. Raises: NotFoundError, InvalidTokenError, UnreachableError."""
    ref = JobRef(queue=BUILT_IN_QUEUE, job_id=check_token("batch", name))
    job = (await ledger.patience.read(lambda: load(ledger.log, ref))).job
    if job is None or job.task != RUN_BATCH:
        raise NotFoundError(f"there is no batch {name}: open it first")
    return Batch(job, await ledger.patience.read(lambda: spec_of(ledger, job)))


async def add_to_batch(
    ledger: Ledger,
    name: str,
    jobs: AsyncIterable[NamedJob],
    *,
    first: int = 0,
    by: str = "",
    trace: str = "",
) -> BulkResult:
    """Add jobs from the place `first` (from 0) on. An existing job is left alone, so the same jobs can be sent again.

    Raises: InputMismatchError for an existing job with another input; NotFoundError; LockTimeoutError while others add;
        InvalidInputError for a gap before them; IllegalTransitionError for an ended batch; as `enqueue_named_many`.
    """
    async with ledger.lock(_LOCK, check_token("batch", name), wait_s=0):
        batch = await find_batch(ledger, name)
        await require_unended(ledger, batch.job)
        if first and not await _has(ledger, batch, first - 1):
            raise InvalidInputError(
                f"batch {name} has no job {first - 1:,}: add its jobs one portion after the other, from the first "
                "that is missing on"
            )
        portion = Portion(name, batch.spec.task, batch.spec.queue, first, batch.size)
        result = await ledger.enqueue_named_many(jobs, by=by, trace=trace, portion=portion)
        await require_unended(ledger, (await find_batch(ledger, name)).job)
        return result


async def close_batch(ledger: Ledger, name: str, count: int, *, by: str = "") -> None:
    """Close a batch with the number of its jobs: it ends once all have ended. The same number again changes nothing.

    Raises: NotFoundError; LockTimeoutError while somebody adds jobs; InvalidInputError if it has fewer or more jobs;
    RefusedError for a batch closed with another number; IllegalTransitionError for one that was ended.
    """
    async with ledger.lock(_LOCK, check_token("batch", name), wait_s=0):
        batch = await find_batch(ledger, name)
        await require_unended(ledger, batch.job)
        if batch.size is not None:
            if batch.size != count:
                raise RefusedError(
                    f"batch {name} is closed with {batch.size:,} jobs, not {count:,}: open another one for more"
                )
            return
        for place, is_there in ((count - 1, True), (count, False)):
            if 0 <= place < ITEMS_MAX and await _has(ledger, batch, place) != is_there:
                wrong = "fewer" if is_there else "more"
                raise InvalidInputError(
                    f"batch {name} has {wrong} than {count:,} jobs: say how many were added to it"
                )
        await close(ledger, batch.ref, count, by=by)


async def _has(ledger: Ledger, batch: Batch, place: int) -> bool:
    """Return whether a batch has a job at a place."""
    ref = JobRef(queue=batch.spec.queue, job_id=child_id(batch.job.id, 1, place))
    chain = ledger.names.chain(ref)
    return await ledger.patience.read(lambda: ledger.log.newest_sequence(chain)) > 0
