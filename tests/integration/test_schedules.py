"""Schedules tick: each moment once, whoever dies where, and never while they must not."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import zoneinfo
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.schedules import begun_jobs, declare, facts, overdue, ticked_jobs
from tests.support.timing import in_stream, reacting, until
from tests.support.working import working

from jobledger.ledger import IllegalTransitionError, JobRef, Ledger, task
from jobledger.ledger.model.commands import CancelJob, Remove
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.schedules.decisions import (
    Backfill,
    Declare,
    Pause,
    Resume,
    Tick,
    Trigger,
    decide,
)
from jobledger.ledger.model.schedules.definition import Overlap
from jobledger.ledger.model.schedules.events import Ticked
from jobledger.ledger.model.schedules.jobs import manual_job_id, tick_job_id
from jobledger.ledger.model.schedules.schedule import SCHEDULE
from jobledger.ledger.model.schedules.ticks import Spec, zone_of
from jobledger.ledger.nats.durables import find_consumer
from jobledger.ledger.nats.timer_stream import DUE_CONSUMER
from jobledger.ledger.timer_upkeep import rebuild_timers, timers_status
from jobledger.ledger.timers import Timers, schedule_timer
from jobledger.workers.reactors.schedules.ticker import Looks

pytestmark = pytest.mark.anyio


async def _has_ticked(ledger: Ledger, times: int, name: str = "nightly") -> bool:
    return sum(isinstance(each, Ticked) for each in await facts(ledger, name)) >= times


async def test_a_schedule_ticks_at_each_moment_and_each_tick_makes_its_job(ledger: Ledger) -> None:
    async with reacting(ledger):
        order = Order(input=msgspec.Raw(b'{"n": 1}'), priority="high", max_attempts=3)
        await declare(ledger, order=order, overlap="allow")
        await until(lambda: _has_ticked(ledger, 2))
    ticks = [each for each in await facts(ledger) if isinstance(each, Ticked)]
    assert ticks[0].tick is not None
    assert [each.tick for each in ticks] == [ticks[0].tick + timedelta(seconds=n) for n in range(len(ticks))]
    for each in ticks:
        assert each.tick is not None
        assert 0.0 <= (each.at - each.tick).total_seconds() < 1.0
        job = await (await ledger.job(JobRef(queue="cron", job_id=each.job))).snapshot()
        assert (job.task, job.order.priority, job.order.max_attempts) == ("add", "high", 3)
        assert job.order.tick == each.job
        assert bytes(job.order.input) == b'{"n": 1}'
    assert set(await ticked_jobs(ledger)) == set(await begun_jobs(ledger))


async def test_a_moment_to_come_waits_in_the_stream_of_timers(ledger: Ledger) -> None:
    async with reacting(ledger):
        at = datetime.now(UTC) + timedelta(seconds=1.6)
        await declare(ledger, at=at)

        async def is_set() -> bool:
            return await in_stream(ledger) == 1

        await until(is_set)
        status = await timers_status(ledger)
        assert (status.timers_set, status.next_due_at) == (1, at)
        await until(lambda: _has_ticked(ledger, 1))
        assert (await facts(ledger))[-1].next_at is None  # the only one

        async def settled() -> bool:
            return await in_stream(ledger) == 0

        await until(settled)


async def test_schedules_that_tick_together_are_looked_at_by_one_request(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    present = ledger.log.present

    async def counted(subjects: Sequence[str]) -> set[str]:
        asked.append(len(subjects))
        return await present(subjects)

    monkeypatch.setattr(ledger.log, "present", counted)
    there = [f"s{number}" for number in range(5)]
    for name in there:
        await declare(ledger, name, every_s=3600)
        await ledger.schedules.act(name, Tick())
    await declare(ledger, "cut", every_s=3600)
    lost = await _cut_off(ledger, "cut")
    looks = Looks(ledger.log)
    known = [await ledger.schedules.read(name) for name in (*there, "cut")]
    healed = await asyncio.gather(*(ledger.schedules.healed(each, looks.present) for each in known))
    assert all(each.whole for each in healed)
    assert asked == [6]
    assert await begun_jobs(ledger) == dict.fromkeys(await ticked_jobs(ledger), 1)
    assert lost.job in await begun_jobs(ledger)


async def test_what_a_dead_worker_held_comes_to_another_one_after_a_second(ledger: Ledger) -> None:
    async with reacting(ledger):
        await declare(ledger)
        await until(lambda: _has_ticked(ledger, 1))
    names = ledger.names
    timers_id = await Timers(ledger.connection, ledger.inbox, names, ledger.config).ensure()
    consumers = (names.ledger_stream, names.timers_consumer(timers_id)), (names.timers_stream, DUE_CONSUMER)
    for stream, name in consumers:
        info = await find_consumer(ledger.inbox, stream, name)
        assert info is not None
        assert info.config["ack_wait"] == 1_000_000_000


async def _cut_off(ledger: Ledger, name: str = "nightly") -> Ticked:
    """Append a tick as a process does that dies before it makes the job."""
    known = await ledger.schedules.read(name)
    event = decide(name, known.schedule, Tick(), ledger.stamp())
    assert isinstance(event, Ticked)
    await ledger.log.append(SCHEDULE.link(ledger.names, [event], known.view))
    return event


async def test_the_job_of_a_tick_whose_process_died_is_made_by_who_acts_next(ledger: Ledger) -> None:
    await declare(ledger, every_s=3600)
    lost = await _cut_off(ledger)
    assert not await begun_jobs(ledger)
    await ledger.schedules.act("nightly", Pause())
    assert await begun_jobs(ledger) == {lost.job: 1}


async def test_a_tick_cut_off_by_a_crash_is_healed_before_the_next_tick(ledger: Ledger) -> None:
    await declare(ledger, every_s=1, overlap="allow")
    lost = await _cut_off(ledger)
    async with reacting(ledger):
        await until(lambda: _has_ticked(ledger, 2))
    begun = await begun_jobs(ledger)
    assert lost.job in begun
    assert begun == dict.fromkeys(await ticked_jobs(ledger), 1)


async def test_a_timer_that_comes_again_heals_the_tick_that_it_made(ledger: Ledger) -> None:
    """As after a crash between the two appends: the due timer is delivered once more, and its tick is there."""
    at = datetime.now(UTC) + timedelta(seconds=0.5)
    known = await declare(ledger, at=at)
    assert known.event is not None
    timer = schedule_timer(known.event, known.sequence)
    assert timer is not None
    lost = await _cut_off(ledger)
    async with reacting(ledger):  # the setter hears `declared` again

        async def healed() -> bool:
            return bool(await begun_jobs(ledger))

        await until(healed)
    assert await begun_jobs(ledger) == {lost.job: 1}
    assert len(await facts(ledger)) == 2


async def test_a_paused_schedule_does_not_tick_and_a_resumed_one_goes_on_from_now(ledger: Ledger) -> None:
    schedules = ledger.schedules
    async with reacting(ledger):
        await declare(ledger, every_s=1)
        await schedules.act("nightly", Pause(reason="not now"))
        paused = len(await facts(ledger))
        await declare(ledger, "other", every_s=1)
        await until(lambda: _has_ticked(ledger, 1, "other"))
        assert len(await facts(ledger)) == paused
        await schedules.act("nightly", Resume())
        await until(lambda: _has_ticked(ledger, 1))
        await schedules.act("nightly", Remove())
        removed = len(await facts(ledger))
        ticks = sum(isinstance(each, Ticked) for each in await facts(ledger, "other"))
        await until(lambda: _has_ticked(ledger, ticks + 1, "other"))
        assert len(await facts(ledger)) == removed


async def test_a_trigger_and_a_backfill_make_their_jobs_also_where_their_author_died(ledger: Ledger) -> None:
    schedules = ledger.schedules
    await declare(ledger, every_s=3600)
    now = datetime.now(UTC)
    for command in (Trigger(reason="now"), Backfill(from_at=now - timedelta(hours=3), to_at=now)):
        known = await schedules.read("nightly")
        event = decide("nightly", known.schedule, command, ledger.stamp())
        assert event is not None
        sequence = await ledger.log.append(SCHEDULE.link(ledger.names, [event], known.view))
        wanted = {manual_job_id("nightly", sequence)}
        if isinstance(command, Backfill):
            wanted = {tick_job_id("nightly", each) for each in event.ticks}  # type: ignore[union-attr]
            assert len(wanted) == 3
        async with reacting(ledger):

            async def made(wanted: set[str] = wanted) -> bool:
                return wanted <= set(await begun_jobs(ledger))

            await until(made)
    assert set((await begun_jobs(ledger)).values()) == {1}

    async def is_set() -> bool:  # the next tick is waited for all the same
        return await in_stream(ledger) >= 1

    async with reacting(ledger):
        await until(is_set)


async def test_skip_leaves_a_tick_out_while_the_last_job_has_not_ended(ledger: Ledger) -> None:
    async with reacting(ledger):
        await declare(ledger, every_s=1, overlap="skip")
        await until(lambda: _has_ticked(ledger, 2))
        first, second = [each for each in await facts(ledger) if isinstance(each, Ticked)][:2]
        assert (first.skipped, second.skipped, second.job) == ("", "running", "")
        await ledger.execute(JobRef(queue="cron", job_id=first.job), CancelJob(reason="done with"))
        ticks = len(await facts(ledger))

        async def ran_again() -> bool:
            return any(isinstance(each, Ticked) and each.job for each in (await facts(ledger))[ticks:])

        await until(ran_again)
    assert set(await ticked_jobs(ledger)) == set(await begun_jobs(ledger))


async def test_skip_knows_a_job_that_was_made_before_its_schedule_moved_to_another_queue(
    ledger: Ledger,
) -> None:
    async with reacting(ledger):
        await declare(ledger, every_s=1, overlap="skip")
        await until(lambda: _has_ticked(ledger, 1))
        known = await ledger.schedules.read("nightly")
        assert known.schedule is not None
        moved = replace(known.schedule.definition, queue="elsewhere")
        ticks = len(await facts(ledger))
        await ledger.schedules.act("nightly", Declare(definition=moved, replace=True))
        await until(lambda: _has_ticked(ledger, ticks + 1))
    later = [each for each in await facts(ledger) if isinstance(each, Ticked)][1:]
    assert {each.skipped for each in later} == {"running"}


async def test_missed_ticks_are_caught_up_a_thousand_at_once_and_the_rest_after(ledger: Ledger) -> None:
    known = await declare(ledger, every_s=1, catchup="all", overlap="allow")
    await overdue(ledger, known, hours=1 / 3)
    async with reacting(ledger):
        await until(lambda: _has_ticked(ledger, 3), 2 * LIMIT_S)
    first, second, *_ = [each for each in await facts(ledger) if isinstance(each, Ticked)]
    assert len(first.ticks) == 1_000
    assert 150 <= len(second.ticks) <= 250
    assert first.missed == second.missed == 0
    assert await begun_jobs(ledger) == dict.fromkeys(await ticked_jobs(ledger), 1)


async def test_a_lost_stream_of_timers_is_filled_from_the_newest_event_of_each_schedule(
    ledger: Ledger,
) -> None:
    async with reacting(ledger):
        await declare(ledger, every_s=3600)
        await declare(ledger, "other", every_s=7200)
        await declare(ledger, "ended", at=datetime.now(UTC) + timedelta(seconds=0.5))
        await until(lambda: _has_ticked(ledger, 1, "ended"))

        async def both_set() -> bool:
            return await in_stream(ledger) == 2

        await until(both_set)
        await api(ledger.inbox, f"STREAM.DELETE.{ledger.names.timers_stream}", {})
        await until(both_set)
    await api(ledger.inbox, f"STREAM.DELETE.{ledger.names.timers_stream}", {})
    done = await rebuild_timers(ledger)
    assert (done.waits, done.set) == (2, 2)
    assert await both_set()


@contextlib.contextmanager
def _no_zones(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """Be a machine without a time zone database."""
    try:
        with monkeypatch.context() as patch:
            for module in [each for each in sys.modules if each.partition(".")[0] == "tzdata"]:
                patch.delitem(sys.modules, module)  # of zones that were looked for before
            patch.setitem(sys.modules, "tzdata", None)
            zoneinfo.reset_tzpath(to=())
            _forget_zones()
            yield
    finally:
        zoneinfo.reset_tzpath()
        _forget_zones()


def _forget_zones() -> None:
    zoneinfo.ZoneInfo.clear_cache()
    zone_of.cache_clear()


async def test_a_machine_that_does_not_know_the_zone_leaves_the_tick_to_others(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = await declare(ledger, spec=Spec(cron="* * * * *", timezone="Europe/Berlin"))
    await overdue(ledger, known, hours=0)
    async with reacting(ledger):
        with _no_zones(monkeypatch):
            await until(partial(_has_told, caplog, "no time zone 'Europe/Berlin' on this machine"))
            assert not await _has_ticked(ledger, 1)
        assert "install the package tzdata; until then other workers make the ticks of schedule nightly" in (
            caplog.text
        )
        assert "Traceback" not in caplog.text
        await until(lambda: _has_ticked(ledger, 1))
    assert set(await ticked_jobs(ledger)) == set(await begun_jobs(ledger))


async def _has_told(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text


@task(queue="cron")
async def add() -> None:
    """Run until it is told to end."""
    await asyncio.Event().wait()


OVERLAPS: tuple[Overlap, ...] = ("buffer_all", "buffer_one", "cancel_other")


async def test_jobs_of_ticks_wait_for_each_other_by_a_limit_of_one(ledger: Ledger) -> None:
    async with working(ledger, add, cancel_grace_s=1.0):
        for overlap in OVERLAPS:
            await declare(ledger, overlap, overlap=overlap)
        await _tick(ledger, 1)
        for overlap in OVERLAPS:
            await until(partial(_are, ledger, overlap, lambda count: ["running", *["held"] * (count - 1)]))
        for times in (2, 3):
            for overlap in OVERLAPS:
                await ledger.schedules.act(overlap, Resume())
            await _tick(ledger, times)
        await until(lambda: _are(ledger, "buffer_all", lambda count: ["running", *["held"] * (count - 1)]))
        await until(
            lambda: _are(
                ledger, "buffer_one", lambda count: ["running", *["cancelled"] * (count - 2), "held"]
            )
        )
        await until(
            lambda: _are(ledger, "cancel_other", lambda count: [*["cancelled"] * (count - 1), "running"])
        )
        for job in await ticked_jobs(ledger):
            with contextlib.suppress(IllegalTransitionError):
                await ledger.cancel(JobRef(queue="cron", job_id=job))


async def _tick(ledger: Ledger, times: int) -> None:
    """Let each of the schedules tick until it has done so that often, and then no more."""
    for overlap in OVERLAPS:
        await until(partial(_has_ticked, ledger, times, overlap))
        await ledger.schedules.act(overlap, Pause())


async def _are(ledger: Ledger, name: str, wanted: Callable[[int], list[str]]) -> bool:
    """Return whether the jobs of a schedule's ticks are in the states that `wanted` returns for that many jobs."""
    jobs = [each.job for each in await facts(ledger, name) if isinstance(each, Ticked)]
    handles = [await ledger.job(JobRef(queue="cron", job_id=job)) for job in jobs]
    return [(await each.snapshot()).state for each in handles] == wanted(len(jobs))
