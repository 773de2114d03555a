"""Answers that never come: a proxy steals them, holds them back or breaks the connection while they are on their way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.counting import RUNS, check_ledger, count, everything, types_by_job
from tests.support.proxy import Proxy, is_append_answer, is_delivery
from tests.support.working import working

from jobledger.ledger import connect
from jobledger.ledger.model.errors import AppendOutcomeUnknownError

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault]

ServerFactory = Callable[..., "EmbeddedServer"]
LIMIT_S = 15.0
SMALL = 64 << 20


@pytest.fixture(autouse=True)
def forget_runs() -> None:
    RUNS.clear()


class Deaf:
    """Swallows what consumers send while it is told to, and counts."""

    def __init__(self) -> None:
        self.on = False
        self.swallowed = 0
        self.passed = 0

    def __call__(self, line: bytes, body: bytes) -> bool:
        if not is_delivery(line, body):
            return False
        self.swallowed += self.on
        self.passed += not self.on
        return self.on


@pytest.mark.parametrize("queue", ["default", None])
async def test_a_follower_skips_nothing_that_was_on_its_way_when_the_connection_broke(
    server_factory: ServerFactory, queue: str | None
) -> None:
    """The reader is busy meanwhile, and the consumer's standing request outlives the break."""
    server = server_factory()
    await server.start()
    settings: dict[str, Any] = {"environment": "t_break", "ledger_bytes_max": SMALL}
    async with (
        connect(server.url, **settings) as ledger,
        Proxy(server.port) as thief,
        connect(thief.url, **settings) as reader,
        contextlib.aclosing(reader.events(queue=queue)) as events,
        asyncio.timeout(LIMIT_S),
    ):
        deaf = Deaf()
        thief.to_steal[deaf] = 1_000_000
        for n in range(2):
            await ledger.enqueue(count.options(queue="default"), n)
            assert (await anext(events)).stream_sequence == n + 1
        deaf.on = True
        await ledger.enqueue(count.options(queue="default"), 2)
        while deaf.swallowed == 0:
            await asyncio.sleep(0.01)
        lost = asyncio.Event()
        reader.connection.lost_listeners.append(lost.set)
        thief.cut()
        await lost.wait()
        await reader.connection.wait_connected(LIMIT_S)
        deaf.on = False
        await ledger.enqueue(count.options(queue="default"), 3)
        # The server may have noticed the break and dropped the old request: then there is nothing to wait for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while deaf.passed < 3:
                    await asyncio.sleep(0.01)
        await reader.log.head()  # what the old request brought has been read by now
        assert [(await anext(events)).stream_sequence for _ in range(2)] == [3, 4]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("commit", ["pipeline", "group"])
async def test_a_stolen_answer_changes_nothing_for_the_caller(
    server_factory: ServerFactory, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.ledger.nats.writer.REPLY_TIMEOUT_S", 0.5)
    server = server_factory()
    await server.start()
    async with (
        Proxy(server.port) as thief,
        connect(thief.url, environment="t_thief", commit=commit, ledger_bytes_max=SMALL) as ledger,
        asyncio.timeout(LIMIT_S),
    ):
        thief.to_steal[is_append_answer] = 30
        jobs = await asyncio.gather(
            *(ledger.enqueue(count.options(id=f"n-{n // 2}"), n // 2) for n in range(100))
        )
        lone = await ledger.enqueue(count.options(id="alone"), 1)
        thief.to_steal[is_append_answer] = 1
        stolen = await ledger.enqueue(count.options(id="stolen"), 1)
        assert thief.to_steal[is_append_answer] == 0
        assert thief.stolen >= 2
        events = await everything(ledger)
        check_ledger(events)
        assert len(events) == 52
        assert sum(job.created for job in jobs) == 50  # each is reported as made exactly once
        assert (lone.created, stolen.created) == (True, True)
        by_job = {stored.event.job: stored.stream_sequence for stored in events}
        assert all(job.sequence == by_job[job.id] for job in (*jobs, lone, stolen))


@pytest.mark.timeout(60)
async def test_a_worker_whose_answers_are_stolen_runs_each_job_once(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.ledger.nats.writer.REPLY_TIMEOUT_S", 0.5)
    server = server_factory()
    await server.start()
    settings: dict[str, Any] = {"environment": "t_thief", "ledger_bytes_max": SMALL}
    async with (
        Proxy(server.port) as thief,
        connect(server.url, **settings) as client,
        connect(thief.url, **settings) as ledger,
        working(ledger, count, ack_wait_s=1),
    ):
        assert await (await client.enqueue(count, 0)).result(timeout_s=LIMIT_S) == 0
        thief.to_steal[is_append_answer] = 40
        jobs = [await client.enqueue(count, n) for n in range(100)]
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == list(range(100))
        assert thief.to_steal[is_append_answer] == 0
        events = await everything(client)
    check_ledger(events)
    assert set(RUNS.values()) == {1}
    assert {tuple(types) for types in types_by_job(events).values()} == {("queued", "started", "completed")}


async def test_an_append_without_an_answer_ends_within_its_limit(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the first answer is a part of `append_timeout_s`, not something before it."""
    monkeypatch.setattr("jobledger.ledger.nats.writer.REPLY_TIMEOUT_S", 1.0)
    server = server_factory()
    await server.start()
    async with (
        Proxy(server.port) as proxy,
        connect(proxy.url, environment="t_limit", ledger_bytes_max=SMALL, append_timeout_s=1.0) as ledger,
    ):
        await ledger.enqueue(count, 1)
        proxy.to_steal[is_append_answer] = 1_000
        proxy.drop_share[b"PUB t_limit"] = 1.0
        loop = asyncio.get_running_loop()
        since = loop.time()
        with pytest.raises(AppendOutcomeUnknownError, match="within 1 s"):
            await ledger.enqueue(count, 2)
        assert loop.time() - since < 1.9  # a second answer is not waited for
