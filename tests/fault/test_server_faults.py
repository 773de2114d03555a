"""The server is killed, frozen and cut off while jobs are enqueued, run and read; then the ledger is counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.counting import RUNS, check_ledger, count, everything, types_by_job
from tests.support.jetstream import api
from tests.support.working import working

from jobledger.ledger import Context, JobState, Ledger, connect, task
from jobledger.ledger.model.chain import fold
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import (
    InvalidInputError,
    LedgerError,
    ResultTimeoutError,
    SequenceGapError,
    ServerUnreachableError,
)

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault]

ServerFactory = Callable[..., "EmbeddedServer"]
LIMIT_S = 15.0
SMALL = 64 << 20


@pytest.fixture(autouse=True)
def forget_runs() -> None:
    RUNS.clear()


def mark(path: str, word: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{word}\n".encode())
    finally:
        os.close(descriptor)


def executions(path: str) -> Counter[str]:
    """How often each job ran, by what the runs themselves left behind."""
    return Counter(Path(path).read_text(encoding="utf-8").split())


@task
async def sleep(context: Context, path: str, seconds: float) -> int:
    mark(path, context.job_id)
    await asyncio.sleep(seconds)
    return context.attempt


async def kill_and_restart(server: EmbeddedServer, *, down_s: float = 0.3) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await asyncio.sleep(down_s)
    await server.start()


# Killed.


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("durability", "commit"),
    [("process", "auto"), ("power", "pipeline"), ("power", "group"), ("power", "auto")],
)
async def test_every_acknowledged_enqueue_survives_a_killed_server(
    server_factory: ServerFactory, commit: str, durability: str
) -> None:
    server = server_factory(durability=durability)
    await server.start()
    acknowledged: list[str] = []
    async with connect(server.url, environment="t_kill", commit=commit, ledger_bytes_max=SMALL) as ledger:
        numbers = iter(range(1_000))

        async def enqueue() -> None:
            for number in numbers:
                job = await ledger.enqueue(count.options(id=f"n-{number}"), number)
                assert job.created
                acknowledged.append(job.id)

        async with asyncio.timeout(40), asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(enqueue())
            while len(acknowledged) < 300:
                await asyncio.sleep(0.001)
            assert len(acknowledged) < 1_000
            await kill_and_restart(server)
        assert len(acknowledged) == 1_000
        events = await everything(ledger)
    check_ledger(events)
    assert sorted(stored.event.job for stored in events) == sorted(acknowledged)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("commit", ["pipeline", "group"])
async def test_enqueue_many_goes_on_by_itself_after_a_killed_server(
    server_factory: ServerFactory, commit: str
) -> None:
    server = server_factory()
    await server.start()
    async with connect(
        server.url, environment="t_kill", commit=commit, ledger_bytes_max=SMALL, enqueue_in_flight_max=64
    ) as ledger:
        half_way = asyncio.Event()

        def on_progress(done: int) -> None:
            if done >= 300:
                half_way.set()

        async def enqueue() -> Any:
            return await ledger.enqueue_many(
                count,
                ({"n": n} for n in range(1_000)),
                ids=lambda values: f"n-{values['n']}",
                on_progress=on_progress,
            )

        async with asyncio.timeout(40):
            bulk = asyncio.create_task(enqueue())
            await half_way.wait()
            assert not bulk.done()
            await kill_and_restart(server)
            result = await bulk
        assert (result.created, result.existing) == (1_000, 0)
        events = await everything(ledger)
        check_ledger(events)
        assert {stored.event.job for stored in events} == {f"n-{n}" for n in range(1_000)}
        assert len(events) == 1_000
        # In the order of the inputs, but for what was on its way when the server died.
        assert result.last_sequence == 1_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize("commit", ["pipeline", "group"])
async def test_workers_drain_through_a_killed_server_with_one_outcome_an_attempt(
    server_factory: ServerFactory, commit: str
) -> None:
    server = server_factory()
    await server.start()
    settings: dict[str, Any] = {
        "environment": "t_drain",
        "commit": commit,
        "ledger_bytes_max": SMALL,
        "lease_s": 3.0,
    }
    async with (
        connect(server.url, **settings) as client,
        connect(server.url, **settings) as one,
        connect(server.url, **settings) as two,
        working(one, count, ack_wait_s=2),
        working(two, count, ack_wait_s=2),
    ):
        numbers = iter(range(1_000))

        async def enqueue() -> None:
            for number in numbers:
                await client.enqueue(count.options(id=f"n-{number}"), number)

        async def killing() -> None:
            for target in (200, 500):
                while len(RUNS) < target:
                    await asyncio.sleep(0.001)
                await kill_and_restart(server, down_s=0.1)

        async with asyncio.timeout(50):
            async with asyncio.TaskGroup() as group:
                group.create_task(killing())
                for _ in range(64):
                    group.create_task(enqueue())
            for number in range(1_000):
                job = await client.job(f"n-{number}")
                assert await job.result() == number
            events = await everything(client)
    check_ledger(events)
    chains = types_by_job(events)
    assert len(chains) == 1_000
    assert {types.count("completed") for types in chains.values()} == {1}
    started = sum(types.count("started") for types in chains.values())
    assert sum(RUNS.values()) <= started  # no run that the ledger does not know of


async def test_a_follower_sees_every_event_once_and_in_order_over_a_restart(
    server_factory: ServerFactory,
) -> None:
    server = server_factory()
    await server.start()
    settings: dict[str, Any] = {"environment": "t_follow", "ledger_bytes_max": SMALL}
    async with connect(server.url, **settings) as ledger, connect(server.url, **settings) as reader:
        seen: list[int] = []

        async def follow() -> None:
            async for stored in reader.events():
                seen.append(stored.stream_sequence)
                if stored.stream_sequence == 600:
                    return

        following = asyncio.create_task(follow())
        async with asyncio.timeout(LIMIT_S):
            for part in range(3):
                await ledger.enqueue_many(count, ({"n": n} for n in range(200)))
                while len(seen) < 100 + 200 * part:
                    await asyncio.sleep(0.002)
                if part < 2:
                    await kill_and_restart(server, down_s=0.1)
            await following
        assert seen == list(range(1, 601))


async def test_a_follower_notices_that_the_stream_was_made_anew(server_factory: ServerFactory) -> None:
    server = server_factory()
    await server.start()
    settings: dict[str, Any] = {"environment": "t_anew", "ledger_bytes_max": SMALL}
    async with connect(server.url, **settings) as ledger:
        await ledger.enqueue_many(count, ({"n": n} for n in range(50)))
        seen = asyncio.Event()

        async def follow() -> None:
            async for stored in ledger.events():
                if stored.stream_sequence == 50:
                    seen.set()

        following = asyncio.create_task(follow())
        async with asyncio.timeout(LIMIT_S):
            await seen.wait()
            stream = ledger.names.ledger_stream
            config = (await api(ledger.inbox, f"STREAM.INFO.{stream}", {}))["config"]
            assert (await api(ledger.inbox, f"STREAM.DELETE.{stream}", {}))["success"]
            assert "error" not in await api(ledger.inbox, f"STREAM.CREATE.{stream}", config)
            await ledger.enqueue(count, 1)
            with pytest.raises(SequenceGapError):
                await following


async def test_reading_from_beyond_a_ledger_that_was_made_anew_is_refused(
    server_factory: ServerFactory,
) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, environment="t_anew", ledger_bytes_max=SMALL) as ledger:
        await ledger.enqueue(count, 1)
        with pytest.raises(InvalidInputError, match="lies beyond the ledger's end, which is 1"):
            _ = [stored async for stored in ledger.events(from_sequence=3)]


@pytest.mark.timeout(60)
async def test_a_worker_without_server_beyond_its_lease_waits_quietly_and_goes_on(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="jobledger")
    server = server_factory()
    await server.start()
    settings: dict[str, Any] = {"environment": "t_down", "ledger_bytes_max": SMALL, "lease_s": 1.0}
    async with connect(server.url, **settings) as ledger, working(ledger, count, ack_wait_s=2) as worker:
        assert await (await ledger.enqueue(count, 1)).result(timeout_s=LIMIT_S) == 1
        before = worker.identity
        caplog.clear()
        await kill_and_restart(server, down_s=3.0)
        job = await ledger.enqueue(count, 2)
        assert await job.result(timeout_s=LIMIT_S) == 2
        assert worker.identity != before
    assert len(caplog.records) < 60, "a worker that cannot do anything must not fill the log"


async def test_waiting_for_a_result_ends_in_time_without_a_server(server_factory: ServerFactory) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, environment="t_wait", ledger_bytes_max=SMALL) as ledger:
        job = await ledger.enqueue(count, 1)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(ResultTimeoutError):
            await job.result(timeout_s=0.5)
        assert loop.time() - began < 3.0


async def test_nothing_waits_for_a_connection_that_was_closed(server_factory: ServerFactory) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, environment="t_closed", ledger_bytes_max=SMALL) as ledger:
        job = await ledger.enqueue(count, 1)
    async with asyncio.timeout(3.0):
        with pytest.raises(LedgerError):
            await job.state()
        with pytest.raises(LedgerError):
            await ledger.enqueue(count, 1)


# Frozen.


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ack_wait_s", [1.0, pytest.param(10.0, marks=pytest.mark.fault)])
async def test_a_server_frozen_for_three_seconds_costs_no_worker_its_jobs(
    server_factory: ServerFactory, tmp_path: Path, ack_wait_s: float
) -> None:
    """With the lease of 15 s that is the default."""
    server = server_factory()
    await server.start()
    trace = str(tmp_path / "trace")
    settings: dict[str, Any] = {"environment": "t_freeze", "ledger_bytes_max": SMALL}
    async with (
        connect(server.url, **settings) as one,
        connect(server.url, **settings) as two,
        working(one, sleep, ack_wait_s=ack_wait_s) as first,
        working(two, sleep, ack_wait_s=ack_wait_s) as second,
    ):
        identities = {first.identity, second.identity}
        jobs = [await one.enqueue(sleep, trace, 1.0 + (n % 5)) for n in range(40)]
        while first.running + second.running < 40:
            await asyncio.sleep(0.01)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            on_the_way = [asyncio.create_task(one.enqueue(sleep, trace, 0.1)) for _ in range(20)]
            await asyncio.sleep(3.0)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        jobs += [await each for each in on_the_way]
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == [1] * 60
        assert {first.identity, second.identity} == identities
        check_ledger(await everything(one))
    ran = executions(trace)
    assert set(ran.values()) == {1}
    assert set(ran) == {job.id for job in jobs}


@pytest.mark.timeout(60)
async def test_claims_whose_answers_come_late_are_not_taken_for_lost(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    """The server freezes while claims are on their way, longer than the ack wait and than an answer is awaited."""
    server = server_factory()
    await server.start()
    trace = str(tmp_path / "trace")
    settings: dict[str, Any] = {"environment": "t_late", "ledger_bytes_max": SMALL, "lease_s": 15.0}
    async with connect(server.url, **settings) as client, connect(server.url, **settings) as ledger:
        await client.enqueue_many(sleep, ({"path": trace, "seconds": 3.0} for _ in range(300)))
        async with working(ledger, sleep, ack_wait_s=1, concurrency=300, grace_s=10.0) as worker:
            assert server.pid is not None
            while worker.running < 20:
                await asyncio.sleep(0)
            os.kill(server.pid, signal.SIGSTOP)
            await asyncio.sleep(6.5)
            os.kill(server.pid, signal.SIGCONT)
            async with asyncio.timeout(30):
                while True:
                    # Our own connection may be given up, too, and is made again.
                    with contextlib.suppress(ServerUnreachableError):
                        states = [fold(chain).job for chain in (await _chains(client)).values()]
                        if all(job is not None and job.state is JobState.COMPLETED for job in states):
                            break
                    await asyncio.sleep(0.1)
        check_ledger(await everything(client))
    ran = executions(trace)
    assert (len(ran), set(ran.values())) == (300, {1})


async def _chains(ledger: Ledger) -> dict[str, list[StoredEvent]]:
    chains: dict[str, list[StoredEvent]] = {}
    for stored in await everything(ledger):
        chains.setdefault(stored.event.job, []).append(stored)
    return chains
