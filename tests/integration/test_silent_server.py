"""A server that is silent or away: an application's calls end within their limit, and say what is known."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio.from_thread
import anyio.to_thread
import pytest
from tests.conftest import ServerFactory
from tests.support.limits import LIMIT_S
from tests.support.processes import until
from tests.support.proxy import Proxy

from jobledger.ledger import JobHandle, Ledger, connect, sync, task
from jobledger.ledger.model.errors import (
    AppendOutcomeUnknownError,
    ConfigurationError,
    ServerUnreachableError,
)
from jobledger.ledger.nats.writer import REPLY_TIMEOUT_S
from jobledger.ledger.server import EmbeddedServer

REQUEST_S = 0.5


@task(queue="silent")
def keep(text: str) -> str:
    return text


@pytest.fixture
async def server(server_factory: ServerFactory) -> EmbeddedServer:
    made = server_factory()
    await made.start()
    return made


@pytest.fixture
async def proxy(server: EmbeddedServer) -> AsyncIterator[Proxy]:
    """Where the server can fall silent between two calls."""
    assert server.port is not None
    async with Proxy(server.port) as made:
        yield made


async def test_a_silent_server_holds_a_call_no_longer_than_its_limit(proxy: Proxy) -> None:
    """Without the limit each call takes 30 s, which is more than all of them may together."""
    async with connect(proxy.url, ledger_bytes_max=1 << 24, request_timeout_s=REQUEST_S) as ledger:
        job = await ledger.enqueue(keep, "first")
        proxy.hold()
        began = time.monotonic()
        unknown: list[Callable[[], Awaitable[object]]] = [
            lambda: ledger.enqueue(keep.options(id="second"), "second"),
            lambda: ledger.enqueue(keep, "third"),
            lambda: ledger.cancel(job.ref),
        ]
        ids: list[str] = []
        for call in unknown:
            with pytest.raises(
                AppendOutcomeUnknownError, match=r"within 0\.5 s, so it is not known"
            ) as outcome:
                await call()
            ids.append(outcome.value.job_id)
        assert [ids[0], ids[2]] == ["second", job.id]
        unanswered: list[Callable[[], Awaitable[object]]] = [
            lambda: ledger.enqueue(keep, "x" * 100_000),
            lambda: ledger.job(job.id),
            lambda: ledger.retry(job.ref),
            job.state,
            job.history,
        ]
        for call in unanswered:
            with pytest.raises(ServerUnreachableError, match=r"the server gave no answer within 0\.5 s"):
                await call()
        assert time.monotonic() - began < LIMIT_S
        proxy.release()
        await _same_again(ledger, ids[:2])


async def test_many_jobs_wait_for_a_silent_server_no_longer_than_one(proxy: Proxy) -> None:
    """The second of two groups is sent when the first one had no answer, and would have its own time then."""
    async with connect(proxy.url, ledger_bytes_max=1 << 24, append_timeout_s=1.0, commit="group") as ledger:
        await ledger.enqueue(keep, "first")
        proxy.hold()
        began = time.monotonic()
        with pytest.raises(
            AppendOutcomeUnknownError, match=r"within 1 s, so it is not known which of the jobs"
        ):
            await ledger.enqueue_many(keep, ({"text": str(n)} for n in range(1_500)))
        assert time.monotonic() - began < REPLY_TIMEOUT_S
        proxy.release()


async def test_what_ends_an_upload_otherwise_waits_no_longer_for_the_rest_of_it(proxy: Proxy) -> None:
    async def failing() -> AsyncIterator[dict[str, str]]:
        for n in range(1_500):
            yield {"text": str(n)}
        raise ValueError

    async with connect(proxy.url, ledger_bytes_max=1 << 24, append_timeout_s=1.0) as ledger:
        await ledger.enqueue(keep, "first")
        proxy.hold()
        began = time.monotonic()
        with pytest.raises(ValueError):
            await ledger.enqueue_many(keep, failing())
        assert time.monotonic() - began < REPLY_TIMEOUT_S
        proxy.release()


async def _same_again(ledger: Ledger, ids: list[str]) -> None:
    """Enqueue again what may be stored by now: each is one job, in whichever of the two ways it came."""
    for job_id in ids:
        with anyio.fail_after(LIMIT_S):
            job: JobHandle[Any] = await ledger.enqueue(keep.options(id=job_id, on_other_input="keep"), job_id)
        assert [type(stored.event).__name__ for stored in await job.history()] == ["Queued"]


async def test_nothing_is_sent_where_there_is_no_connection(server: EmbeddedServer) -> None:
    async with connect(server.url, ledger_bytes_max=1 << 24, request_timeout_s=REQUEST_S) as ledger:
        await server.stop()
        await until(lambda: not ledger.connection.is_connected)
        with pytest.raises(ServerUnreachableError, match=r"no connection to the server for 0\.5 s: nothing"):
            await ledger.enqueue(keep.options(id="never"), "never")
        await server.start()
        await until(lambda: ledger.connection.is_connected)
        assert (await ledger.enqueue(keep, "next")).sequence == 1


async def test_a_blocking_call_has_the_same_limit(proxy: Proxy) -> None:
    def use() -> str:
        with sync.connect(proxy.url, ledger_bytes_max=1 << 24, request_timeout_s=REQUEST_S) as ledger:
            anyio.from_thread.run_sync(proxy.hold)
            try:
                with pytest.raises(AppendOutcomeUnknownError) as outcome:
                    ledger.enqueue(keep, "x")
            finally:
                anyio.from_thread.run_sync(proxy.release)
            return outcome.value.job_id

    assert await anyio.to_thread.run_sync(use)


def test_the_limit_is_checked() -> None:
    with pytest.raises(
        ConfigurationError,
        match="request_timeout_s must be a number of seconds above 0 and at most 3600, got 0",
    ):
        sync.connect(request_timeout_s=0)
