"""Endpoints that add jobs by the names of their tasks: one with an idempotency key, or very many as lines."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Final

import msgspec

from jobledger.admin.hidden_tasks import naming_no_hidden_task
from jobledger.gateway.api.additions import (
    REFUSALS,
    JobEnqueued,
    added,
    existing,
    id_of,
    require_free,
    require_own,
    reused,
)
from jobledger.gateway.api.batches import batch_for
from jobledger.gateway.http.api_request import ApiRequest, keyed_id
from jobledger.gateway.http.endpoint import NDJSON, Answer, Endpoint
from jobledger.gateway.problems import ProblemError, code_of
from jobledger.gateway.shares import opened
from jobledger.ledger.additions.bulk import BulkResult
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.commands import Enqueue
from jobledger.ledger.model.errors import (
    InputMismatchError,
    InvalidError,
    InvalidInputError,
    NotFoundError,
    PayloadTooLargeError,
)
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.runs.orders import ITEMS_MAX
from jobledger.ledger.model.subjects import JobRef, check_token, check_users_queue
from jobledger.ledger.named.book import find_announced
from jobledger.ledger.named.verbs import NamedJob
from jobledger.ledger.named_batches import add_to_batch

#: Bytes that a line may have beside its input, which has its own limit.
_LINE_MORE_BYTES: Final = 64 << 10
#: Fields of a job beside its task, its input and its id.
_FIELDS: Final = tuple(name for name in NamedJob.__struct_fields__ if name not in {"task", "input", "id"})


class NewJob(NamedJob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to add."""

    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))  #: object of the arguments


class BulkQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of the lines of a bulk request."""

    task: str | None = None  #: each line is the input of a job of this task; without it, a whole job
    queue: str | None = None  #: with `task`: where the jobs go
    batch: str | None = None  #: the jobs are added to this batch, and named by their places in it
    #: with `batch`: the place of the first line, from 0; jobs that exist at a place stay as they are
    first: Annotated[int, msgspec.Meta(ge=0, lt=ITEMS_MAX)] = 0


class BulkEnqueued(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that were added."""

    created: int
    existing: int  #: jobs whose ids existed already
    last_sequence: int  #: highest stream sequence of the jobs created; 0 if none was
    lines: int


async def enqueue_job(asked: ApiRequest, *, body: NewJob) -> Answer:
    """Add one job; it is in the ledger before the answer. A repeat of its `Idempotency-Key` adds no other job."""
    ledger = asked.gateway.ledger
    queue, names_jobs = await _allowed(asked, body.task, body.queue)
    job_id = id_of(asked, body.id)
    if body.id is None and names_jobs:
        job_id = None  # the task's own id makes the request safe to repeat, whatever its key
    is_keyed = job_id != body.id
    if is_keyed and job_id is not None:
        await require_free(asked, job_id, queue)
    fields = {name: said for name in _FIELDS if (said := getattr(body, name)) is not None}
    if is_keyed:
        fields["on_other_input"] = "keep"  # `_require_same` compares it
    try:
        handle = await ledger.enqueue_named(
            body.task, body.input, **fields, id=job_id, by=asked.principal.name, trace=asked.trace
        )
    except InputMismatchError as error:
        ref = JobRef(queue=error.queue, job_id=error.job_id)
        await existing(asked, ledger.handle_of(ref))  # raises for a caller who may not see that job
        raise
    held = await existing(asked, handle)
    if held is not None and is_keyed and handle.id == job_id:
        await _require_same(asked, held.job, body.task, bytes(body.input))
    return await added(asked, handle, held)


async def _allowed(asked: ApiRequest, task: str, queue: str | None) -> tuple[str, bool]:
    """Check that the caller may add a job; return its queue, and whether its task gives jobs their ids.

    Raises: ProblemError, TaskNotFoundError, InvalidTokenError, InvalidInputError, UnreachableError.
    """
    ledger = asked.gateway.ledger
    asked.principal.require("queue", None, check_token("task name", task))
    found = ledger.announced.known(task)
    if found is None:
        with naming_no_hidden_task(asked.principal):
            found = await find_announced(ledger.patience, ledger.announced, task)
    place = check_users_queue(found.defaults.queue if queue is None else queue)
    asked.principal.require("queue", place, task)
    return place, bool(found.defaults.id_template)


