"""The requests of a client, and the meaning of their answers. No I/O, so that async and blocking code share it."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx
import msgspec
import uuid_utils

from jobledger.gateway.client.models import Event
from jobledger.gateway.client.problems import error_of, read_problem
from jobledger.ledger.access.account import ACCOUNT_FILE, THIS_MACHINE, read_account_key
from jobledger.ledger.files import data_folder
from jobledger.ledger.model.errors import (
    ConfigurationError,
    InvalidInputError,
    NoDataFolderError,
    ServerUnreachableError,
)
from jobledger.ledger.model.subjects import check_token
from jobledger.ledger.options import ORDER_FIELDS, OrderOptions
from jobledger.ledger.tasks import Task, TaskWithOptions

WAIT_S: Final = 30.0  #: how long one request waits for the end of a job, before another one is sent
PATIENCE_S: Final = 10.0  #: how long a request is repeated that is not answered, or is to be sent again later
RECONNECT_S: Final = 0.2
STREAM_SILENCE_S: Final = 45.0  #: a gateway sends something every 15 s
AGAIN: Final = frozenset({429, 502, 503})
_LINES_AT_ONCE: Final = 500
_PAUSE_MAX_S: Final = 5.0

encode: Final = msgspec.json.Encoder().encode

AnyTask = Task[..., Any] | TaskWithOptions[..., Any] | str


class JobOptions(OrderOptions, total=False):
    """The options of a job to enqueue, beside its input. If the queue has its id, that job is returned as it is."""

    queue: str | None
    limits: list[str]


class Call(NamedTuple):
    """One request."""

    method: str
    path: str
    params: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    waits_s: float = 0.0  #: how long the gateway may wait before it answers
    is_once: bool = False  #: True: not repeated if the gateway may have done it


class Reply(NamedTuple):
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Tries:
    """The tries of one request: how long to wait before the next one, and when to give up."""

    def __init__(self, call: Call, url: str) -> None:
        self._call = call
        self._url = url
        self._until = time.monotonic() + PATIENCE_S
        self._count = 0

    def failed(self, error: httpx.TransportError) -> float:
        """Return the seconds before the next try of a request that was not answered. Raises: ServerUnreachableError."""
        is_unsent = isinstance(error, httpx.ConnectError)
        if self._is_over() or (self._call.is_once and not is_unsent):
            raise not_reached(self._url, error) from error
        return self._pause_s("")

    def is_to_be_tried_again(self, reply: Reply) -> bool:
        """Return whether the gateway or its proxy asks for a later try, and there is time left for it."""
        return reply.status in AGAIN and not self._is_over()

    def asked_back(self, reply: Reply) -> float:
        """Return the seconds to wait before the next try, as the answer asks."""
        return self._pause_s(reply.headers.get("retry-after", ""))

    def _is_over(self) -> bool:
        return time.monotonic() > self._until

    def _pause_s(self, asked: str) -> float:
        self._count += 1
        return min(float(asked) if asked.isdecimal() else 0.05 * 2**self._count, _PAUSE_MAX_S)


class Silence:
    """The time for which no gateway has answered a reader of events."""

    def __init__(self) -> None:
        self._since: float | None = None

    def ends(self) -> None:
        """Note that a gateway answers."""
        self._since = None

    def goes_on(self, url: str, error: httpx.TransportError) -> None:
        """Note that no gateway answers. Raises: ServerUnreachableError after 10 s without an answer."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > PATIENCE_S:
            raise not_reached(url, error) from error


class Limit:
    """The time limit of a wait for the end of a job, which takes one request after the other."""

    def __init__(self, timeout_s: float | None) -> None:
        self._until = None if timeout_s is None else time.monotonic() + timeout_s

    def next_wait_s(self) -> float:
        """Return how long the next request waits."""
        return WAIT_S if self._until is None else min(WAIT_S, max(0.0, self._until - time.monotonic()))

    def is_over(self) -> bool:
        """Return whether there is no time left."""
        return self._until is not None and time.monotonic() >= self._until


def settings(url: str, key: str, timeout_s: float) -> dict[str, Any]:
    """Return the options of the HTTP client; for a gateway on this machine the account's key replaces a missing one."""
    headers = {"user-agent": "jobledger-client"}
    if key := key or _account_key(url):
        headers["authorization"] = f"Bearer {key}"
    return {"base_url": url, "headers": headers, "timeout": timeout_s, "follow_redirects": False}


def _account_key(url: str) -> str:
    """Return the key for a gateway of this account on this machine; "" for another gateway, or without such a key."""
    if httpx.URL(url).host not in THIS_MACHINE:
        return ""
    with contextlib.suppress(NoDataFolderError, ConfigurationError):
        return read_account_key(data_folder(os.environ, sys.platform) / ACCOUNT_FILE)
    return ""


def job_path(queue: str | None, job_id: str) -> str:
    """Return the address of a job. Raises: InvalidTokenError."""
    check_token("job id", job_id)
    return f"/v1/jobs/{job_id}" if queue is None else f"/v1/jobs/{check_token('queue', queue)}/{job_id}"


