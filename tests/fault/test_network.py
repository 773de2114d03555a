"""Rows 17, 18 and 25 of the scoreboard: bad networks, lost answers and acks, and a reader that is too slow."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
from tests.fault.conftest import ConnectTo
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, load_tasks
from tests.support.proof import prove
from tests.support.proxy import Proxy, is_append_answer, is_delivery
from tests.support.watch import Watch

from jobledger.ledger import Ledger
from jobledger.ledger.model.errors import UnreachableError

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(120)]

TASKS = load_tasks()
JOBS = 400
HARM_S = 8.0


@pytest.fixture
async def proxy(server: EmbeddedServer, chance: random.Random) -> AsyncIterator[Proxy]:
    async with Proxy(server.port, chance) as made:
        yield made


async def cut(proxy: Proxy, chance: random.Random) -> None:
    proxy.cut()
    await asyncio.sleep(chance.uniform(0.2, 0.8))


async def half_open(proxy: Proxy, chance: random.Random) -> None:
    """Longer than an answer is waited for every second time, and than the lease every time."""
    proxy.hold()
    await asyncio.sleep(chance.uniform(3.5, 6.0))
    if chance.random() < 0.5:
        proxy.cut()
    proxy.release()
    await asyncio.sleep(0.5)


async def slow(proxy: Proxy, _: random.Random) -> None:
    proxy.delay_s, proxy.straggle_share = 0.1, 0.05
    await asyncio.sleep(1.0)


async def lossy(proxy: Proxy, _: random.Random) -> None:
    """A connection breaks somewhere in every thousand messages, with whatever is on its way."""
    proxy.cut_share = 0.001
    await asyncio.sleep(1.0)


async def byte_by_byte(proxy: Proxy, _: random.Random) -> None:
    proxy.piece_bytes = 1
    await asyncio.sleep(1.0)


Harm = Callable[[Proxy, random.Random], Awaitable[None]]
HARMS: dict[str, tuple[Harm, str]] = {
    "cut": (cut, "all connections cut every half second"),
    "half open": (half_open, "connections that pass nothing on for 3.5 to 6 s, then go on or break"),
    "slow": (slow, "200 ms there and back, 5 % of the messages thrice as long"),
    "lossy": (lossy, "each message breaks its connection with a chance of 0.1 %"),
    "byte by byte": (byte_by_byte, "every byte in a segment of its own"),
}


async def _enqueue(ledger: Ledger, job_id: str, chance: random.Random) -> bool:
    """Enqueue until there is an answer; return whether the answer was that this made it, or that may be so."""
    wanted = TASKS[chance.choice(("nap", "nap_in_thread"))].options(id=job_id, max_attempts=50)
    is_plain = True
    while True:
        try:
            job = await ledger.enqueue(wanted, chance.random() * 0.2)
        except UnreachableError:
            is_plain = False
            continue
        return job.created or not is_plain


@pytest.mark.parametrize("name", HARMS)
async def test_a_bad_network_loses_and_doubles_nothing(
    ledger: Ledger,
    connected: ConnectTo,
    fleet: Fleet,
    *,
    proxy: Proxy,
    chance: random.Random,
    secret: str,
    record: Recorder,
    name: str,
) -> None:
    """Row 17: between two workers and the server, and between a client and the server."""
    harm, what = HARMS[name]
    url = f"nats://worker:{secret}@127.0.0.1:{proxy.port}"
    async with connected(proxy.url) as far, Watch.following(ledger) as watch:
        for worker in [await fleet.begin("--concurrency", "20", url=url) for _ in range(2)]:
            await worker.ready()
        ids = iter(range(JOBS))
        made: list[bool] = []

        async def enqueue() -> None:
            for number in ids:
                made.append(await _enqueue(far, f"n-{number}", chance))
                await asyncio.sleep(chance.random() * HARM_S * 0.04)

        until = time.monotonic() + HARM_S
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(enqueue())
            while time.monotonic() < until or len(made) < JOBS:
                await harm(proxy, chance)
        _heal(proxy)
        since = time.monotonic()
        await watch.until_ended(JOBS)
        back_s = time.monotonic() - since
        jobs = [("work", f"n-{number}") for number in range(JOBS)]
        proof = await prove(ledger, enqueued=jobs, trace=fleet.trace, logs=fleet.logs, secrets=[secret])
        assert await fleet.stop() == [0, 0]
    proof.hold()
    assert all(made)
    assert set(watch.ended.values()) == {"completed"}
    record(
        "17",
        what,
        faults=f"{proxy.connections} connections, {proxy.cuts} cuts, "
        f"{watch.count['started'] - JOBS} attempts beyond the first",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{back_s:.1f} s until all was done",
    )


def _heal(proxy: Proxy) -> None:
    proxy.delay_s = proxy.cut_share = 0.0
    proxy.piece_bytes = 1 << 30
    proxy.release()


@pytest.mark.parametrize(("durability", "answers"), [("process", 30), ("power", 3)])
async def test_lost_answers_and_acks_store_and_run_everything_once(
    ledger: Ledger,
    connected: ConnectTo,
    fleet: Fleet,
    *,
    proxy: Proxy,
    answers: int,
    chance: random.Random,
    secret: str,
    record: Recorder,
) -> None:
    """Row 18: answers to appends stolen from client and worker, acks lost and repeated, deliveries stolen.

    Where each append is on the disk before its answer, one answer is for a group of appends, so there are fewer.
    """
    url = f"nats://worker:{secret}@127.0.0.1:{proxy.port}"
    count = 300
    async with connected(proxy.url) as one, connected(proxy.url) as two, Watch.following(ledger) as watch:
        await fleet.start(url=url)
        proxy.drop_share[b"+ACK"] = 0.3
        proxy.repeat_share[b"+ACK"] = 0.3
        stolen = 0
        created: list[bool] = []
        for start in range(0, count, 100):
            proxy.to_steal = {is_append_answer: answers, is_delivery: 10}
            wanted = [TASKS["nap"].options(id=f"n-{n}", max_attempts=50) for n in range(start, start + 100)]
            naps = [chance.random() * 0.1 for _ in wanted]  # the same for both callers: one id has one input
            handles = await asyncio.gather(
                *(
                    client.enqueue(each, nap)
                    for each, nap in zip(wanted, naps, strict=True)
                    for client in (one, two)
                )
            )
            created += [handle.created for handle in handles]
            stolen = proxy.stolen
        since = time.monotonic()
        await watch.until_ended(count)
        back_s = time.monotonic() - since
        jobs = [("work", f"n-{number}") for number in range(count)]
        proof = await prove(ledger, enqueued=jobs, trace=fleet.trace)
        assert await fleet.stop() == [0]
    proof.hold()
    assert Counter(created) == {True: count, False: count}  # two callers each, and one made it
    assert stolen >= 2 * answers
    assert proxy.dropped
    assert proxy.repeated
    assert watch.count == {"queued": count, "started": count, "completed": count}
    record(
        "18",
        "answers to appends and deliveries stolen, 30 % of the acks lost and 30 % repeated; each job enqueued by two",
        faults=f"{proxy.stolen} stolen, {proxy.dropped} acks lost, {proxy.repeated} repeated; "
        f"success told exactly once for each of {count}",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{back_s:.1f} s until all was done",
    )


async def test_a_reader_that_is_too_slow_costs_no_job_its_run(
    ledger: Ledger, fleet: Fleet, server: EmbeddedServer, secret: str, record: Recorder
) -> None:
    """Row 25: 1,000 slots, 30 MB of input at once, a loop blocked by its own tasks, an ack wait of two seconds."""
    count = 1_000
    async with Watch.following(ledger) as watch:
        inputs = ({"seconds": 0.01, "note": "x" * 30_000} for _ in range(count))
        ids = iter(range(count))
        wanted = TASKS["block"].options(max_attempts=50)
        await ledger.enqueue_many(wanted, inputs, ids=lambda _: f"n-{next(ids)}")
        since = time.monotonic()
        for worker in [await fleet.begin("--concurrency", "1000") for _ in range(2)]:
            await worker.ready()
        await watch.until_ended(count)
        done_s = time.monotonic() - since
        jobs = [("work", f"n-{number}") for number in range(count)]
        proof = await prove(ledger, enqueued=jobs, trace=fleet.trace)
        with contextlib.suppress(TimeoutError):
            assert await fleet.stop() == [0, 0]
    slow = "Slow Consumer" in server.log_path.read_text(encoding="utf-8")
    overlapping = {
        problem.split(":")[1].strip() for problem in proof.problems if problem.startswith("overlap")
    }
    rest = [problem for problem in proof.problems if not problem.startswith("overlap")]
    assert rest == [], rest[:5]
    assert set(watch.ended.values()) == {"completed"}
    record(
        "25",
        "1,000 slots a worker, 30 MB at once, an event loop blocked by its own tasks",
        faults=f"{watch.count['started'] - count} attempts beyond the first, 0 dead letters without a run"
        + (", slow consumer noted by the server" if slow else ""),
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"all done in {done_s:.1f} s"
        + (f", {len(overlapping)} overlaps" if overlapping else ""),
    )
