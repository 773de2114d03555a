"""The ledger over HTTP, for async code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

import httpx
import msgspec

from jobledger.gateway.client import calls, graph_calls
from jobledger.gateway.client.calls import AnyTask, Call, JobOptions, Reply
from jobledger.gateway.client.models import (
    BatchCount,
    BulkResult,
    EmitAnswer,
    EnqueueAnswer,
    Event,
    JobLogs,
    JobSnapshot,
)
from jobledger.gateway.client.problems import error_of, read_problem
from jobledger.ledger.model.errors import InvalidInputError, ResultTimeoutError

if TYPE_CHECKING:
    from jobledger.admin.verbs.kit import Verb
    from jobledger.ledger.graphs.graph import Graph

T = TypeVar("T")

_TIMEOUT_S: Final = 10.0


def connect(url: str, *, key: str = "", timeout_s: float = _TIMEOUT_S, **options: Any) -> Ledger:
    """Return the ledger behind a gateway, for the length of an `async with` block.

    `key`: "" for the key of this account, if the gateway is on this machine (see `ledger.access.account`).
    `timeout_s`: how long one request may take, without the time that it waits for the end of a job.
    `options`: options of `httpx.AsyncClient`, such as `verify` or `proxy`.
    """
    return Ledger(httpx.AsyncClient(**calls.settings(url, key, timeout_s), **options))


class Requests:
    """Sends requests until a gateway answers them."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def snapshot(self, path: str, wait_s: float | None = None) -> JobSnapshot:
        """Return a job, after waiting for its end if that is asked for. Raises: as `done`."""
        reply = await self.done(calls.job_call(path, wait_s))
        return msgspec.json.decode(reply.body, type=JobSnapshot)

    async def done(self, call: Call) -> Reply:
        """Send a request until a gateway answers it. Raises: the error in the answer; ServerUnreachableError."""
        tries = calls.Tries(call, str(self.http.base_url))
        while True:
            reply: Reply | None = None
            try:
                reply = _reply(
                    await self.http.request(
                        call.method,
                        call.path,
                        params=call.params,
                        headers=dict(call.headers),
                        content=call.body,
                        timeout=_TIMEOUT_S + call.waits_s,
                    )
                )
            except httpx.TransportError as error:
                pause_s = tries.failed(error)
            else:
                if not tries.is_to_be_tried_again(reply):
                    return calls.checked(reply)
                pause_s = tries.asked_back(reply)
            await asyncio.sleep(pause_s)


