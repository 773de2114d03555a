"""The pytest plugin of jobledger: fixtures for the tests of applications.

Loaded in every suite, so it imports only errors of jobledger before a fixture is asked for. A fixture of the same name in a
suite's own conftest takes its place.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jobledger.ledger import Ledger, Task
    from jobledger.ledger.handle import JobHandle
    from jobledger.ledger.model.job import Job
    from jobledger.testing.memory import MemoryLedger
    from jobledger.testing.sync import BlockingMemoryLedger

AssertEnqueued = Callable[..., Awaitable["list[JobHandle[Any]]"]]


class MemoryWorker:
    """Runs what a ledger in memory has queued."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger

    async def run_pending(self, **options: Any) -> list[Job]:
        """See `MemoryLedger.run_pending`."""
        return await self._ledger.run_pending(**options)

    async def advance(self, by: Any) -> list[Job]:
        """See `MemoryLedger.advance`."""
        return await self._ledger.advance(by)


class ServerWorker:
    """Runs what a ledger on a server has queued, with a real worker."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def run_pending(self, *tasks: Task[..., Any]) -> None:
        """Start a worker for these tasks, and stop it when no job of their queues is ready or runs.

        Raises: TimeoutError after 30 s; UnreachableError.
        """
        import asyncio  # noqa: PLC0415 - see the module

        from jobledger.ledger import TaskRegistry  # noqa: PLC0415
        from jobledger.workers import Worker  # noqa: PLC0415
        from jobledger.workers.idle import until_idle  # noqa: PLC0415

        worker = Worker(self._ledger, TaskRegistry(tasks))
        running = asyncio.create_task(worker.run())
        idle = asyncio.create_task(until_idle(self._ledger, worker))
        try:
            async with asyncio.timeout(30):
                await asyncio.wait({running, idle}, return_when=asyncio.FIRST_COMPLETED)
            if idle.done():
                idle.result()  # raises what kept it from looking
        finally:
            idle.cancel()
            worker.stop()
            await running


@pytest.fixture
def ledger() -> MemoryLedger:
    """A ledger in memory, new for each test: the real verbs, and `run_pending`, `advance`, `clock`."""
    from jobledger.testing.memory import MemoryLedger  # noqa: PLC0415 - see the module

    return MemoryLedger()


@pytest.fixture
def blocking_ledger() -> Iterator[BlockingMemoryLedger]:
    """A ledger in memory for tests that block, new for each test, with `run_pending`, `advance` and `clock`."""
    from jobledger.testing.sync import BlockingMemoryLedger  # noqa: PLC0415 - see the module

    with BlockingMemoryLedger() as ledger:
        yield ledger


@pytest.fixture
def worker(ledger: MemoryLedger) -> MemoryWorker:
    """What runs the jobs of the fixture `ledger`."""
    return MemoryWorker(ledger)


@pytest.fixture
def assert_enqueued(request: pytest.FixtureRequest) -> AssertEnqueued:
    """`assert_enqueued(task, count=1, **arguments)` on the ledger that the test has: `server_ledger`, else `ledger`."""
    from jobledger.testing.assertions import assert_enqueued  # noqa: PLC0415 - see the module

    name = "server_ledger" if "server_ledger" in request.fixturenames else "ledger"
    return functools.partial(assert_enqueued, request.getfixturevalue(name))


@pytest.fixture(scope="session")
def jobledger_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a nats-server that lives as long as the test run; needs `jobledger[embedded]`."""
    import asyncio  # noqa: PLC0415 - see the module
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    from jobledger.ledger.server import EmbeddedServer  # noqa: PLC0415

    server = EmbeddedServer(tmp_path_factory.mktemp("jobledger"), port=0, durability="process")
    with ThreadPoolExecutor(1) as thread:  # where no test's loop runs
        thread.submit(asyncio.run, server.start()).result()
        yield server.url
        thread.submit(asyncio.run, server.stop()).result()


@pytest.fixture
async def server_ledger(jobledger_server: str) -> AsyncGenerator[Ledger, None]:
    """A ledger on the embedded server, empty for each test."""
    from jobledger.ledger import connect  # noqa: PLC0415 - see the module

    environment = f"test_{secrets.token_hex(6)}"
    async with contextlib.AsyncExitStack() as stack:
        yield await stack.enter_async_context(
            connect(jobledger_server, environment=environment, ledger_bytes_max=64 << 20)
        )


@pytest.fixture
def server_worker(server_ledger: Ledger) -> ServerWorker:
    """What runs the jobs of `server_ledger`: `await server_worker.run_pending(task, ...)`."""
    return ServerWorker(server_ledger)
