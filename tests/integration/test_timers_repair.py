"""Timers that are lost, stale, forged or heard twice: set anew from the ledger, and no job goes on by them twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from tests.support.jetstream import api
from tests.support.timing import (
    LIMIT_S,
    add,
    has_been_queued,
    in_stream,
    is_queued,
    lateness,
    measured_slack,
    reacting,
    state,
    until,
)
from tests.support.working import Connect, types, working

from jobledger.ledger import (
    JobState,
    Ledger,
    task,
)
from jobledger.ledger.model.commands import CancelJob, Claim, Complete, Dispatch
from jobledger.ledger.model.commands import Snooze as SnoozeJob
from jobledger.ledger.model.errors import IllegalTransitionError
from jobledger.ledger.nats.timer_stream import DUE_CONSUMER
from jobledger.ledger.timer_upkeep import rebuild_timers, timers_status
from jobledger.ledger.timers import Timer, Timers
from jobledger.workers import services
from jobledger.workers.reactors import lag
from jobledger.workers.reactors import timers as workers_timers
from jobledger.workers.reactors.reactor import host

pytestmark = pytest.mark.anyio


def timers_of(ledger: Ledger) -> Timers:
    return Timers(ledger.connection, ledger.inbox, ledger.names, ledger.config)


@pytest.mark.unsound_ledger("a job is dispatched before it is due")
async def test_an_older_timer_does_not_end_a_newer_wait(ledger: Ledger) -> None:
    async with reacting(ledger):
        job = await ledger.enqueue(add.options(delay_s=30), 1)
        waiting = await job.snapshot()

        async def is_set() -> bool:
            return await in_stream(ledger) == 1

        await until(is_set)  # or the reactor would replace the older timer that is set below
        # Somebody could not wait, and then the task snoozed: another wait, which only its own timer may end.
        await ledger.execute(job.ref, Dispatch(cause="due"))
        epoch = (await ledger.execute(job.ref, Claim(worker="w", lease_s=15.0))).claim_epoch
        due_at = datetime.now(UTC) + timedelta(seconds=1.4)
        await ledger.execute(job.ref, SnoozeJob(epoch=epoch, until=due_at))
        old = Timer(
            queue=job.ref.queue,
            job_id=job.id,
            asked_by=waiting.wait_sequence,
            cause="due",
            due_at=datetime.now(UTC),
        )
        await timers_of(ledger).set(old, ledger.clock.now())

        async def both_were_heard() -> bool:
            return await in_stream(ledger) == 0

        await until(both_were_heard)
        assert await types(job) == ["scheduled", "queued", "started", "snoozed", "queued"]
        assert (await job.history())[-1].stored_at >= due_at


async def test_a_timer_that_is_set_and_heard_several_times_dispatches_once(ledger: Ledger) -> None:
    job = await ledger.enqueue(add.options(delay_s=3.0), 1)
    waiting = await job.snapshot()
    assert waiting.due_at is not None
    timer = Timer(
        queue=job.ref.queue,
        job_id=job.id,
        asked_by=waiting.wait_sequence,
        cause="due",
        due_at=waiting.due_at,
    )
    timers = timers_of(ledger)
    await asyncio.gather(*(timers.set(timer, ledger.clock.now()) for _ in range(5)))
    assert await in_stream(ledger) == 1
    async with reacting(ledger):
        await until(lambda: is_queued(job))
        await timers.set(timer, ledger.clock.now())

        async def settled() -> bool:
            return await in_stream(ledger) == 0

        await until(settled)
        assert await types(job) == ["scheduled", "queued"]


async def test_what_is_no_timer_is_dropped_and_keeps_nobody_waiting(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "LAGGING_DELIVERIES_MAX", 2)
    await ledger.connection.publish(f"{ledger.names.timers_due[:-1]}q.j.1", b"not a timer")
    missing = Timer(queue="q", job_id="nobody", asked_by=1, cause="due", due_at=datetime.now(UTC))
    await timers_of(ledger).set(missing, ledger.clock.now())
    async with reacting(ledger):
        job = await ledger.enqueue(add.options(delay_s=1.2), 1)
        await until(lambda: is_queued(job))

        async def settled() -> bool:
            return await in_stream(ledger) == 0

        await until(settled)


@task(max_attempts=1)
async def fails() -> None:
    raise ValueError("no")


@pytest.mark.unsound_ledger("a message that is no event is published")
async def test_what_asks_for_no_timer_is_done_with_and_what_is_no_event_too(ledger: Ledger) -> None:
    root = ledger.names.ledger_root
    await ledger.connection.publish(f"{root}.job.q.broken.failed", b"not an event")
    async with working(ledger, add, fails):
        for _ in range(5):
            await (await ledger.enqueue(fails)).wait(timeout_s=LIMIT_S)
        job = await ledger.enqueue(add.options(delay_s=1.2), 1)
        await until(partial(has_been_queued, job))

        async def nothing_is_left() -> bool:
            return (await timers_status(ledger)).unset_events == 0

        await until(nothing_is_left)


async def delete_timers(ledger: Ledger) -> None:
    deleted = await api(ledger.inbox, f"STREAM.DELETE.{ledger.names.timers_stream}", {})
    assert deleted.get("success"), deleted


async def consumers(ledger: Ledger) -> list[str]:
    answer = await api(ledger.inbox, f"CONSUMER.NAMES.{ledger.names.ledger_stream}", {})
    return [name for name in answer["consumers"] if name.startswith("timers_")]


async def test_live_workers_make_a_deleted_stream_anew_from_the_ledger(connected: Connect) -> None:
    async with (
        connected() as ledger,
        connected() as other,
        reacting(ledger),
        reacting(other),
        measured_slack(ledger) as slack,
    ):
        begin = datetime.now(UTC) + timedelta(seconds=5.0)
        orders = [add.options(run_at=begin + timedelta(seconds=n / 50)) for n in range(25)]
        gone, *jobs = await asyncio.gather(
            ledger.enqueue(add.options(run_at=begin), 99),
            *(ledger.enqueue(order, n) for n, order in enumerate(orders)),
        )

        async def all_set() -> bool:
            return await in_stream(ledger) == 26

        await until(all_set)
        await ledger.execute(gone.ref, CancelJob())
        (old,) = await consumers(ledger)
        await delete_timers(ledger)
        await until(all_set)  # the cancelled one's too: it will be refused
        (new,) = await consumers(ledger)
        assert new > old
        for job in jobs:
            await until(partial(is_queued, job))
        assert await state(gone) is JobState.CANCELLED
        late = await lateness(ledger)
        assert len(late) == 25
        assert late[-1] < 1.0 + slack.worst_s


@pytest.mark.unsound_ledger("a job is dispatched before it is due")
async def test_the_command_sets_the_timers_of_what_still_waits(ledger: Ledger) -> None:
    due_at = datetime.now(UTC) + timedelta(seconds=5.0)  # long enough for all that comes before they fire
    soon = add.options(run_at=due_at)
    kept = await asyncio.gather(*(ledger.enqueue(soon, n) for n in range(10)))
    cancelled = await asyncio.gather(*(ledger.enqueue(soon, n) for n in range(5)))
    for job in cancelled:
        await ledger.execute(job.ref, CancelJob())
    snoozed = await ledger.enqueue(add, 1)
    epoch = (await ledger.execute(snoozed.ref, Claim(worker="w", lease_s=15.0))).claim_epoch
    await ledger.execute(snoozed.ref, SnoozeJob(epoch=epoch, until=due_at))
    finished = await ledger.enqueue(add.options(delay_s=60), 1)
    await ledger.execute(finished.ref, Dispatch(cause="due"))
    epoch = (await ledger.execute(finished.ref, Claim(worker="w", lease_s=15.0))).claim_epoch
    await ledger.execute(finished.ref, Complete(epoch=epoch))

    await delete_timers(ledger)
    told: list[tuple[int, int]] = []
    done = await rebuild_timers(ledger, progress=lambda at, of: told.append((at, of)))
    assert (done.waits, done.set) == (17, 11)
    assert told
    assert all(0 < at <= of for at, of in told)
    assert await in_stream(ledger) == 11
    found = await timers_status(ledger)
    assert (found.timers_set, found.fired, found.unset_events, found.next_is_exact) == (11, 0, None, True)
    assert found.next_due_at == (await kept[0].snapshot()).due_at
    again = await rebuild_timers(ledger)
    assert (again.set, await in_stream(ledger)) == (11, 11)

    # Only what hears timers, nothing that sets them: what fires is what the command has set.
    _, due_timers = workers_timers.timer_reactors(ledger)
    hearing = asyncio.create_task(due_timers.run())
    try:
        for job in [*kept, snoozed]:
            await until(partial(is_queued, job))
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    assert {await state(job) for job in cancelled} == {JobState.CANCELLED}


async def test_a_reactor_that_fails_is_run_again_and_harms_nobody(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(services, "_RESTART_S_FIRST", 0.01)
    ran = Counter[str]()

    class Broken:
        name = "broken"

        async def run(self) -> None:
            ran["times"] += 1
            if ran["times"] == 2:
                return
            raise ValueError("of no use")

    hosted = asyncio.create_task(host(ledger, Broken()))

    async def ran_thrice() -> bool:
        return ran["times"] >= 3

    await until(ran_thrice)
    assert not hosted.done()
    hosted.cancel()
    await asyncio.gather(hosted, return_exceptions=True)
    assert "reactor broken failed and begins again: of no use" in caplog.text
    assert "reactor broken ended by itself" in caplog.text


async def test_a_worker_without_reactors_leaves_timers_to_others(ledger: Ledger) -> None:
    async with working(ledger, add, reactors=False):
        job = await ledger.enqueue(add.options(delay_s=0.1), 1)
        with pytest.raises(TimeoutError):
            await until(lambda: has_been_queued(job), 0.8)
    info = await api(ledger.inbox, f"CONSUMER.INFO.{ledger.names.timers_stream}.{DUE_CONSUMER}", {})
    assert "error" in info


async def test_a_dispatch_for_a_wait_that_is_over_is_refused(ledger: Ledger) -> None:
    job = await ledger.enqueue(add.options(delay_s=60), 1)
    with pytest.raises(IllegalTransitionError):
        await ledger.execute(job.ref, Dispatch(cause="due", asked_by=99))
    assert await types(job) == ["scheduled"]
