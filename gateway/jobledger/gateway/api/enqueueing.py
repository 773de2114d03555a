"""Adding jobs by the names of their tasks: one, named by an idempotency key, or very many as lines in a stream."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import msgspec

from jobledger.admin.objects.jobs import JobShown
from jobledger.gateway.api.one_job import Held, read_job, shown
from jobledger.gateway.http.asked import Asked
from jobledger.gateway.http.endpoint import NDJSON, Answer, Endpoint
from jobledger.gateway.problems import ProblemError, code_of
from jobledger.ledger.handle import JobHandle
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.errors import (
    InvalidError,
    InvalidInputError,
    NotFoundError,
    PayloadTooLargeError,
    ResultTimeoutError,
)
from jobledger.ledger.model.trace import trace_id
from jobledger.ledger.named.verbs import NamedJob

_RESERVED: Final = "jobledger"  #: queues whose names begin so are the ledger's own
_WEBHOOKS: Final = "webhooks-out"
#: What a line may have beside its input, which has the limit of every input.
_LINE_MORE_BYTES: Final = 64 << 10


class NewJob(NamedJob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to add."""

    input: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))  #: object of the arguments


class JobEnqueued(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was added, or is there already."""

    id: str
    queue: str
    created: bool  #: False: it was there, and stays as it is
    sequence: int  #: stream sequence of the event that made it: `min_sequence` of a list that has it
    trace_id: str  #: of the W3C trace that it belongs to
    job: JobShown | msgspec.UnsetType = msgspec.UNSET  #: with `Prefer: wait=N`, where it ended in time


class BulkQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What each line is."""

    task: str | None = None  #: each line is the input of a job of this task; left out: each is a whole job
    queue: str | None = None  #: with `task`: where the jobs go


class BulkEnqueued(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that were added."""

    created: int
    existing: int  #: ids that were in their queues already
    last_sequence: int  #: highest stream sequence among the created; 0 when none was
    lines: int


async def enqueue_job(asked: Asked, *, body: NewJob) -> Answer:
    """Add one job; when this is answered, it is in the ledger. `Idempotency-Key` names it: repeated, it makes no second."""
    ledger, key = asked.gateway.ledger, asked.idempotency_key
    queue = await _allowed(asked, body.task, body.queue)
    if key and body.id is not None:
        raise ProblemError("BAD_REQUEST", "id and Idempotency-Key both name the job: give one of them")
    if key:
        body = msgspec.structs.replace(body, id=keyed_id(asked.principal.name, key))
        await _require_free(asked, body, queue)
    trace = asked.trace or f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    fields = {
        name: getattr(body, name) for name in NamedJob.__struct_fields__ if name not in {"task", "input"}
    }
    handle = await ledger.enqueue_named(body.task, body.input, **fields, by=asked.principal.name, trace=trace)
    held = None if handle.created else await _existing(handle)
    if held is not None:
        if key and handle.id == body.id:
            await _require_same(asked, held, body)
        trace = held.history[0].event.trace
    ended = await _ended(asked, handle)
    value = JobEnqueued(
        id=handle.id,
        queue=handle.queue,
        created=handle.created,
        sequence=handle.sequence,
        trace_id=trace_id(trace) or "",
        job=msgspec.UNSET if ended is None else ended,
    )
    status = 202 if handle.created and ended is None else 200
    location = {"location": f"/v1/jobs/{handle.queue}/{handle.id}"}
    return Answer(value=value, status=status, headers=location)


def keyed_id(principal: str, key: str) -> str:
    """Return the id of the job that a principal names by a key; no two principals meet."""
    digest = hashlib.sha256(f"{principal}\0{key}".encode()).digest()
    return "i-" + base64.urlsafe_b64encode(digest)[:43].decode()


async def _allowed(asked: Asked, task: str, queue: str | None) -> str:
    """Return the queue of a job to come, if its asker may add it there.

    Raises: ProblemError, TaskNotFoundError, InvalidTokenError, UnreachableError.
    """
    ledger = asked.gateway.ledger
    found = await ledger.patience.read(lambda: ledger.announced.get(task))
    place = queue if queue is not None else found.defaults.queue
    if place.startswith(_RESERVED) or place == _WEBHOOKS:
        raise ProblemError("BAD_REQUEST", f"queue {place[:80]!r} is the ledger's own: choose another one")
    asked.principal.require("queue", place, task)
    return place


async def _require_free(asked: Asked, body: NamedJob, queue: str) -> None:
    """Refuse a key that names a job of another queue. Raises: ProblemError (IDEMPOTENCY_KEY_REUSED)."""
    ledger = asked.gateway.ledger
    assert body.id is not None, "the key names it"
    chain = ledger.names.chains_of_id(body.id)
    known = await ledger.patience.read(lambda: ledger.log.read_chain(chain))
    other = next((stored.event for stored in known if stored.event.queue != queue), None)
    if other is not None:
        raise _reused(f"job {other.job} of queue {other.queue}")


async def _existing(handle: JobHandle[Any]) -> Held:
    history = await handle.history()
    job = fold(history[:1]).job
    assert job is not None, "a history is not empty"
    return Held(job, history, None)


async def _require_same(asked: Asked, held: Held, body: NamedJob) -> None:
    """Refuse a key that named another job. Raises: ProblemError (IDEMPOTENCY_KEY_REUSED)."""
    ledger, job = asked.gateway.ledger, held.job
    stored = await ledger.patience.read(lambda: ledger.inputs.get(job.order.input, job.order.input_ref))
    if job.task != body.task or _canonical(stored) != _canonical(bytes(body.input)):
        raise _reused(f"job {job.id}")


def _reused(what: str) -> ProblemError:
    return ProblemError(
        "IDEMPOTENCY_KEY_REUSED",
        f"this Idempotency-Key made {what}, with another task, queue or input: give each job a key of its own",
    )


def _canonical(text: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(text), order="sorted")


async def _ended(asked: Asked, handle: JobHandle[Any]) -> JobShown | None:
    """Return a job that ended while somebody waited for it, None where nobody did or it did not."""
    if asked.wait_s is None:
        return None
    with asked.gateway.life.waiting(asked.wait_s), contextlib.suppress(ResultTimeoutError):
        await handle.wait(timeout_s=asked.wait_s)
        if asked.principal.may("view"):
            return await shown(asked, await read_job(asked, handle.queue, handle.id))
    return None


async def enqueue_jobs(asked: Asked, *, query: BulkQuery) -> BulkEnqueued:
    """Add a job for each line of the body, taken no faster than they are stored; a wrong line ends it.

    The lines before that one are in the ledger. With `Idempotency-Key` the same lines make the same jobs again.
    """
    if asked.header("content-type").partition(";")[0].strip().lower() != NDJSON:
        raise ProblemError("BAD_REQUEST", f"send {NDJSON}, a job on each line")
    if query.queue is not None and query.task is None:
        raise ProblemError("BAD_REQUEST", "queue is for lines that are inputs: give task as well")
    lines = _Lines(asked, query)
    ledger, by = asked.gateway.ledger, asked.principal.name
    try:
        async with contextlib.aclosing(lines.jobs()) as jobs:
            found = await ledger.enqueue_named_many(jobs, by=by, trace=asked.trace)
    except (InvalidError, NotFoundError, ProblemError) as error:
        why = lines.why or str(error)
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


class _Lines:
    """The lines of one request, read one after the other."""

    def __init__(self, asked: Asked, query: BulkQuery) -> None:
        self._asked = asked
        self._query = query
        self._line_max = asked.gateway.ledger.config.payload_bytes_max + _LINE_MORE_BYTES
        self._allowed: set[tuple[str, str | None]] = set()
        key = asked.idempotency_key
        self._id = keyed_id(asked.principal.name, key) if key else None
        self.number = 0  #: of the line that was read last, from 1
        self.why = ""  #: what is wrong with it, where that is known here
        self.code = ""

    async def jobs(self) -> AsyncGenerator[NamedJob, None]:
        """Yield the job of each line; empty ones are passed over. Raises: InvalidInputError, ProblemError."""
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
            if self._id is not None:
                if job.id is not None:
                    raise self._wrong("id and Idempotency-Key both name the job: give one of them")
                job = msgspec.structs.replace(job, id=f"{self._id}-{self.number}")
            if (job.task, job.queue) not in self._allowed:
                await self._check(job)
            yield job

    async def _check(self, job: NamedJob) -> None:
        try:
            await _allowed(self._asked, job.task, job.queue)
        except ProblemError as error:  # as one of the ledger's, after which those before are waited for
            raise self._wrong(str(error), error.code) from error
        self._allowed.add((job.task, job.queue))

    def _wrong(self, why: str, code: str = "BAD_REQUEST") -> InvalidInputError:
        self.why, self.code = why, code
        return InvalidInputError(why)

    async def _whole(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield whole lines. Raises: PayloadTooLargeError for one that does not end."""
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
        problems=(
            "TASK_NOT_FOUND",
            "JOB_INVALID_INPUT",
            "PAYLOAD_TOO_LARGE",
            "IDEMPOTENCY_KEY_REUSED",
            "UNIQUE_KEY_TAKEN",
            "LEDGER_FULL",
            "LEDGER_BUSY",
        ),
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
        problems=("TASK_NOT_FOUND", "JOB_INVALID_INPUT", "PAYLOAD_TOO_LARGE", "LEDGER_FULL", "LEDGER_BUSY"),
    ),
)
