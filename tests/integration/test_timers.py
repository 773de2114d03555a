"""Timers on a real server: never early, hardly late, and none lost, whatever happens between setting and firing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobledger.ledger import (
    Context,
    JobHandle,
    JobState,
    Ledger,
    Retry,
    Snooze,
    Task,
    TaskRegistry,
    connect,
    task,
)
from jobledger.ledger.clock import Clock
from jobledger.ledger.commands import CancelJob, Claim, Complete, Dispatch, Pause
from jobledger.ledger.commands import Snooze as SnoozeJob
from jobledger.ledger.errors import IllegalTransitionError
from jobledger.ledger.events import Queued, Scheduled
from jobledger.ledger.outcome import SNOOZE_S_MIN
from jobledger.ledger.streams import api
from jobledger.ledger.timer_upkeep import rebuild_timers, timers_status
from jobledger.ledger.timers import DUE_CONSUMER, Timer, Timers
from jobledger.workers import Worker, WorkerConfig, reactors
from jobledger.workers import timers as workers_timers
from jobledger.workers.hosting import start_reactors
from jobledger.workers.reactors import host

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = pytest.mark.anyio

Connect = Callable[..., AbstractAsyncContextManager[Ledger]]
LIMIT_S = 10.0
LATE_S_MAX = 0.1
APPS = Path(__file__).parent / "apps"


@pytest.fixture
def environment() -> str:
    return f"t_{secrets.token_hex(6)}"


@pytest.fixture
def connected(nats_server: EmbeddedServer, environment: str) -> Connect:
    def make(**settings: Any) -> AbstractAsyncContextManager[Ledger]:
        given: dict[str, Any] = {"ledger_bytes_max": 32 << 20, "lease_s": 2.0, **settings}
        return connect(nats_server.url, environment=environment, **given)

    return make


@pytest.fixture
async def ledger(connected: Connect) -> AsyncIterator[Ledger]:
    async with connected() as made:
        yield made


@contextlib.asynccontextmanager
async def working(ledger: Ledger, *tasks: Task[..., Any], **config: Any) -> AsyncGenerator[Worker, None]:
    settings: dict[str, Any] = {"grace_s": 2.0, **config}
    worker = Worker(ledger, TaskRegistry(tasks), WorkerConfig(**settings))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(LIMIT_S):
            await running


@contextlib.asynccontextmanager
async def reacting(ledger: Ledger) -> AsyncGenerator[None, None]:
    """Only the reactors: what they dispatch stays queued."""
    hosted = start_reactors(ledger)
    try:
        yield
    finally:
        for each in hosted:
            each.cancel()
        await asyncio.gather(*hosted, return_exceptions=True)


async def until(holds: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    """Wait until an async question is answered with yes."""
    async with asyncio.timeout(limit_s):
        while not await holds():
            await asyncio.sleep(0.01)


async def types(job: JobHandle[Any]) -> list[str]:
    return [msgspec.json.decode(stored.data)["type"] for stored in await job.history()]


async def state(job: JobHandle[Any]) -> JobState:
    return (await job.snapshot()).state


async def is_queued(job: JobHandle[Any]) -> bool:
    return await state(job) is JobState.QUEUED


async def in_stream(ledger: Ledger) -> int:
    info = await api(ledger.inbox, f"STREAM.INFO.{ledger.names.timers_stream}", {})
    return int(info["state"]["messages"]) if "error" not in info else 0


def timers_of(ledger: Ledger) -> Timers:
    return Timers(ledger.connection, ledger.inbox, ledger.names, ledger.config)


async def lateness(ledger: Ledger) -> list[float]:
    """Return how late each delayed job was dispatched, sorted; assert that none was early by either clock."""
    due: dict[str, datetime] = {}
    late: list[float] = []
    async for stored in ledger.events(follow=False):
        event = stored.event
        if isinstance(event, Scheduled):
            due[event.job] = event.run_at
        elif isinstance(event, Queued) and event.job in due:
            assert event.at >= due[event.job], f"{event.job} was early by its worker's clock"
            assert stored.stored_at >= due[event.job], f"{event.job} was early by the server's clock"
            late.append((stored.stored_at - due[event.job]).total_seconds())
    return sorted(late)


@task
async def add(n: int) -> int:
    return n + 1


async def test_200_delayed_jobs_are_never_early_and_99_of_100_within_a_tenth_of_a_second(
    ledger: Ledger,
) -> None:
    # From half a second to five: some are held by the worker that sees them first, others fire from the stream.
    async with reacting(ledger):
        begin = datetime.now(UTC) + timedelta(seconds=0.3)
        for number in range(200):
            run_at = begin + timedelta(seconds=number * 0.017)
            await ledger.enqueue(add.options(run_at=run_at), number)

        async def all_dispatched() -> bool:
            return (await ledger.log.head()).last_sequence == 400

        await until(all_dispatched)
    late = await lateness(ledger)
    assert len(late) == 200
    assert late[197] < LATE_S_MAX, late[-5:]


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


async def test_a_moment_that_is_past_means_at_once(ledger: Ledger) -> None:
    job = await ledger.enqueue(add.options(run_at=datetime(2020, 1, 1, tzinfo=UTC)), 1)
    assert await types(job) == ["queued"]


async def test_a_timer_outlives_a_killed_server(server_factory: Callable[..., EmbeddedServer]) -> None:
    server = server_factory()
    await server.start()
    async with connect(server.url, ledger_bytes_max=32 << 20) as ledger, reacting(ledger):
        job = await ledger.enqueue(add.options(delay_s=2.0), 1)
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
            job = await ledger.enqueue(add.options(delay_s=1.2), 1)

            async def is_set() -> bool:
                return await in_stream(ledger) == 1

            await until(is_set)
        never_set = await ledger.enqueue(add.options(delay_s=0.2), 1)

        async def has_fired() -> bool:
            return (await timers_status(ledger)).fired == 1

        await until(has_fired)
        await asyncio.sleep(0.6)  # until the moment itself is past: a timer fires half a second before it
        assert await types(job) == ["scheduled"]
    async with connected() as ledger, working(ledger, add):
        for each in (job, never_set):
            found = await ledger.job(each.id)
            assert await found.result(timeout_s=LIMIT_S) == 2
            assert await types(found) == ["scheduled", "queued", "started", "completed"]


async def test_a_job_cancelled_meanwhile_stays_cancelled(ledger: Ledger) -> None:
    async with reacting(ledger):
        far = await ledger.enqueue(add.options(delay_s=1.3), 1)
        near = await ledger.enqueue(add.options(delay_s=0.3), 1)
        after = await ledger.enqueue(add.options(delay_s=1.5), 1)
        for job in (far, near):
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
    async with working(ledger, comes_back):
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
    waited_s = max(delay_s, SNOOZE_S_MIN)
    assert waited_s <= (queued.event.at - waits.event.at).total_seconds() < waited_s + 2 * LATE_S_MAX
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


async def test_an_older_timer_does_not_end_a_newer_wait(ledger: Ledger) -> None:
    async with reacting(ledger):
        job = await ledger.enqueue(add.options(delay_s=30), 1)
        waiting = await job.snapshot()
        # Somebody could not wait, and then the task snoozed: another wait, which only its own timer may end.
        await ledger.execute(job.ref, Dispatch(cause="due"))
        epoch = (await ledger.execute(job.ref, Claim(worker="w", lease_s=15.0))).claim_epoch
        await ledger.execute(
            job.ref, SnoozeJob(epoch=epoch, until=datetime.now(UTC) + timedelta(seconds=1.4))
        )
        old = Timer(
            queue=job.ref.queue,
            job_id=job.id,
            asked_by=waiting.wait_sequence,
            cause="due",
            due_at=datetime.now(UTC),
        )
        await timers_of(ledger).set(old, ledger.clock.now())

        async def only_the_new_one_is_left() -> bool:
            return await in_stream(ledger) == 1

        await until(only_the_new_one_is_left)
        assert await types(job) == ["scheduled", "queued", "started", "snoozed"]
        await until(lambda: is_queued(job))


async def test_a_timer_that_is_set_and_heard_several_times_dispatches_once(ledger: Ledger) -> None:
    job = await ledger.enqueue(add.options(delay_s=1.0), 1)
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
    monkeypatch.setattr(workers_timers, "_LAGGING_DELIVERIES_MAX", 2)
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


async def test_what_asks_for_no_timer_is_done_with_and_what_cannot_be_read_keeps_nobody_waiting(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    root = ledger.names.ledger_root
    await ledger.connection.publish(f"{root}.job.q.broken.failed", b"not an event")
    async with working(ledger, add, fails):
        for _ in range(5):
            await (await ledger.enqueue(fails)).wait(timeout_s=LIMIT_S)
        job = await ledger.enqueue(add.options(delay_s=1.2), 1)
        await until(partial(has_been_queued, job))

        async def only_the_broken_one_is_left() -> bool:
            return (await timers_status(ledger)).unset_events == 1

        await until(only_the_broken_one_is_left)
    assert "the message at stream sequence 1 is not an event of this ledger" in caplog.text


async def delete_timers(ledger: Ledger) -> None:
    deleted = await api(ledger.inbox, f"STREAM.DELETE.{ledger.names.timers_stream}", {})
    assert deleted.get("success"), deleted


async def consumers(ledger: Ledger) -> list[str]:
    answer = await api(ledger.inbox, f"CONSUMER.NAMES.{ledger.names.ledger_stream}", {})
    return [name for name in answer["consumers"] if name.startswith("timers_")]


async def test_live_workers_make_a_deleted_stream_anew_from_the_ledger(connected: Connect) -> None:
    async with connected() as ledger, connected() as other, reacting(ledger), reacting(other):
        jobs = [await ledger.enqueue(add.options(delay_s=3.0 + n / 50), n) for n in range(25)]
        gone = await ledger.enqueue(add.options(delay_s=3.0), 99)

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
        assert late[-1] < 1.0


async def test_the_command_sets_the_timers_of_what_still_waits(ledger: Ledger) -> None:
    kept = [await ledger.enqueue(add.options(delay_s=2.5), n) for n in range(10)]
    cancelled = [await ledger.enqueue(add.options(delay_s=2.5), n) for n in range(5)]
    for job in cancelled:
        await ledger.execute(job.ref, CancelJob())
    snoozed = await ledger.enqueue(add, 1)
    epoch = (await ledger.execute(snoozed.ref, Claim(worker="w", lease_s=15.0))).claim_epoch
    await ledger.execute(
        snoozed.ref, SnoozeJob(epoch=epoch, until=datetime.now(UTC) + timedelta(seconds=2.5))
    )
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


async def test_5000_due_at_one_moment_are_all_dispatched_once(ledger: Ledger) -> None:
    async with reacting(ledger):
        run_at = datetime.now(UTC) + timedelta(seconds=4.0)
        await ledger.enqueue_many(add.options(run_at=run_at), ({"n": n} for n in range(5_000)))

        async def all_dispatched() -> bool:
            return (await ledger.log.head()).last_sequence == 10_000

        await until(all_dispatched, 15.0)

        async def settled() -> bool:
            return await in_stream(ledger) == 0

        await until(settled)
    assert (await ledger.log.head()).last_sequence == 10_000
    assert len(await lateness(ledger)) == 5_000


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
        first = [await ledger.enqueue(add.options(queue="other", delay_s=0.8), n) for n in range(60)]
        second = [await ledger.enqueue(add.options(queue="other", delay_s=1.9), n) for n in range(20)]
        for job in first:
            await until(partial(has_been_queued, job))
        by = {int((await job.history())[1].event.by.split("-")[-2]) for job in first}
        assert by == {process.pid for process in processes}
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


async def has_been_queued(job: JobHandle[Any]) -> bool:
    return "queued" in await types(job)


class _Skewed:
    """A machine's clock that is off by so many seconds."""

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
    async with connected() as ledger, connected_with(connected, clock) as off, reacting(off):
        far = await ledger.enqueue(add.options(delay_s=1.5), 1)
        near = await ledger.enqueue(add.options(delay_s=0.4), 1)
        with caplog.at_level(logging.WARNING, logger="jobledger.workers.timers"):
            for job in (near, far):
                await until(partial(is_queued, job))
        late = await lateness(ledger)
        assert late[-1] < 2.0 + 4 * LATE_S_MAX
        assert ("are the clocks in step" in caplog.text) == (offset_s < 0)


def connected_with(connected: Connect, clock: Clock) -> AbstractAsyncContextManager[Ledger]:
    return connected(clock=clock)


async def test_a_reactor_that_fails_is_run_again_and_harms_nobody(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reactors, "_RESTART_S_FIRST", 0.01)
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
    assert "reactor broken failed: of no use" in caplog.text
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
