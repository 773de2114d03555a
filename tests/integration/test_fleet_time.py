"""A host whose clock is wrong, by minutes or by a day, harms nobody: all processes of a fleet go by the server's time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.command_line import CommandLine
from tests.support.limits import LIMIT_S
from tests.support.schedules import declare, facts
from tests.support.timing import until
from tests.support.working import Connect, working

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, Run, Signal, connect, task, workflow
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.schedules.decisions import Pause, Resume
from jobledger.ledger.model.schedules.events import Ticked
from jobledger.ledger.nats.fleet_clock import FleetClock
from jobledger.ledger.nats.streams import find_stream
from jobledger.testing import MovableClock

pytestmark = pytest.mark.anyio
MINUTES = 300.0
DAY = 86_400.0
#: How late a timer may be here; how early one may never be.
LATE_S = 5.0

go = Signal("go", str)


class Host:
    """A machine whose wall clock is wrong."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)

    def monotonic(self) -> float:
        return time.monotonic()


@task(queue="cron")
async def add() -> None:
    return None


@task(queue="cron", max_attempts=3)
async def nap(seconds: float) -> str:
    return "done"


@workflow(queue="cron")
async def waits(run: Run) -> str:
    try:
        return await run.wait(go, timeout_s=1.5)
    except TimeoutError:
        return "timed out"


async def _latest_s(ledger: Ledger) -> float:
    """Return by how many seconds an event's own time is later than the server's, at the most."""
    found = -DAY
    async for batch in ledger.log.read_messages():
        for message in batch:
            if isinstance(message, StoredEvent):
                found = max(found, (message.event.at - message.stored_at).total_seconds())
    return found


@pytest.mark.parametrize("ahead_s", [MINUTES, DAY, -MINUTES, -DAY])
async def test_delays_waits_and_ticks_of_a_host_with_a_wrong_clock_are_on_time(
    connected: Connect, ahead_s: float
) -> None:
    async with connected(clock=FleetClock(Host(ahead_s))) as ledger:
        async with working(ledger, add, nap, waits):
            await declare(ledger)
            delayed = await ledger.enqueue(nap.options(delay_s=1.5), 0.0)
            run = await ledger.enqueue(waits)
            assert await run.result(timeout_s=LIMIT_S) == "timed out"
            assert await delayed.result(timeout_s=LIMIT_S) == "done"

            async def has_ticked() -> bool:
                return sum(isinstance(each, Ticked) for each in await facts(ledger)) >= 2

            await until(has_ticked)
        for job in (run, delayed):
            stored = [each.stored_at for each in await job.history()]
            assert 1.4 < (stored[-1] - stored[0]).total_seconds() < 1.5 + LATE_S
        assert await _latest_s(ledger) < LATE_S
        report = await verify(ledger.log)
        assert report.sound, report.violations


async def test_a_worker_on_such_a_host_says_so(cli: CommandLine) -> None:
    clock = FleetClock(Host(MINUTES))
    async with (
        connect(cli.url, environment=cli.environment, ledger_bytes_max=64 << 20, clock=clock) as ledger,
        working(ledger, add) as worker,
    ):
        await worker.taking.wait()
        (info,) = await ledger.leases.all()
        assert info.clock_apart_s == pytest.approx(MINUTES, abs=1.0)
        assert worker.counts().clock_apart_s == pytest.approx(MINUTES, abs=1.0)
        listed = await asyncio.to_thread(cli.run, "workers", "list", *cli.where)
        assert "is 5 min ahead of the server's: synchronise it" in listed.out
        doctor = await asyncio.to_thread(cli.run, "doctor", *cli.where)
        assert "is 5 min ahead of the server's" in " ".join(doctor.out.split())


async def test_a_schedule_that_a_wrong_clock_silenced_ticks_after_it_is_resumed(connected: Connect) -> None:
    """As an earlier release left it: the newest tick in the chain is one of tomorrow."""
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    clock = MovableClock(tomorrow)
    async with connected(clock=clock) as wrong:
        known = await declare(wrong)
        clock.advance(2)
        known = await wrong.schedules.tick("nightly", known)
        await wrong.schedules.act("nightly", Pause())
    async with connected() as ledger:
        await ledger.schedules.act("nightly", Resume())
        async with working(ledger, add):

            async def has_ticked() -> bool:
                return sum(isinstance(each, Ticked) for each in await facts(ledger)) >= 3

            await until(has_ticked)
        report = await verify(ledger.log)
        assert report.sound, report.violations


async def test_how_long_a_value_stays_is_judged_by_the_fleets_time(connected: Connect) -> None:
    """What would be gone too early is stored again: the server's stamp and the fleet's time tell."""
    clock = MovableClock()
    async with connected(clock=clock) as ledger:
        for moved_s, is_stored in ((0.0, True), (0.0, False), (4 * DAY, True)):
            clock.advance(moved_s)
            before = await _stored_count(ledger)
            await ledger.results.put(b"1" * (1 << 20), what="result", key="")
            await ledger.bodies.keep(b"2" * 1_000, 3 * DAY)
            after = await _stored_count(ledger)
            assert [now > then for now, then in zip(after, before, strict=True)] == [is_stored] * 2


async def _stored_count(ledger: Ledger) -> list[int]:
    """Return how many messages were ever stored in the buckets of results and of bodies."""
    buckets = (ledger.names.results_bucket, ledger.names.bodies_bucket)
    found = [await find_stream(ledger.inbox, f"OBJ_{bucket}") for bucket in buckets]
    return [0 if each is None else each.state.last_sequence for each in found]
