"""A gateway that tests ask in this process, and what they asked: every call is noted with the code that it got."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
from starlette.requests import HTTPConnection
from tests.support.limits import LIMIT_S

from jobledger.gateway.access.gate import Gate
from jobledger.gateway.app import app
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.http.endpoint import Endpoint
from jobledger.gateway.problems import ProblemError
from jobledger.ledger import JobHandle, Ledger, Task, Unique, task
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.model.commands import Claim, Complete, Fail, Interrupt
from jobledger.ledger.model.events import ErrorInfo
from jobledger.ledger.model.job import Job
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.model.rights.grants import ROLES, Permission
from jobledger.ledger.nats.leases import WorkerInfo
from jobledger.ledger.nats.task_book import write_tasks

ADMIN = Principal(name="ann", permissions=ROLES["admin"])
BASE = "http://127.0.0.1:8080"


@task(queue="mail", max_attempts=1)
async def send(to: str = "ann", cents: int = 1) -> str:
    """Send a letter."""
    return f"sent to {to}, {cents}"


@task(queue="mail", max_attempts=1, unique=Unique(args=("to",)))
async def greet(to: str) -> None:
    """Greet somebody, one greeting at a time."""


@task(queue="mail", max_attempts=1, unique=Unique(args=("to",), on_conflict="reject"))
async def once(to: str) -> None:
    """Greet somebody, and refuse a second greeting."""


def someone(
    *permissions: Permission, queues: tuple[str, ...] = ("*",), tasks: tuple[str, ...] = ("*",)
) -> Principal:
    """Return who may do only this."""
    return Principal(name="eve", permissions=frozenset(permissions), queues=queues, tasks=tasks)


class Doorman:
    """Lets everybody in as whom a test names, or refuses as it says."""

    gate: Gate | None = None

    def __init__(self) -> None:
        self.who: Principal | Exception = ADMIN

    def principal(self, connection: HTTPConnection) -> Principal:
        """Return who asks."""
        del connection
        if isinstance(self.who, Exception):
            raise self.who
        return self.who

    def form_token(self, connection: HTTPConnection) -> str:
        """Return what forms hold."""
        return self.principal(connection).name

    def can_log_out(self, connection: HTTPConnection) -> bool:
        """Return that nobody logged in."""
        del connection
        return False


class Failing:
    """Stands where a ledger or a projection was, and fails at whatever is asked of it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


class Asker:
    """Asks one gateway, and notes what was answered by which endpoint."""

    def __init__(
        self, gateway: Gateway, endpoints: tuple[Endpoint, ...], door: Doorman, folder: Path
    ) -> None:
        self.folder = folder  #: for what a test writes
        self.gateway = gateway
        self.ledger: Ledger = gateway.ledger
        self.door = door
        self.seen: set[tuple[str, str, str]] = set()  #: method, path of the table, status or code
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app(gateway)), base_url=BASE)
        self._endpoints = [(_pattern(each.path), each) for each in endpoints]

    def endpoint(self, method: str, path: str) -> Endpoint:
        """Return the endpoint that answers."""
        method = "GET" if method == "HEAD" else method
        return next(each for fits, each in self._endpoints if each.method == method and fits(path))

    async def sees(
        self,
        method: str,
        path: str,
        expected: int | str,
        *,
        who: Principal | Exception = ADMIN,
        **request: Any,
    ) -> httpx.Response:
        """Ask, and fail where the answer is not the status or the code that is expected."""
        self.door.who = who
        try:
            answer = await self.http.request(method, path, **request)
        finally:
            self.door.who = ADMIN
        found: int | str = answer.status_code
        if answer.headers.get("content-type") == "application/problem+json":
            found = cast("str", answer.json()["code"])
        assert found == expected, f"{method} {path}: {found} instead of {expected}: {answer.text[:500]}"
        endpoint = self.endpoint(method, path.partition("?")[0])
        self.seen.add((endpoint.method, endpoint.path, str(found)))
        if method == "GET" and found == 200 and "etag" in answer.headers:
            heads = {**request.pop("headers", {}), "if-none-match": "*"}  # whatever it is by then
            await self.sees(method, path, 304, who=who, headers=heads, **request)
        return answer

    async def get(self, path: str, **request: Any) -> Any:
        """Return what a GET answers."""
        return (await self.sees("GET", path, 200, **request)).json()

    async def post(self, path: str, body: Any, expected: int | str = 200, **request: Any) -> Any:
        """Return what a POST answers."""
        return (await self.sees("POST", path, expected, json=body, **request)).json()

    async def job(
        self, of: Task[..., Any] = send, /, *, queue: str = "mail", **values: Any
    ) -> JobHandle[Any]:
        """Return a new job."""
        return await self.ledger.enqueue(of.options(queue=queue), **values)

    async def running(self, job: JobHandle[Any]) -> Job:
        """Let somebody claim a job."""
        return await self.ledger.execute(job.ref, Claim(worker="web-1-0a", lease_s=15))

    async def announced(self, *tasks: Task[..., Any]) -> None:
        """Announce tasks, as a worker does when it starts."""
        ledger, now = self.ledger, self.ledger.clock.now()
        entries = [entry_of(each, worker="web-1-0a", at=now) for each in tasks]
        await write_tasks(ledger.inbox, ledger.names, entries, replicas=1)

    async def dead(
        self, of: Task[..., Any] = send, /, *, queue: str = "mail", **values: Any
    ) -> JobHandle[Any]:
        """Return a dead letter."""
        job = await self.job(of, queue=queue, **values)
        claimed = await self.running(job)
        error = ErrorInfo(kind="exception", type="ValueError", message="no such house")
        await self.ledger.execute(job.ref, Fail(epoch=claimed.claim_epoch, error=error))
        return job

    async def completed(
        self, of: Task[..., Any] = send, /, *, queue: str = "mail", **values: Any
    ) -> JobHandle[Any]:
        """Return a job that ended well."""
        job = await self.job(of, queue=queue, **values)
        claimed = await self.running(job)
        result, ref = await self.ledger.results.put(b'"sent"', what="result", key="")
        await self.ledger.execute(job.ref, Complete(epoch=claimed.claim_epoch, result=result, result_ref=ref))
        return job

    @contextlib.asynccontextmanager
    async def worker(self, job: JobHandle[Any]) -> AsyncGenerator[None, None]:
        """Let a worker that lives hold a job for the length of a block; it gives the job back then."""
        info = WorkerInfo(
            worker="web-2-0b",
            host="web",
            pid=2,
            queues=(job.queue,),
            started_at=self.ledger.clock.now(),
            renewed_at=self.ledger.clock.now(),
        )
        await self.ledger.leases.renew(info, 0)
        claimed = await self.ledger.execute(job.ref, Claim(worker=info.worker, lease_s=15))
        yield
        await self.ledger.execute(job.ref, Interrupt(epoch=claimed.claim_epoch, reason="the end of the test"))
        await self.ledger.leases.end(info.worker)

    async def until(self, path: str, status: str) -> None:
        """Wait until a job has a state."""
        await self.until_seen(path, lambda found: found["status"] == status)

    async def until_seen(self, path: str, holds: Callable[[Any], bool]) -> None:
        """Wait until an answer is as it should be."""
        async with asyncio.timeout(LIMIT_S):
            while not holds(await self.get(path)):
                await asyncio.sleep(0.01)


def refusing(code: str) -> ProblemError:
    """Return what refuses with a code."""
    return ProblemError(code, "as the test says")


def _pattern(path: str) -> Callable[[str], object]:
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", path)).fullmatch