async def _require_same(asked: ApiRequest, job: Job, task: str, text: bytes) -> None:
    """Refuse an `Idempotency-Key` that was used for another job. Raises: ProblemError (IDEMPOTENCY_KEY_REUSED)."""
    require_own(asked, job)
    ledger = asked.gateway.ledger
    stored = await ledger.patience.read(
        lambda: ledger.inputs.get(job.order.input, job.order.input_ref, key=job.order.key)
    )
    if job.task != task or _canonical(stored) != _canonical(text):
        raise reused(f"job {job.id}")


def _canonical(text: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(text), order="sorted")
    except (msgspec.DecodeError, RecursionError):  # the line is not JSON, so it made no job
        return text


async def enqueue_jobs(asked: ApiRequest, *, query: BulkQuery) -> BulkEnqueued:
    """Add a job for each line of the body, read no faster than jobs are stored; a wrong line ends the request.

    The jobs of the lines before it are in the ledger. With `Idempotency-Key` the same lines name the same jobs, and the
    first line that differs ends the request. A line whose id has another input is refused after all others are stored:
    `mismatches` names each such line.
    """
    if asked.header("content-type").partition(";")[0].strip().lower() != NDJSON:
        raise ProblemError("BAD_REQUEST", f"send {NDJSON}, a job on each line")
    lines = _Lines(asked, await _of_batch(asked, query))
    try:
        with opened("uploads"):
            async with contextlib.aclosing(lines.jobs()) as jobs:
                found = await _enqueued(asked, query, lines, jobs)
    except InputMismatchError as error:
        raise _mismatched(error) from error
    except (InvalidError, NotFoundError, ProblemError) as error:
        # Either no line was read yet, or `compare` named the line: the last line read is not the cause.
        if not lines.number or (isinstance(error, ProblemError) and "line" in error.extra):
            raise
        counted_from_0 = f"input {lines.number - 1}: "  # here lines are counted from 1
        why = lines.why or str(error).removeprefix(counted_from_0)
        raise ProblemError(
            lines.code or code_of(error),
            f"line {lines.number}: {why}",
            line=lines.number,
            accepted=lines.number - 1,
        ) from error
    return BulkEnqueued(
        created=found.created,
        existing=found.existing,
        last_sequence=found.last_sequence,
        lines=lines.number,
    )


def _mismatched(error: InputMismatchError) -> ProblemError:
    """Return the problem for lines whose jobs exist with other inputs: each line, its job, and the difference."""
    lines = [
        {"line": (each.number or 0) + 1, "id": each.job_id, "queue": each.queue, "differing": each.differing}
        for each in (error, *error.others)
    ]
    sentence = str(error).replace(f"input {error.number}: ", f"line {lines[0]['line']}: ", 1)
    return ProblemError("INPUT_MISMATCH", sentence, line=lines[0]["line"], mismatches=lines)


async def _of_batch(asked: ApiRequest, query: BulkQuery) -> BulkQuery:
    """Return the query, with the queue of the batch if it names one. Raises: ProblemError, NotFoundError."""
    if query.batch is None:
        if query.queue is not None and query.task is None:
            raise ProblemError("BAD_REQUEST", "queue is for lines that are inputs: give task as well")
        if query.first:
            raise ProblemError("BAD_REQUEST", "first is a place in a batch: give batch as well")
        return query
    if asked.idempotency_key:
        raise ProblemError("BAD_REQUEST", "a batch names its jobs by their places: leave Idempotency-Key out")
    batch = await batch_for(asked, query.batch, "queue")
    return msgspec.structs.replace(query, queue=query.queue or batch.spec.queue)


async def _enqueued(
    asked: ApiRequest, query: BulkQuery, lines: _Lines, jobs: AsyncIterator[NamedJob]
) -> BulkResult:
    ledger, by, trace = asked.gateway.ledger, asked.principal.name, asked.trace
    if query.batch is not None:
        return await add_to_batch(ledger, query.batch, jobs, first=query.first, by=by, trace=trace)
    again = lines.compare if asked.idempotency_key else None
    return await ledger.enqueue_named_many(jobs, by=by, trace=trace, on_existing=again)