def job_call(path: str, wait_s: float | None) -> Call:
    """Return the request that reads a job after waiting `wait_s` for its end."""
    if wait_s is None:
        return Call("GET", path)
    return Call("GET", path, headers={"prefer": f"wait={math.ceil(wait_s)}"}, waits_s=wait_s + 1)


def event_params(
    *, types: Sequence[str], queue: str | None, task: str | None, job: str | None
) -> dict[str, Any]:
    """Return the parameters that choose the events."""
    given = {"type": list(types), "queue": queue, "task": task, "job": job}
    return {name: value for name, value in given.items() if value}


def event_headers(reader: EventReader) -> dict[str, str]:
    """Return the header that makes a stream continue."""
    return {"accept": "text/event-stream", **({"last-event-id": reader.last_id} if reader.last_id else {})}


def json_call(method: str, path: str, value: Any, *, is_once: bool = False) -> Call:
    """Return a request with a JSON body."""
    headers = {"content-type": "application/json"}
    return Call(method, path, headers=headers, body=encode(value), is_once=is_once)


def checked(reply: Reply) -> Reply:
    """Return the answer unless it reports an error. Raises: the error that it reports."""
    if reply.status >= 400:  # noqa: PLR2004 - where refusals begin
        raise error_of(read_problem(reply.status, reply.body, reply.headers.get("x-request-id", "")))
    return reply


def not_reached(url: str, error: Exception) -> ServerUnreachableError:
    """Return the error for a gateway that gives no answer."""
    return ServerUnreachableError(
        f"the gateway at {url} gives no answer ({type(error).__name__}): see that it runs, then try again"
    )


def given_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, which are those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def order_of(
    task: AnyTask, given: Mapping[str, Any] | None, arguments: Mapping[str, Any], named: JobOptions
) -> dict[str, Any]:
    """Return the body that enqueues a job, with an id only if one was given. Raises: InvalidInputError."""
    if given is not None and arguments:
        raise InvalidInputError("give the input as one mapping or as keyword arguments, not as both")
    values = dict(given) if given is not None else dict(arguments)
    chosen = given_of(named)
    if isinstance(task, str):
        return {"task": task, "input": values, **chosen}
    plain, _ = task.unpacked
    text = plain.signature.encode((), values)
    return {**said_of(task), "input": msgspec.Raw(text), **chosen}


def enqueue_call(order: Mapping[str, Any]) -> Call:
    """Return the request that enqueues a job. It may be sent twice: an id or a key makes one job of it."""
    call = json_call("POST", "/v1/jobs", order)
    if "id" in order:
        return call
    return call._replace(headers={**call.headers, "idempotency-key": str(uuid_utils.uuid7())})


def said_of(task: Task[..., Any] | TaskWithOptions[..., Any]) -> dict[str, Any]:
    """Return a task's name and all options in its code, since the gateway may not know that code.

    Raises: InvalidInputError for an option that needs a connection to the ledger's server.
    """
    plain, options = task.unpacked
    only_there = [
        name for name in ("unique", "debounce_s", "declared_queue") if getattr(options, name) is not None
    ]
    if only_there or options.declared:
        name = only_there[0] if only_there else "limits with definitions"
        raise InvalidInputError(f"{name} in code needs a connection to the ledger: enqueue it from there")
    said = {
        name: getattr(options, name) for name in ("queue", "id", "delay_s", "run_at", "owner", *ORDER_FIELDS)
    }
    if options.on_other_input == "keep":
        said["on_other_input"] = "keep"
    return {"task": plain.name} | {
        name: value for name, value in said.items() if value not in (None, "", (), {})
    }


def lines_of(orders: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Return the lines of a bulk request, many at a time."""
    portion: list[bytes] = []
    for order in orders:
        portion.append(encode(order))
        if len(portion) == _LINES_AT_ONCE:
            yield b"\n".join((*portion, b""))
            portion.clear()
    if portion:
        yield b"\n".join((*portion, b""))


class EventReader:
    """A parser of server-sent events, line by line, which keeps the id to resume from."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id  #: id of the newest event that was read; a new request continues after it
        self._kind = ""
        self._data = ""

    def event(self, line: str) -> Event | None:
        """Take a line; return the event that it completes, if any. Raises: an error that the stream reports."""
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "id":
                self.last_id = value
            case "event":
                self._kind = value
            case "data":
                self._data += value
            case "":
                kind, data, self._kind, self._data = self._kind, self._data, "", ""
                if kind == "problem":
                    problem = read_problem(500, data.encode(), "")
                    if problem.code != "READER_TOO_SLOW":  # else the reader resumes from the last id
                        raise error_of(problem)
                elif data:
                    fields = msgspec.json.decode(data, type=dict[str, Any])
                    return Event(sequence=int(self.last_id), type=kind, fields=fields)
            case _:
                pass
        return None
