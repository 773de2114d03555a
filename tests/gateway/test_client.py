"""The client of a gateway: the verbs of the ledger over HTTP, async and blocking, through breaks and with its errors."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import anyio.to_thread
import httpx
import pytest
from tests.support.gateways import gateway_of, listening
from tests.support.limits import LIMIT_S
from tests.support.open_gateway import LocalAccess
from tests.support.working import working

from jobledger.gateway.client import Event, connect, sync
from jobledger.gateway.client.problems import GatewayProblem, error_of
from jobledger.gateway.client.remote import JobHandle, Requests
from jobledger.gateway.gateway import Gateway
from jobledger.gateway.problems import CODE_OF, KINDS
from jobledger.ledger import Graph, Ledger, task
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.model.errors import (
    AccessDeniedError,
    InputMismatchError,
    InvalidInputError,
    JobFailedError,
    JobNotFoundError,
    LedgerError,
    NotFoundError,
    ResultTimeoutError,
    ServerUnreachableError,
)
from jobledger.ledger.model.hooks.route import RouteDefinition, RouteRule
from jobledger.ledger.model.rights.authority import Principal
from jobledger.ledger.nats.task_book import write_tasks

pytestmark = pytest.mark.anyio


@task(queue="mail", max_attempts=1)
async def send(to: str) -> str:
    if to == "nobody":
        raise ValueError("no such person")
    return f"sent to {to}"


@task(queue="mail")
async def report(batch: str, counts: dict[str, int]) -> str:
    return f"{batch}: {counts}"


@pytest.fixture(autouse=True)
async def _announced(ledger: Ledger) -> None:
    """Let the task be known, as a worker does when it starts."""
    entries = [entry_of(each, worker="w-1", at=ledger.clock.now()) for each in (send, report)]
    await write_tasks(ledger.inbox, ledger.names, entries, replicas=1)


async def test_a_job_is_enqueued_waited_for_and_read(ledger: Ledger, gateway: Gateway) -> None:
    async with working(ledger, send), listening(gateway) as url, connect(url) as remote:
        by_name = await remote.enqueue("send", {"to": "ann"})
        by_task = await remote.enqueue(send, to="ben", options={"id": "to-ben", "priority": "high"})
        assert await by_name.result(timeout_s=LIMIT_S) == "sent to ann"
        assert await by_task.result(timeout_s=LIMIT_S) == "sent to ben"
        with pytest.raises(InputMismatchError, match="job to-ben in queue mail exists with another input"):
            await remote.enqueue(send, to="eve", options={"id": "to-ben"})
        kept = await remote.enqueue(send.options(id="to-ben", on_other_input="keep"), to="eve")
        assert not kept.created
        again = await remote.enqueue(send, to="ben", options={"id": "to-ben"})
        assert (again.id, again.created, again.queue) == ("to-ben", False, "mail")
        found = await (await remote.job("to-ben")).snapshot()
        assert (found.status, found.priority, found.attempts[0].status) == ("completed", "high", "completed")


async def test_errors_are_those_of_the_ledger(ledger: Ledger, gateway: Gateway) -> None:
    async with working(ledger, send), listening(gateway) as url, connect(url) as remote:
        job = await remote.enqueue("send", {"to": "nobody"})
        with pytest.raises(JobFailedError, match="no such person") as failed:
            await job.result(timeout_s=LIMIT_S)
        assert failed.value.problem.code == "JOB_EXECUTION_ERROR"  # type: ignore[attr-defined]
        with pytest.raises(JobNotFoundError, match="none"):
            await remote.job("none", queue="mail")
        with pytest.raises(InvalidInputError):
            await remote.enqueue("send", {"to": 7})
        waiting = await remote.enqueue("send", {"to": "ann"}, options={"delay_s": 3600})
        with pytest.raises(ResultTimeoutError, match="goes on"):
            await waiting.wait(timeout_s=0.1)
        await waiting.cancel(reason="no longer needed")
        assert await waiting.state() == "cancelled"


async def test_many_jobs_go_in_one_request_and_their_events_come_back(
    ledger: Ledger, gateway: Gateway
) -> None:
    async with listening(gateway) as url, connect(url) as remote:
        done = await remote.enqueue_many("send", ({"to": f"p{n}"} for n in range(1_200)))
        assert (done.created, done.existing) == (1_200, 0)
        seen = [0]
        newest: Event | None = None
        async with asyncio.timeout(LIMIT_S):
            async for event in remote.events(types=["queued"], from_sequence=1):
                assert event.sequence == seen[-1] + 1
                seen.append(event.sequence)
                newest = event
                if event.sequence == done.last_sequence:
                    break
    assert newest is not None
    assert newest.fields["input"] == {"to": "p1199"}


async def test_events_go_on_at_another_gateway(ledger: Ledger, gateway: Gateway, tmp_path: Path) -> None:
    seen: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        async with listening(gateway) as url:
            remote = await stack.enter_async_context(connect(url))
            events = await stack.enter_async_context(contextlib.aclosing(remote.events(from_sequence=1)))
            await ledger.enqueue_many(send, ({"to": f"p{n}"} for n in range(3)))
            async with asyncio.timeout(LIMIT_S):
                while len(seen) < 3:
                    seen.append((await anext(events)).sequence)
        await ledger.enqueue_many(send, ({"to": f"p{n}"} for n in range(3)))
        other = await stack.enter_async_context(gateway_of(ledger, tmp_path))
        await stack.enter_async_context(listening(other, int(url.rpartition(":")[2])))
        async with asyncio.timeout(LIMIT_S):
            while len(seen) < 6:
                seen.append((await anext(events)).sequence)
    assert seen == [1, 2, 3, 4, 5, 6]


async def test_the_blocking_client_does_the_same(ledger: Ledger, gateway: Gateway) -> None:
    def block(url: str) -> tuple[str, int, int]:
        with sync.connect(url) as remote:
            result = remote.enqueue("send", {"to": "ann"}).result(timeout_s=LIMIT_S)
            created = remote.enqueue_many("send", ({"to": f"p{n}"} for n in range(3))).created
            return result, created, next(remote.events(from_sequence=1)).sequence

    async with working(ledger, send), listening(gateway) as url:
        assert await anyio.to_thread.run_sync(block, url) == ("sent to ann", 3, 1)


async def test_graphs_and_batches_are_those_of_the_ledger(ledger: Ledger, gateway: Gateway) -> None:
    graph = Graph("letters")
    first = graph.add(send, to="ann")
    graph.after(first).add(send.options(priority="high"), to=graph.add(send, first))
    told = {
        "name": "by_name",
        "nodes": [
            {"name": "one", "task": "send", "input": {"to": "ida"}},
            {"name": "two", "task": "send", "takes": {"/to": "one"}},
        ],
    }

    def block(url: str) -> tuple[object, bool]:
        with sync.connect(url) as remote:
            remote.enqueue_many(send, ({"to": f"s{n}"} for n in range(2)), batch="blocking")
            named = remote.run_graph(told)
            again = remote.run_graph(told, id=named.id).created
            version = remote.graphs.put(told, reason="new")
            run = remote.graphs.run("by_name", id="stored-1")
            assert (version, run.result(timeout_s=LIMIT_S)) == (1, named.result(timeout_s=LIMIT_S))
            remote.graphs.remove("by_name")
            with pytest.raises(NotFoundError):
                remote.emit("nothing", {})
            return named.result(timeout_s=LIMIT_S), again

    async with working(ledger, send, report), listening(gateway) as url, connect(url) as remote:
        assert [await remote.graphs.put(graph) for _ in range(2)] == [1, 1]
        stored = await remote.graphs.run("letters", id="stored-2", tenant="acme")
        assert len(await stored.result(timeout_s=LIMIT_S)) == 3
        rule = RouteRule(name="told", task="send", queue="mail", input={"to": "/to"})
        await ledger.routes.set("orders", RouteDefinition(scheme="internal", rules=(rule,)))
        emitted = await remote.emit("orders", {"to": "eva"}, id="e1")
        (made,) = (await remote.emit("orders", {"to": "eva"}, id="e1")).jobs
        assert (emitted.repeated, emitted.jobs) == (False, (made,))
        assert await (await remote.job(made.job)).result(timeout_s=LIMIT_S) == "sent to eva"
        with pytest.raises(NotFoundError, match="no stored graph 'nothing'"):
            await remote.graphs.remove("nothing")
        job = await remote.run_graph(graph, id="letters-1")
        assert (job.created, job.queue) == (True, "jobledger")
        assert not (await remote.run_graph(graph, id="letters-1")).created
        assert await job.result(timeout_s=LIMIT_S) == {
            "send": "sent to ann",
            "send#2": "sent to sent to ann",
            "send#3": "sent to sent to sent to ann",
        }
        for new in (3, 0):
            done = await remote.enqueue_many(
                "send", ({"to": f"p{n}"} for n in range(3)), batch="b", on_end=report
            )
            assert (done.created, done.existing) == (new, 3 - new)
        assert await (await remote.job("b")).result(timeout_s=LIMIT_S) == {"completed": 3}
        with pytest.raises(InvalidInputError, match="closed and has 3 jobs"):
            await remote.enqueue_many("send", ({"to": f"p{n}"} for n in range(4)), batch="b", on_end=report)
        result, again = await anyio.to_thread.run_sync(block, url)
        assert (result, again) == ({"one": "sent to ida", "two": "sent to sent to ida"}, False)


async def test_who_may_not_is_told_so(ledger: Ledger, gateway: Gateway) -> None:
    class Viewer(LocalAccess):
        def principal(self, connection: object) -> Principal:
            return Principal(name="eve", permissions=frozenset({"view"}))

    gateway.access = Viewer()
    async with listening(gateway) as url, connect(url, key="jl_none") as remote:
        with pytest.raises(AccessDeniedError, match="'queue'"):
            await remote.enqueue("send", {"to": "ann"})


async def test_a_gateway_that_is_not_there_is_named_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobledger.gateway.client.calls.PATIENCE_S", 0.2)
    async with connect("http://127.0.0.1:9") as remote:
        with pytest.raises(ServerUnreachableError, match="gives no answer"):
            await remote.job("some", queue="mail")


async def test_an_act_that_may_have_been_done_is_not_sent_again() -> None:
    asked: list[httpx.Request] = []

    def cut(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        raise httpx.ReadError("cut")

    async with connect("http://gateway", transport=httpx.MockTransport(cut)) as remote:
        job = JobHandle(Requests(remote._http), "mail", "some", created=False, sequence=1)
        with pytest.raises(ServerUnreachableError):
            await job.requeue()
    assert len(asked) == 1


def test_every_code_of_a_gateway_is_an_error_of_its_kind() -> None:
    for code, kind in KINDS.items():
        error = error_of(GatewayProblem(code=code, status=kind.status, detail="why"))
        assert isinstance(error, LedgerError)
        assert str(error) == "why"
    for raised, code in CODE_OF.items():
        if issubclass(raised, LedgerError) and code.startswith("JOB_"):
            told = error_of(GatewayProblem(code=code, status=KINDS[code].status, detail="why"))
            assert isinstance(told, CODES[code])


CODES = {
    "JOB_NOT_FOUND": JobNotFoundError,
    "JOB_ACCESS_DENIED": AccessDeniedError,
    "JOB_INVALID_INPUT": InvalidInputError,
    "JOB_EXECUTION_ERROR": JobFailedError,
    "JOB_CANCELLED": LedgerError,
}