class _Lines:
    """The lines of one request, read one after the other."""

    def __init__(self, asked: ApiRequest, query: BulkQuery) -> None:
        self._asked = asked
        self._query = query
        self._line_max = asked.gateway.ledger.config.payload_bytes_max + _LINE_MORE_BYTES
        self._allowed: set[tuple[str, str | None]] = set()
        self._named: set[str] = set()  #: tasks that give jobs their ids, so that the key does not
        key = asked.idempotency_key
        self._id = keyed_id(asked.principal.name, key) if key else None
        self.number = 0  #: number of the line that was read last, from 1
        self.why = ""  #: what is wrong with that line, if known here
        self.code = ""

    async def jobs(self) -> AsyncGenerator[NamedJob, None]:
        """Yield the job of each line; empty lines are left out. Raises: InvalidInputError, ProblemError."""
        task, queue = self._query.task, self._query.queue
        decode = msgspec.json.Decoder(NamedJob).decode
        async for line in self._whole(self._asked.chunks()):
            self.number += 1
            if task is not None:
                job = NamedJob(task=task, input=msgspec.Raw(line), queue=queue)
            else:
                try:
                    job = decode(line)
                except (msgspec.MsgspecError, RecursionError) as error:
                    raise self._wrong(f"this is no job: {error}") from error
                if job.queue is None and queue is not None:
                    job = msgspec.structs.replace(job, queue=queue)
            if self._id is not None and job.id is not None:
                raise self._wrong("id and Idempotency-Key both name the job: give one of them")
            if (job.task, job.queue) not in self._allowed:
                await self._check(job)
            if self._id is not None and job.task not in self._named:
                job = msgspec.structs.replace(job, id=f"{self._id}-{self.number}", on_other_input="keep")
            yield job

    async def _check(self, job: NamedJob) -> None:
        try:
            queue, names_jobs = await _allowed(self._asked, job.task, job.queue)
            if self._id is not None and names_jobs:
                self._named.add(job.task)
            # A line that differs is refused before a job is made of it.
            if self._id is not None and self.number == 1 and job.task not in self._named:
                ref = JobRef(queue=queue, job_id=f"{self._id}-1")
                await require_free(self._asked, ref.job_id, queue)
                await self._require_same(ref, job.task, bytes(job.input))
        except ProblemError as error:
            # On an error of the ledger `enqueue_named_many` first waits for the lines before.
            raise self._wrong(str(error), error.code) from error
        self._allowed.add((job.task, job.queue))

    async def compare(self, command: Enqueue) -> None:
        """Compare a line with the job that its key made before. Raises: ProblemError (IDEMPOTENCY_KEY_REUSED)."""
        if command.task in self._named:
            return
        ledger, number = self._asked.gateway.ledger, int(command.ref.job_id.rpartition("-")[2])
        text = await ledger.inputs.get(command.order.input, command.order.input_ref, key=command.order.key)
        try:
            await self._require_same(command.ref, command.task, text)
        except ProblemError as error:
            raise ProblemError(
                error.code, f"line {number}: {error}", line=number, accepted=number - 1
            ) from error

    async def _require_same(self, ref: JobRef, task: str, text: bytes) -> None:
        ledger = self._asked.gateway.ledger
        history = await ledger.patience.read(lambda: ledger.log.read_chain(ledger.names.chain(ref)))
        job = fold(history[:1]).job
        if job is not None:
            await _require_same(self._asked, job, task, text)

    def _wrong(self, why: str, code: str = "BAD_REQUEST") -> InvalidInputError:
        self.why, self.code = why, code
        return InvalidInputError(why)

    async def _whole(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield whole lines. Raises: PayloadTooLargeError for a line that is too long."""
        rest = b""
        async for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                if len(line) > self._line_max:
                    raise self._too_long(len(line))
                if line.strip():
                    yield line
            if len(rest) > self._line_max:
                raise self._too_long(len(rest))
        if rest.strip():
            yield rest

    def _too_long(self, size: int) -> PayloadTooLargeError:
        self.number += 1
        error = PayloadTooLargeError("line", size, self._line_max)
        self.why = str(error)
        return error


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/v1/jobs",
        permission="queue",
        handler=enqueue_job,
        summary="Add a job",
        tag="jobs",
        body=NewJob,
        returns=JobEnqueued,
        heeds=("Idempotency-Key", "Prefer"),
        status=202,
        also=(200,),
        problems=(*REFUSALS, "UNIQUE_KEY_TAKEN", "DUPLICATE", "INPUT_MISMATCH"),
    ),
    Endpoint(
        method="POST",
        path="/v1/jobs/bulk",
        permission="queue",
        handler=enqueue_jobs,
        summary="Add a job for each line of a stream",
        tag="jobs",
        query=BulkQuery,
        heeds=("Idempotency-Key",),
        takes=NDJSON,
        returns=BulkEnqueued,
        status=202,
        problems=(*REFUSALS, "NOT_FOUND", "ILLEGAL_TRANSITION", "INPUT_MISMATCH"),
    ),
)
