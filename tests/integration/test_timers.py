"""Jobs that wait for a moment: never early, hardly late, whatever happens to servers, workers and clocks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import pytest
from tests.support.working import Connect, working

from jobledger.ledger import (
    Context,
    JobHandle,
    Ledger,
    Retry,
    Snooze,
    connect,
    task,
)
from jobledger.ledger.model.clock import Clock
from jobledger.ledger.model.commands import CancelJob, Claim, Pause
from jobledger.ledger.model.events import Queued
from jobledger.ledger.model.lifecycle import due_at
from jobledger.ledger.nats import api
from jobledger.ledger.outcome import SNOOZE_S_MIN
from jobledger.ledger.timer_upkeep import timers_status

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer
from tests.support.timing import (
    LIMIT_S,
    add,
    has_been_queued,
    in_stream,
    is_queued,
    lateness,
    measured_slack,
    reacting,
    until,
    until_grown,
)
from tests.support.working import types

pytestmark = pytest.mark.anyio
LATE_S_MAX = 0.1
APPS = Path(__file__).parent / "apps"


async def test_200_delayed_jobs_are_never_early_and_99_of_100_within_a_tenth_of_a_second(
    ledger: Ledger,
) -> None:
    # From half a second to four: some are held by the worker that sees them first, others fire from the stream.
    async with reacting(ledger), measured_slack(ledger) as slack:
        begin = datetime.now(UTC) + timedelta(seconds=0.3)
        for number in range(200):
            soonest = datetime.now(UTC) + timedelta(seconds=0.9)  # where enqueueing itself is slow
            run_at = max(soonest, begin + timedelta(seconds=number * 0.017))
            await ledger.enqueue(add.options(run_at=run_at), number)

        async def all_dispatched() -> bool:
            return (await ledger.log.head()).last_sequence == 400

        await until(all_dispatched)
    late = await lateness(ledger)
    assert len(late) == 200
    assert late[197] < LATE_S_MAX + slack.usual_s, (late[-5:], slack.usual_s)


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.3, 1.4])
async def test_a_delayed_job_runs_when_its_time_has_come(ledger: Ledger, delay_s: float) -> None:
    async with working(ledger, add):
        began = time.monotonic()
        job = await ledger.enqueue(add.options(delay_s=delay_s), 1)
        assert await job.result(timeout_s=LIMIT_S) == 2
        assert time.monotonic() - began >= delay_s
        first = ["scheduled", "queued"] if delay_s else ["queued"]
        assert await types(job) == [*first, "started", "completed"]

        async def settled() -> bool:
            return await in_stream(ledger) == 0

        await until(settled)  # nothing is left of its timer


async def test_a_timer_that_was_handed_to_a_process_that_stands_still_is_hardly_late_elsewhere(
    ledger: Ledger, nats_server: EmbeddedServer
) -> None:
    """Whoever gets it then has heard nothing of the server's clock: what is delivered again was stamped long ago."""
    async with reacting(ledger):
        before = await ledger.enqueue(add.options(delay_s=0.1), 1)
        await until(partial(has_been_queued, before))
    job = await ledger.enqueue(add.options(delay_s=0.2), 1)
    consumers = await api.consumers(ledger.inbox, ledger.names.ledger_stream)
    (setter,) = [each.name for each in consumers if each.name.startswith("timers_")]
    stranger = await nats.connect(nats_server.url)
    try:
        pulling = await stranger.jetstream().pull_subscribe_bind(setter, ledger.names.ledger_stream)
        assert await pulling.fetch(1, timeout=LIMIT_S)
    finally:
        await stranger.close()
    async with reacting(ledger):
        await until(partial(has_been_queued, job))
    assert (await lateness(ledger))[-1] < 3.0


async def test_a_moment_that_is_past_means_at_once(ledger: Ledger) -> None:
    job = await ledger.enqueue(add.options(run_at=datetime(2020, 1, 1, tzinfo=UTC)), 1)
    assert await types(job) == ["queued"]


async def test_a_timer_outlives_a_killed_server(server_factory: Callable[..., EmbeddedServer]) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, ledger_bytes_max=32 << 20) as ledger, reacting(ledger):
        job = await ledger.enqueue(add.options(delay_s=4.0), 1)
        soon = await ledger.enqueue(add.options(delay_s=0.9), 1)  # held in the worker's memory

        async def is_set() -> bool:
            return await in_stream(ledger) == 1

        await until(is_set)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.stop()
        await server.start()
        await until(lambda: is_queued(soon))
        await until(lambda: is_queued(job))
        assert len(await lateness(ledger)) == 2


