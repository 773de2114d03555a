"""Blocking code speaks to the same ledger, from several threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
import time
import urllib.request
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import anyio.to_thread
import django
import pytest
from django import http, urls
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from flask import Flask
from tests.support.limits import LIMIT_S
from tests.support.ports import kept_port

from jobledger.ledger import JobState, Ledger, handle, task
from jobledger.ledger import connection as asynchronous
from jobledger.ledger.loop_thread import LoopThread
from jobledger.ledger.model.errors import (
    ForeignLoopError,
    InvalidInputError,
    JobNotFoundError,
    LedgerClosedError,
    ResultTimeoutError,
    ServerUnreachableError,
)
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.sync import JobHandle, connect

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


@task(queue="sync")
def double(number: int) -> int:
    return 2 * number


@task(queue="sync")
def double_text(text: str) -> str:
    return 2 * text


@pytest.fixture
def free_port() -> int:
    return kept_port()


def test_blocking_code_enqueues_reads_and_is_told_what_is_wrong(nats_server: EmbeddedServer) -> None:
    with connect(nats_server.url, environment="t_sync1", ledger_bytes_max=1 << 24) as ledger:
        block = ledger.lock("account", "42")
        with block as held:
            assert held.is_held
        with (
            pytest.raises(InvalidInputError, match="account/42 was entered before: call `lock` again"),
            block,
        ):
            pass
        job = ledger.enqueue(double, number=4)
        assert job.created
        assert job.state() is JobState.QUEUED
        assert [stored.stream_sequence for stored in job.history()] == [job.sequence]
        assert ledger.job(job.id).snapshot().task == "double"
        with pytest.raises(ResultTimeoutError):
            job.result(timeout_s=0.05)
        with pytest.raises(InvalidInputError, match="number"):
            ledger.enqueue(double, number="four")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        with pytest.raises(JobNotFoundError):
            ledger.job("nobody")
        assert ledger.cancel(job, reason="not needed").state is JobState.CANCELLED
        later = ledger.enqueue(double.options(delay_s=3_600), number=5)
        assert ledger.retry(later, reason="now").state is JobState.QUEUED


def test_threads_share_one_connection(nats_server: EmbeddedServer) -> None:
    def begin(number: int) -> JobHandle[int]:
        return ledger.enqueue(double.options(id=f"job-{number % 10}"), number % 10)

    with (
        connect(nats_server.url, environment="t_sync2", ledger_bytes_max=1 << 24) as ledger,
        ThreadPoolExecutor(8) as pool,
    ):
        made = list(pool.map(begin, range(80)))
        assert sum(job.created for job in made) == 10
        done = ledger.enqueue_many(double, ({"number": n} for n in range(100)))
        assert done.created == 100


def test_blocking_code_reads_events_as_a_durable_subscription(nats_server: EmbeddedServer) -> None:
    with connect(nats_server.url, environment="t_sync3", ledger_bytes_max=1 << 24) as ledger:
        ledger.enqueue_many(double, ({"number": n} for n in range(5)))
        assert [stored.stream_sequence for stored in ledger.events(follow=False, types=["queued"])] == [
            1,
            2,
            3,
            4,
            5,
        ]
        with ledger.events(durable="sync") as events:
            for stored in events:
                if stored.stream_sequence == 3:
                    break
        assert [(info.name, info.lag) for info in ledger.subscriptions()] == [("sync", 3)]
        assert [stored.stream_sequence for stored in ledger.events(durable="sync", follow=False)] == [3, 4, 5]
        assert ledger.delete_subscription("sync").acknowledged_sequence == 5
        with ledger.events(live=True) as events, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, events)
            job = ledger.enqueue(double, number=9)
            assert waiting.result(10).event.job == job.id
        with pytest.raises(InvalidInputError, match="sequences begin at 1"):
            ledger.events(from_sequence=0)


def test_fifty_threads_call_at_once(nats_server: EmbeddedServer, environment: str) -> None:
    barrier = threading.Barrier(50)

    def use(number: int) -> tuple[bool, JobState]:
        barrier.wait(LIMIT_S)
        job = ledger.enqueue(double.options(id=f"job-{number}"), number)
        return job.created, ledger.job(job.id).state()

    with (
        connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24) as ledger,
        ThreadPoolExecutor(50) as pool,
    ):
        assert set(pool.map(use, range(50))) == {(True, JobState.QUEUED)}


def test_a_plain_call_connects_until_close(nats_server: EmbeddedServer, environment: str) -> None:
    ledger = connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24)
    job = ledger.enqueue(double, 1)
    events = ledger.events(live=True)
    block = ledger.lock("account", "42")
    ledger.close()
    ledger.close()
    calls: list[Callable[[], object]] = [
        lambda: ledger.enqueue(double, 2),
        lambda: ledger.enqueue_many(double, []),
        lambda: ledger.job(job.id),
        lambda: ledger.cancel(job),
        ledger.subscriptions,
        ledger.events,
        lambda: next(events),
        block.__enter__,
        job.state,
        job.result,
    ]
    for call in calls:
        with pytest.raises(LedgerClosedError, match="this ledger was closed: connect again"):
            call()
    assert [thread for thread in threading.enumerate() if thread.name == "jobledger"] == []


def test_close_ends_the_calls_of_other_threads(nats_server: EmbeddedServer, environment: str) -> None:
    ledger = connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24)
    job = ledger.enqueue(double, 1)
    with ThreadPoolExecutor(2) as pool:
        waiting: list[Future[Any]] = [pool.submit(job.wait), pool.submit(next, ledger.events(live=True))]
        while not all(each.running() for each in waiting):
            time.sleep(0.01)
        ledger.close()
        for each in waiting:
            with pytest.raises(LedgerClosedError):
                each.result(LIMIT_S)


def test_a_failed_connect_leaves_no_thread(free_port: int) -> None:
    with pytest.raises(ServerUnreachableError):
        connect(f"nats://127.0.0.1:{free_port}", connect_timeout_s=1.0)
    deadline = time.monotonic() + LIMIT_S
    while any(thread.name == "jobledger" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_that_could_not_connect_tries_again_at_its_next_call() -> None:
    """As a forked child does while the server is away."""
    tries: list[str] = []

    @contextlib.asynccontextmanager
    async def opening() -> AsyncGenerator[str, None]:
        tries.append(threading.current_thread().name)
        if len(tries) == 1:
            raise ServerUnreachableError("away")
        yield "opened"

    async def upper(text: str) -> str:
        return text.upper()

    caller = LoopThread(opening)
    with pytest.raises(ServerUnreachableError, match="away"):
        caller.call(upper)
    assert caller.call(upper) == caller.call(upper) == "OPENED"
    caller.close()
    assert tries == ["jobledger", "jobledger"]


def test_a_call_in_the_ledgers_own_thread_says_so(nats_server: EmbeddedServer, environment: str) -> None:
    with connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24) as ledger:

        def name(_: object) -> str:
            return ledger.enqueue(double, 2).id

        with pytest.raises(InvalidInputError, match="runs in the ledger's own thread"):
            ledger.enqueue_many(double, [{"number": 1}], ids=name)
        with pytest.raises(InvalidInputError, match="runs in the ledger's own thread"):
            ledger.enqueue_many(double, [{"number": 1}], on_progress=lambda _: ledger.close())
        assert ledger.enqueue(double, 3).created


def test_inputs_are_produced_in_the_thread_that_calls(nats_server: EmbeddedServer, environment: str) -> None:
    """They may read a database whose connection belongs to that thread, or use the ledger."""
    ended: list[str] = []

    def inputs(count: int) -> Iterator[dict[str, int]]:
        try:
            for number in range(count):
                assert threading.current_thread() is threading.main_thread()
                if not number % 200:
                    ledger.enqueue(double, number)
                yield {"number": number}
            raise KeyError("broken source")
        finally:
            ended.append(threading.current_thread().name)

    with connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24) as ledger:
        with pytest.raises(KeyError, match="broken source"):
            ledger.enqueue_many(double, inputs(1_000))
        with pytest.raises(InvalidInputError, match=r"input 3: .*enqueued before it: 3"):
            ledger.enqueue_many(double, itertools.chain(itertools.islice(inputs(9), 3), [{"text": 1}]))
        with pytest.raises(InvalidInputError, match="input 0: "):
            ledger.enqueue_many(double_text, inputs(9))
        done = ledger.enqueue_many(double, iter([{"number": 1}, {"number": 2}]))
        assert (done.created, done.last_sequence) == (2, 1_000 + 5 + 3 + 1 + 1 + 2)
    assert ended == ["MainThread"] * 3


async def test_it_works_inside_a_running_event_loop(nats_server: EmbeddedServer, environment: str) -> None:
    with connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24) as ledger:
        job = ledger.enqueue(double, 1)
        found = await anyio.to_thread.run_sync(job.state)
        assert found is job.state() is JobState.QUEUED


async def test_an_asynchronous_ledger_says_where_it_lives(
    nats_server: EmbeddedServer, environment: str
) -> None:
    settings: dict[str, Any] = {"environment": environment, "ledger_bytes_max": 1 << 24}

    async def each_verb(ledger: Ledger, job: handle.JobHandle[int]) -> set[str]:
        async def lock() -> None:
            async with ledger.lock("account", "42"):
                pass

        async def read() -> None:
            await anext(ledger.events(follow=False))

        async def subscribe() -> None:
            async with ledger.subscription("mail"):
                pass

        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: ledger.enqueue(double, 1),
            lambda: ledger.enqueue(double_text, "x" * 100_000),
            lambda: ledger.enqueue_many(double, [{"number": 1}]),
            lambda: ledger.job(job.id),
            lambda: ledger.cancel(job.ref),
            ledger.subscriptions,
            lambda: ledger.delete_subscription("mail"),
            read,
            lock,
            subscribe,
            job.state,
            job.result,
        ]
        said: set[str] = set()
        for call in calls:
            with pytest.raises((ForeignLoopError, LedgerClosedError)) as refused:
                await call()
            said.add(str(refused.value))
        return said

    def in_another_loop(ledger: Ledger, job: handle.JobHandle[int]) -> set[str]:
        return asyncio.run(each_verb(ledger, job))

    async with asynchronous.connect(nats_server.url, **settings) as ledger:
        job = await ledger.enqueue(double, 1)
        (said,) = await anyio.to_thread.run_sync(in_another_loop, ledger, job)
        assert said.startswith(
            "this ledger was connected in another event loop: connect in this one, or use "
        )
        assert await job.state() is JobState.QUEUED
    assert await each_verb(ledger, job) == {"this ledger was closed: connect again"}


def test_an_asynchronous_ledger_says_that_its_loop_has_ended(
    nats_server: EmbeddedServer, environment: str
) -> None:
    async def opened() -> tuple[Ledger, contextlib.AsyncExitStack]:
        stack = contextlib.AsyncExitStack()
        opening = asynchronous.connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24)
        return await stack.enter_async_context(opening), stack

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # nobody closed what the loop had open
        loop = asyncio.new_event_loop()
        ledger, stack = loop.run_until_complete(opened())
        tasks = asyncio.all_tasks(loop)
        assert all(each.cancel() for each in tasks)
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()
        with pytest.raises(ForeignLoopError, match="the event loop that connected this ledger has ended"):
            asyncio.run(ledger.job("job"))
        ledger.connection._pid = -1  # as in a forked child
        with pytest.raises(
            ForeignLoopError, match="was connected in process -1, from which this one was forked"
        ):
            asyncio.run(ledger.job("job"))
        del ledger, stack, loop, tasks
        gc.collect()


def test_views_of_django_and_flask_enqueue_in_their_threads(
    nats_server: EmbeddedServer, environment: str
) -> None:
    with connect(nats_server.url, environment=environment, ledger_bytes_max=1 << 24) as ledger:

        def enqueue(number: int) -> str:
            return f"{threading.current_thread().name} {ledger.enqueue(double, number).created}"

        with _serving(_flask(enqueue)) as flask, _serving(_django(enqueue)) as django:
            for url in (flask, django):
                with urllib.request.urlopen(f"{url}/7", timeout=LIMIT_S) as answer:
                    name, created = answer.read().decode().rsplit(" ", 1)
                assert created == "True"
                assert name not in {"MainThread", "jobledger"}


def _flask(enqueue: Callable[[int], str]) -> WSGIApplication:
    app = Flask("views")
    app.add_url_rule("/<int:number>", view_func=enqueue)
    return app


def _django(enqueue: Callable[[int], str]) -> WSGIApplication:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="of a test")
        django.setup()

    def view(_: object, number: int) -> http.HttpResponse:
        return http.HttpResponse(enqueue(number).encode())

    routes = [urls.path("<int:number>", view)]
    settings.ROOT_URLCONF = type("Routes", (), {"urlpatterns": routes})
    return WSGIHandler()  # type: ignore[no-any-return]


@contextlib.contextmanager
def _serving(app: WSGIApplication) -> Generator[str, None, None]:
    """Serve with a thread for each request."""

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = False

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its parent calls it
            pass

    with make_server("127.0.0.1", 0, app, Server, Quiet) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_inputs_that_cannot_be_read_leave_no_call_behind(
    nats_server: EmbeddedServer, environment: str
) -> None:
    class Query:
        def __iter__(self) -> Iterator[dict[str, int]]:
            raise RuntimeError("the database is away")

    with connect(nats_server.url, environment=environment, ledger_bytes_max=16 << 20) as ledger:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="the database is away"):
                ledger.enqueue_many(double, Query())
        began = time.monotonic()
    assert time.monotonic() - began < 0.9  # a call that is left behind costs `close` a second


def test_the_error_of_a_locks_block_comes_out_although_the_ledger_was_closed_in_it(
    nats_server: EmbeddedServer, environment: str
) -> None:
    ledger = connect(nats_server.url, environment=environment, ledger_bytes_max=16 << 20)

    def fails() -> None:
        with ledger.lock("account", "1"):
            ledger.close()
            raise ValueError("the caller's own")

    with pytest.raises(ValueError, match="the caller's own"):
        fails()
