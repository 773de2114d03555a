"""What a worker has at hand while its jobs are short: never more code at once than slots, and nothing kept from others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.working import LIMIT_S, Connect, ended, until, working

from jobledger.ledger import JobHandle, Ledger, task
from jobledger.workers import Worker

pytestmark = pytest.mark.anyio
SLOTS = 4
GATE = asyncio.Event()


class _Seen:
    """What the code of jobs saw of its worker."""

    worker: Worker | None = None
    full: asyncio.Event | None = None  #: set once all slots are taken; until then, jobs wait for it
    running = 0
    running_max = 0
    held_max = 0
    gated = 0


@task
async def short(number: int) -> int:
    _Seen.running += 1
    _Seen.running_max = max(_Seen.running_max, _Seen.running)
    if _Seen.worker is not None:
        _Seen.held_max = max(_Seen.held_max, _Seen.worker.counts().held)
        assert _Seen.worker.running <= SLOTS
    if _Seen.full is not None:
        if _Seen.running == SLOTS:
            _Seen.full.set()
        await _Seen.full.wait()
    await asyncio.sleep(0)
    _Seen.running -= 1
    return number


@task
async def gated() -> None:
    _Seen.gated += 1
    await GATE.wait()


async def _enqueued(ledger: Ledger, count: int) -> list[JobHandle[int]]:
    return await asyncio.gather(*(ledger.enqueue(short, number) for number in range(count)))


async def test_more_are_at_hand_than_slots_but_no_more_code_runs(ledger: Ledger) -> None:
    jobs = await _enqueued(ledger, 600)
    _Seen.running = _Seen.running_max = _Seen.held_max = 0
    async with working(ledger, short, concurrency=SLOTS) as worker:
        _Seen.worker, _Seen.full = worker, asyncio.Event()
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == list(range(600))
        assert worker.counts().redeliveries == 0
        assert (worker.counts().free, worker.counts().held) == (SLOTS, 0)
    _Seen.worker = _Seen.full = None
    assert _Seen.running_max == SLOTS
    assert SLOTS < _Seen.held_max <= 3 * SLOTS  # running, recorded, at hand


@pytest.mark.parametrize("stops", [False, True], ids=["jobs become long", "the worker stops"])
async def test_what_is_at_hand_runs_elsewhere_before_long(connected: Connect, stops: bool) -> None:
    GATE.clear()
    _Seen.gated = 0
    async with connected() as one, connected() as two:
        settings: dict[str, Any] = {"concurrency": SLOTS, "ack_wait_s": 600, "grace_s": LIMIT_S}
        await one.enqueue_many(short, [{"number": number} for number in range(200)])
        long = [await one.enqueue(gated) for _ in range(SLOTS)]
        behind = [await one.enqueue(short, number) for number in range(SLOTS)]
        async with working(one, short, gated, **settings) as busy:
            await until(lambda: _Seen.gated == SLOTS and len(busy._at_hand.waiting) > 0)
            if stops:
                busy.stop()
            async with working(two, short, gated, **settings):
                assert [await job.result(timeout_s=LIMIT_S) for job in behind] == list(range(SLOTS))
            GATE.set()
            for job in long:
                await ended(job)


async def test_who_takes_a_number_of_jobs_has_none_at_hand(ledger: Ledger) -> None:
    await ledger.enqueue_many(short, [{"number": number} for number in range(300)])
    async with working(ledger, short, concurrency=SLOTS, jobs_max=200) as worker:
        _Seen.worker, _Seen.held_max = worker, 0
        await until(worker._stopping.is_set)
        assert worker.counts().deliveries == 200
    _Seen.worker = None
    assert _Seen.held_max <= 2 * SLOTS