async def test_what_became_due_while_nobody_listened_is_dispatched_by_the_next_worker(
    connected: Connect,
) -> None:
    async with connected() as ledger:
        async with reacting(ledger):
            job = await ledger.enqueue(add.options(delay_s=3.0), 1)

            async def is_set() -> bool:
                return await in_stream(ledger) == 1

            await until(is_set)
        due_at = (await job.snapshot()).due_at
        assert due_at is not None
        never_set = await ledger.enqueue(add.options(delay_s=0.2), 1)

        async def has_fired() -> bool:
            return (await timers_status(ledger)).fired == 1

        await until(has_fired)
        # Until the moment itself is past: a timer fires half a second before it.
        await asyncio.sleep(max(0.0, (due_at - datetime.now(UTC)).total_seconds() + 0.1))
        assert await types(job) == ["scheduled"]
    async with connected() as ledger, working(ledger, add):
        for each in (job, never_set):
            found = await ledger.job(each.id)
            assert await found.result(timeout_s=LIMIT_S) == 2
            assert await types(found) == ["scheduled", "queued", "started", "completed"]


async def test_a_job_cancelled_meanwhile_stays_cancelled(ledger: Ledger) -> None:
    async with reacting(ledger):
        far = await ledger.enqueue(add.options(delay_s=2.0), 1)
        after = await ledger.enqueue(add.options(delay_s=2.2), 1)
        near = await ledger.enqueue(add.options(delay_s=0.9), 1)  # held in memory
        for job in (near, far):
            await ledger.execute(job.ref, CancelJob(reason="not needed"))
        await until(lambda: is_queued(after))

        async def settled() -> bool:
            return await in_stream(ledger) == 0

        await until(settled)
        assert [await types(job) for job in (far, near)] == [["scheduled", "cancelled"]] * 2


ATTEMPTS: Counter[str] = Counter()


@task(max_attempts=3)
async def comes_back(context: Context, how: str, delay_s: float) -> str:
    ATTEMPTS[context.job_id] += 1
    if ATTEMPTS[context.job_id] > 1:
        return how
    return Retry(delay_s, "not yet", "high") if how == "retry" else Snooze(delay_s)  # type: ignore[return-value] # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("how", "delay_s", "cause", "left"),
    [
        ("retry", 1.2, "retried", 1),
        ("snooze", 1.2, "due", 2),
        ("snooze", 0.0, "due", 2),  # what costs no attempt has to cost time
    ],
)
async def test_a_job_that_comes_back_waits_in_the_ledger(
    ledger: Ledger, how: str, delay_s: float, cause: str, left: int
) -> None:
    async with working(ledger, comes_back), measured_slack(ledger) as slack:
        job = await ledger.enqueue(comes_back, how, delay_s)
        assert await job.result(timeout_s=LIMIT_S) == how
    history = await job.history()
    waits, queued = history[2], history[3]
    assert await types(job) == [
        "queued",
        "started",
        "failed" if how == "retry" else "snoozed",
        "queued",
        "started",
        "completed",
    ]
    assert isinstance(queued.event, Queued)
    assert (queued.event.cause, queued.event.priority) == (cause, "high" if how == "retry" else "normal")
    due = due_at(waits.event)
    assert due is not None
    # The moment is chosen when the task returns, a little before its failure is stamped.
    chosen_s = (due - waits.event.at).total_seconds()
    assert max(delay_s, SNOOZE_S_MIN) - LATE_S_MAX - slack.worst_s < chosen_s <= max(delay_s, SNOOZE_S_MIN)
    late_s = (queued.event.at - due).total_seconds()
    assert 0.0 <= late_s < 2 * LATE_S_MAX + slack.worst_s
    assert (await job.snapshot()).attempts_left == left