class Ledger:
    """The verbs of a ledger over HTTP; errors are those of `jobledger.ledger`, with the gateway's `problem`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._requests = Requests(http)
        self.graphs = Graphs(self._requests)

    async def __aenter__(self) -> Self:
        """Send nothing before the first verb."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def enqueue(
        self,
        task: AnyTask,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        options: JobOptions | None = None,
        **arguments: Any,
    ) -> JobHandle:
        """Add one job; when this returns, the job is in the ledger.

        `task`: its name, or the task itself, whose types then check the input here. The input is one mapping, or keyword
        arguments. A request that breaks is repeated; its `Idempotency-Key` prevents a second job.

        Raises: UnknownTaskError, InvalidInputError, PayloadTooLargeError, AccessDeniedError, LedgerFullError,
            ServerUnreachableError.
        """
        order = calls.order_of(task, values, arguments, options or {})
        reply = await self._requests.done(calls.enqueue_call(order))
        made = msgspec.json.decode(reply.body, type=EnqueueAnswer)
        return JobHandle(self._requests, made.queue, made.id, created=made.created, sequence=made.sequence)

    async def enqueue_many(
        self,
        task: AnyTask,
        inputs: Iterable[Mapping[str, Any]],
        *,
        options: JobOptions | None = None,
        batch: str | None = None,
        on_end: AnyTask | None = None,
    ) -> BulkResult:
        """Add a job for each input as a stream: memory stays bounded whatever its length.

        A request that breaks is not repeated; the jobs before the break are in the ledger. `batch` names the jobs by
        their places in it, so that a repeat of the call adds the missing ones; `on_end` is enqueued when all jobs have
        ended.

        Raises: as `enqueue`; the sentence names the line.
        """
        named: JobOptions = options or {}
        if batch is not None:
            return await self._batch(batch, task, inputs, named, on_end)
        if on_end is not None:
            raise InvalidInputError("on_end is what follows a batch: name one with batch=")
        return await self._bulk(calls.order_of(task, values, {}, named) for values in inputs)

    async def run_graph(self, graph: Graph | Mapping[str, Any], *, id: str | None = None) -> JobHandle:  # noqa: A002 - as the ledger's
        """Begin a graph as one job, whose result holds the results of the nodes by name.

        `graph`: made of tasks in code, or the body of `POST /v1/graphs`. Raises: as `enqueue`.
        """
        reply = await self._requests.done(graph_calls.graph_call(graph, id))
        made = msgspec.json.decode(reply.body, type=EnqueueAnswer)
        return JobHandle(self._requests, made.queue, made.id, created=made.created, sequence=made.sequence)

    async def emit(self, route: str, data: Any, *, id: str | None = None) -> EmitAnswer:  # noqa: A002 - as the ledger's
        """Hand data to a route as a delivery; a repeat with the same `id` makes no jobs.

        Raises: NotFoundError, InvalidInputError, AccessDeniedError, LedgerFullError, ServerUnreachableError.
        """
        reply = await self._requests.done(graph_calls.emit_call(route, data, id))
        return msgspec.json.decode(reply.body, type=EmitAnswer)

    async def _batch(
        self,
        name: str,
        task: AnyTask,
        inputs: Iterable[Mapping[str, Any]],
        named: JobOptions,
        on_end: AnyTask | None,
    ) -> BulkResult:
        opened = await self._requests.done(graph_calls.open_call(name, task, named, on_end))
        known = msgspec.json.decode(opened.body, type=BatchCount)
        added = await self._bulk(graph_calls.jobs_of(task, inputs, named), {"batch": name})
        if known.count is None:
            close = {"count": added.created + added.existing}
            await self._requests.done(calls.json_call("POST", f"/v1/batches/{name}/close", close))
        return added

    async def _bulk(
        self, orders: Iterable[Mapping[str, Any]], params: Mapping[str, str] | None = None
    ) -> BulkResult:
        body = _feed(calls.lines_of(orders))
        headers = {"content-type": "application/x-ndjson"}
        try:
            answer = await self._http.post(
                "/v1/jobs/bulk", params=params, content=body, headers=headers, timeout=None
            )
        except httpx.TransportError as error:
            raise calls.not_reached(str(self._http.base_url), error) from error
        reply = calls.checked(_reply(answer))
        return msgspec.json.decode(reply.body, type=BulkResult)

    async def do(self, verb: Verb[T]) -> T:
        """Do a verb of `jobledger.admin.verbs`, and return the gateway's answer.

        Raises: the error in the gateway's answer; ServerUnreachableError.
        """
        reply = await self._requests.done(graph_calls.verb_call(verb))
        return graph_calls.answer_in(reply.body, verb)

    async def job(self, job: str, *, queue: str | None = None) -> JobHandle:
        """Return the job of an id. Raises: JobNotFoundError, AmbiguousIdError, ServerUnreachableError."""
        found = await self._requests.snapshot(calls.job_path(queue, job))
        return JobHandle(self._requests, found.queue, found.id, created=False, sequence=found.last_sequence)

    async def events(
        self,
        *,
        types: Sequence[str] = (),
        queue: str | None = None,
        task: str | None = None,
        job: str | None = None,
        from_sequence: int | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Iterate events for ever, each once and in order: from a sequence on, or else the new ones.

        A stream that breaks is opened again after the last event, on whichever gateway answers. A caller that stops
        early closes it: `async with contextlib.aclosing(ledger.events()) as events`.

        Raises: InvalidInputError, AccessDeniedError; ServerUnreachableError once no gateway answers for 10 s.
        """
        params = calls.event_params(types=types, queue=queue, task=task, job=job)
        reader = calls.EventReader("" if from_sequence is None else str(from_sequence - 1))
        async with contextlib.aclosing(self._lines(params, reader)) as lines:
            async for line in lines:
                if (event := reader.event(line)) is not None:
                    yield event

    async def _lines(self, params: Mapping[str, Any], reader: calls.EventReader) -> AsyncGenerator[str, None]:
        silent = calls.Silence()
        while True:
            headers = calls.event_headers(reader)
            try:
                timeout = httpx.Timeout(_TIMEOUT_S, read=calls.STREAM_SILENCE_S)
                async with self._http.stream(
                    "GET", "/v1/events", params=params, headers=headers, timeout=timeout
                ) as answer:
                    if answer.is_success:
                        silent.ends()
                        async for line in answer.aiter_lines():
                            yield line
                    elif answer.status_code not in calls.AGAIN:
                        raise error_of(read_problem(answer.status_code, await answer.aread(), ""))
            except httpx.TransportError as error:
                silent.goes_on(str(self._http.base_url), error)
            await asyncio.sleep(calls.RECONNECT_S)


class Graphs:
    """The graphs that are stored under their names."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def put(self, graph: Graph | Mapping[str, Any], *, reason: str = "") -> int:
        """Store a graph under its name, unless its newest version is the same; return the version.

        `graph`: made of tasks in code, or the body of `POST /v1/graphs`. Raises: InvalidInputError,
            TaskNotFoundError, AccessDeniedError, LedgerFullError, ServerUnreachableError.
        """
        reply = await self._requests.done(graph_calls.put_graph_call(graph, reason))
        return graph_calls.version_in(reply.body)

    async def run(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - as the ledger's
        **said: Unpack[graph_calls.RunOptions],
    ) -> JobHandle:
        """Begin a run of a stored graph as one job; its result has those of the nodes by name. Raises: as `enqueue`."""
        reply = await self._requests.done(graph_calls.run_call(name, input, said))
        made = msgspec.json.decode(reply.body, type=EnqueueAnswer)
        return JobHandle(self._requests, made.queue, made.id, created=made.created, sequence=made.sequence)

    async def remove(self, name: str, *, reason: str = "") -> None:
        """Take a stored graph away; its runs go on. Raises: NotFoundError, AccessDeniedError, ServerUnreachableError."""
        await self._requests.done(graph_calls.remove_graph_call(name, reason))


class JobHandle:
    """One job seen from outside: always read from the ledger, so never stale."""

    def __init__(self, requests: Requests, queue: str, job_id: str, *, created: bool, sequence: int) -> None:
        self._requests = requests
        self.queue = queue
        self.id = job_id
        self.created = created  #: False: the id existed in the queue
        self.sequence = (
            sequence  #: stream sequence of its first event; for a job that was looked up, of its newest
        )
        self._path = calls.job_path(queue, job_id)

    def __repr__(self) -> str:
        """Return its name."""
        return f"<job {self.queue}/{self.id}>"

    async def snapshot(self) -> JobSnapshot:
        """Return the job as it is. Raises: JobNotFoundError, ServerUnreachableError."""
        return await self._requests.snapshot(self._path)

    async def state(self) -> str:
        """Return the job's state. Raises: as `snapshot`."""
        return (await self.snapshot()).status

    async def wait(self, *, timeout_s: float | None = None) -> JobSnapshot:
        """Wait for the job's end. Raises: ResultTimeoutError; the job goes on unharmed."""
        limit = calls.Limit(timeout_s)
        while True:
            found = await self._requests.snapshot(self._path, limit.next_wait_s())
            if found.is_final:
                return found
            if limit.is_over():
                raise ResultTimeoutError(
                    f"job {self.id} is {found.status} after {timeout_s:g} s, and goes on: wait longer, or look later"
                )

    async def result(self, *, timeout_s: float | None = None) -> Any:
        """Wait for the job's end and return what its task returned.

        Raises: JobFailedError, JobCancelledError, ResultTimeoutError, AccessDeniedError.
        """
        await self.wait(timeout_s=timeout_s)
        reply = await self._requests.done(Call("GET", f"{self._path}/result"))
        return msgspec.json.decode(reply.body)

    async def logs(self, *, attempt: int | None = None, step: str | None = None) -> JobLogs:
        """Return the log lines of all attempts, of one attempt or of one step; old lines may be missing.

        Raises: JobNotFoundError, AccessDeniedError, ServerUnreachableError.
        """
        params = {name: value for name, value in (("attempt", attempt), ("step", step)) if value is not None}
        reply = await self._requests.done(Call("GET", f"{self._path}/logs", params=params))
        return msgspec.json.decode(reply.body, type=JobLogs)

    async def cancel(self, *, reason: str = "") -> None:
        """Cancel the job; a running one is asked to end. Raises: IllegalTransitionError for one that has ended."""
        await self._act("cancel", reason)

    async def retry(self, *, reason: str = "") -> None:
        """Run a waiting job at once. Raises: IllegalTransitionError."""
        await self._act("retry", reason)

    async def requeue(self, *, reason: str = "", input: Mapping[str, Any] | None = None) -> None:  # noqa: A002 - as the field
        """Give a dead letter another try, perhaps with another input. Raises: IllegalTransitionError, InvalidInputError."""
        await self._act("requeue", reason, **({} if input is None else {"input": dict(input)}))

    async def discard(self, *, reason: str = "") -> None:
        """Let a dead letter be. Raises: IllegalTransitionError."""
        await self._act("discard", reason)

    async def _act(self, verb: str, reason: str, **more: Any) -> None:
        call = calls.json_call("POST", f"{self._path}/{verb}", {"reason": reason, **more}, is_once=True)
        await self._requests.done(call)


def _reply(answer: httpx.Response) -> Reply:
    return Reply(answer.status_code, answer.headers, answer.content)


async def _feed(parts: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Give the parts of a body, letting others run between them."""
    for part in parts:
        yield part
        await asyncio.sleep(0)
