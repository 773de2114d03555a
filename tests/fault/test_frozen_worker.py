"""A worker that stands still, not dead: its open requests must not swallow what the reactors of the others need."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.figures import Recorder
from tests.support.fleet import Fleet
from tests.support.schedules import declare, facts

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, Task, TaskRegistry
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.events import Completed, Queued
from jobledger.ledger.model.schedules.events import Ticked

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(180)]

APP = Path(__file__).parent / "apps" / "steady.py"
WORKERS = 3
RUNS_AT_ONCE = 12
FROZEN_S = 8.0  # less than a lease: nobody takes over from it
#: The promise: a third of the fleet stands still, and what the others do goes on within this time.
PROGRESS_S = 3.0


@pytest.fixture
def durability() -> str:
    return "process"


@pytest.fixture
def lease_s() -> float:
    """The default: longer than the worker stands still."""
    return 15.0


async def test_while_a_third_of_the_fleet_is_frozen_ticks_and_joins_come_within_three_seconds(
    ledger: Ledger, fleet: Fleet, record: Recorder
) -> None:
    """Row 41: each of three workers stands still in turn."""
    fleet.app = APP
    tasks: dict[str, Task[..., object]] = {each.name: each for each in TaskRegistry.load([str(APP)])}
    workers = [await fleet.begin("--concurrency", "20") for _ in range(WORKERS)]
    for worker in workers:
        await worker.ready()
    await declare(ledger, queue="work", overlap="allow")
    stop = asyncio.Event()
    running = [asyncio.create_task(_runs(ledger, tasks["family"], stop)) for _ in range(RUNS_AT_ONCE)]
    for worker in workers:
        await asyncio.sleep(2.0)
        await fleet.freeze(worker.pid, FROZEN_S)
    stop.set()
    ended = sum(await asyncio.gather(*running))
    await fleet.stop()
    late_s, joined_s = await _tick_late_s(ledger), await _join_s(ledger)
    report = await verify(ledger.log)
    assert report.sound, report.violations
    record(
        "41",
        "each of three workers stands still (SIGSTOP) for 8 s in turn, under runs of children and a schedule",
        faults=f"{WORKERS} freezes; a tick was {late_s:.1f} s late at most, an end was counted after {joined_s:.1f} s",
        jobs=ended,
        events=report.events,
        now=time.monotonic(),
    )
    assert (late_s < PROGRESS_S, joined_s < PROGRESS_S) == (True, True), (late_s, joined_s)


async def _runs(ledger: Ledger, family: Task[..., object], stop: asyncio.Event) -> int:
    ended = 0
    while not stop.is_set():
        job = await ledger.enqueue(family)
        await job.result(timeout_s=60)
        ended += 1
    return ended


async def _tick_late_s(ledger: Ledger) -> float:
    """Return how late a tick was made, at the most."""
    ticks = [each for each in await facts(ledger) if isinstance(each, Ticked) and each.tick is not None]
    return max((each.at - each.tick).total_seconds() for each in ticks if each.tick is not None)


async def _join_s(ledger: Ledger) -> float:
    """Return how long after the last end of its children a run was woken, at the most."""
    ends: dict[str, float] = {}
    longest = 0.0
    async for batch in ledger.log.read_messages():
        for message in batch:
            if not isinstance(message, StoredEvent):
                continue
            event, at = message.event, message.stored_at.timestamp()
            if isinstance(event, Completed) and event.member is not None:
                ends[event.member.job] = at
            elif isinstance(event, Queued) and event.cause == "resumed" and event.job in ends:
                longest = max(longest, at - ends.pop(event.job))
    return longest