async def test_a_paused_job_goes_on_at_its_time(ledger: Ledger) -> None:
    async with reacting(ledger):
        job = await ledger.enqueue(add, 1)
        epoch = (await ledger.execute(job.ref, Claim(worker="w", lease_s=15.0))).claim_epoch
        until_then = datetime.now(UTC) + timedelta(seconds=1.3)
        await ledger.execute(job.ref, Pause(epoch=epoch, until=until_then))
        await until(lambda: is_queued(job))
        queued = (await job.history())[-1].event
        assert isinstance(queued, Queued)
        assert queued.cause == "due"
        assert queued.at >= until_then


async def test_5000_due_at_one_moment_are_all_dispatched_once(ledger: Ledger) -> None:
    began = time.monotonic()
    await ledger.enqueue_many(add.options(queue="before"), ({"n": n} for n in range(500)))
    # All of them are to be there before the moment: they take ten times as long, and reacting to them costs, too.
    soonest_s = max(4.0, 40 * (time.monotonic() - began))

    async def appended() -> int:
        return (await ledger.log.head()).last_sequence

    async def settled() -> bool:
        return await in_stream(ledger) == 0

    before, ahead_s = 0, soonest_s
    async with reacting(ledger):
        for ahead_s in (soonest_s, 3 * soonest_s, 9 * soonest_s):
            before, run_at = await appended(), datetime.now(UTC) + timedelta(seconds=ahead_s)
            await ledger.enqueue_many(add.options(run_at=run_at), ({"n": n} for n in range(5_000)))
            if datetime.now(UTC) < run_at:
                break
            # The machine has become slower, and the last of them were due at once: once more, further ahead.
            await until(settled, ahead_s + LIMIT_S)
        # Nothing is appended before the moment.
        await until_grown(appended, before + 10_000, ahead_s + LIMIT_S)
        await until(settled)
    assert await appended() == before + 10_000
    assert len(await lateness(ledger)) >= 5_000


async def test_worker_processes_share_the_work_and_a_killed_one_leaves_it_to_the_other(
    ledger: Ledger, nats_server: EmbeddedServer, environment: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(APPS / "run_worker.py"), nats_server.url, environment, "{}"]
    processes = [
        await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE) for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), LIMIT_S) == b"ready\n"
        # In a queue that they do not serve: reactors look after all of them.
        first: list[JobHandle[int]] = []
        by: set[int] = set()
        for _ in range(10):  # one that the machine lets wait for a moment leaves a round to the other
            some = [await ledger.enqueue(add.options(queue="other", delay_s=0.8), n) for n in range(60)]
            for job in some:
                await until(partial(has_been_queued, job))
                by.add(int((await job.history())[1].event.by.split("-")[-2]))
            first += some
            if len(by) > 1:
                break
        assert by == {process.pid for process in processes}
        second = [await ledger.enqueue(add.options(queue="other", delay_s=2.5), n) for n in range(20)]

        async def all_heard() -> bool:
            return (await timers_status(ledger)).unset_events == 0

        await until(all_heard)  # else the killed one's are handed out again after its ack wait only
        processes[0].kill()
        for job in second:
            await until(partial(has_been_queued, job))
        for job in [*first, *second]:
            assert (await types(job)).count("queued") == 1
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class _Skewed:
    """A machine's clock that is off by `offset_s` seconds."""

    def __init__(self, offset_s: float) -> None:
        self._offset = timedelta(seconds=offset_s)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._offset

    def monotonic(self) -> float:
        return time.monotonic()


@pytest.mark.parametrize("offset_s", [-2.0, 2.0])
async def test_a_worker_whose_clock_is_off_is_late_by_that_but_early_by_no_clock(
    connected: Connect, caplog: pytest.LogCaptureFixture, offset_s: float
) -> None:
    clock: Clock = _Skewed(offset_s)
    async with (
        connected() as ledger,
        connected_with(connected, clock) as off,
        reacting(off),
        measured_slack(ledger) as slack,
    ):
        far = await ledger.enqueue(add.options(delay_s=1.5), 1)
        near = await ledger.enqueue(add.options(delay_s=0.4), 1)
        with caplog.at_level(logging.WARNING, logger="jobledger.workers.reactors.timers"):
            for job in (near, far):
                await until(partial(is_queued, job))
        late = await lateness(ledger)
        assert late[-1] < 2.0 + 4 * LATE_S_MAX + slack.worst_s
        assert ("are the clocks in step" in caplog.text) == (offset_s < 0)


def connected_with(connected: Connect, clock: Clock) -> AbstractAsyncContextManager[Ledger]:
    return connected(clock=clock)
