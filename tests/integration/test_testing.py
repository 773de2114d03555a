"""`jobledger.testing`: the ledger in memory, its time, contexts for unit tests, assertions, and the pytest plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from tests.support.limits import LIMIT_S

from jobledger.audit.verify import verify
from jobledger.ledger import (
    Backoff,
    Cancel,
    Context,
    JobFailedError,
    JobHandle,
    JobState,
    Ledger,
    Limit,
    Queue,
    Retry,
    Schedule,
    Skip,
    Snooze,
    Tick,
    task,
)
from jobledger.ledger.model.errors import (
    AttemptStoppedError,
    ConfigurationError,
    InvalidInputError,
    LockTimeoutError,
    ServerUnreachableError,
)
from jobledger.testing import BlockingMemoryLedger, MemoryLedger, MovableClock, memory
from jobledger.testing import assert_enqueued as assert_in
from jobledger.testing.plugin import ServerWorker

pytestmark = pytest.mark.anyio


@task(queue="mail", max_attempts=3, backoff=Backoff(kind="fixed", base_s=60, jitter=0))
async def flaky(context: Context, fails: int) -> int:
    if context.attempt <= fails:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task(queue="mail")
async def greet(name: str) -> str:
    return f"hello {name}"


@task(queue="mail")
def shout(name: str) -> str:
    return name.upper()


@task(queue="mail")
async def welcome_all(context: Context, names: list[str]) -> None:
    for name in names:
        await context.ledger.enqueue(greet, name)


class Order(BaseModel):
    lines: list[int]


def _at() -> MovableClock:
    return MovableClock(datetime(2025, 1, 31, 8, tzinfo=UTC))


async def test_what_is_queued_runs_with_its_results_and_a_sound_history() -> None:
    ledger = MemoryLedger()
    hello, loud = await ledger.enqueue(greet, "Ada"), await ledger.enqueue(shout, name="Ada")
    ran = await ledger.run_pending()
    assert [job.state for job in ran] == [JobState.COMPLETED] * 2
    assert (await hello.result(), await loud.result()) == ("hello Ada", "ADA")
    assert await ledger.run_pending() == []
    assert (await verify(ledger.log)).sound


async def test_a_retry_comes_when_its_time_comes() -> None:
    ledger = MemoryLedger(clock=_at())
    job = await ledger.enqueue(flaky, 2)
    assert [each.state for each in await ledger.run_pending()] == [JobState.RETRY_WAIT]
    assert (await job.snapshot()).due_at == ledger.clock.now() + timedelta(seconds=60)
    assert await ledger.advance(59) == []
    assert [each.state for each in await ledger.advance(1)] == [JobState.RETRY_WAIT]
    assert [each.state for each in await ledger.advance(timedelta(minutes=1))] == [JobState.COMPLETED]
    assert await job.result() == 3
    assert (await verify(ledger.log)).sound


async def test_attempts_that_are_used_up_leave_a_dead_letter_that_can_be_requeued() -> None:
    ledger = MemoryLedger(clock=_at())
    job = await ledger.enqueue(flaky, 99)
    for _ in range(3):
        await ledger.advance(60)
    with pytest.raises(JobFailedError, match="attempt 3"):
        await job.result()
    await ledger.requeue(job, edit={"fails": 0})
    await ledger.run_pending()
    assert await job.result() == 4


async def test_delays_priorities_and_outcomes_are_those_of_a_worker() -> None:
    order: list[str] = []

    @task(queue="q", max_attempts=2)
    async def note(name: str) -> Any:
        order.append(name)
        later: Any = {"snooze": Snooze(delay_s=5), "stop": Cancel("enough"), "retry": Retry(delay_s=5)}
        return later.get(name) if order.count(name) == 1 else name

    ledger = MemoryLedger(clock=_at())
    await ledger.enqueue(note.options(delay_s=10), "late")
    await ledger.enqueue(note.options(priority="low"), "low")
    await ledger.enqueue(note.options(priority="high"), "high")
    for name in ("snooze", "stop", "retry"):
        await ledger.enqueue(note, name)
    states = [job.state.value for job in await ledger.run_pending()]
    assert order == ["high", "snooze", "stop", "retry", "low"]
    assert states == ["completed", "retry_wait", "cancelled", "retry_wait", "completed"]
    await ledger.advance(10)
    assert sorted(order[5:]) == ["late", "retry", "snooze"]


async def test_jobs_that_jobs_make_run_too_once_and_endless_ones_are_told() -> None:
    ledger = MemoryLedger()
    parent = await ledger.enqueue(welcome_all, ["Ada", "Grace"])
    assert len(await ledger.run_pending()) == 3
    children = await assert_in(ledger, greet, count=2)
    assert [await child.result() for child in children] == ["hello Ada", "hello Grace"]
    assert {child.id for child in children} == {f"{parent.id}-greet-1", f"{parent.id}-greet-2"}

    @task(queue="q")
    async def again(context: Context) -> None:
        await context.ledger.enqueue(again)

    await ledger.enqueue(again)
    with pytest.raises(ConfigurationError, match="do tasks enqueue each other for ever"):
        await ledger.run_pending(jobs_max=20)


async def test_a_running_job_is_cancelled_as_by_a_worker() -> None:
    begun = anyio.Event()

    @task(queue="q")
    async def waits() -> None:
        begun.set()
        await anyio.sleep_forever()

    ledger = MemoryLedger()
    job = await ledger.enqueue(waits)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(ledger.run_pending)
            await begun.wait()
            await job.cancel(reason="never mind")
            assert (await job.wait(timeout_s=LIMIT_S)).state is JobState.CANCELLED


async def test_large_values_locks_events_and_bulk_are_there() -> None:
    ledger = MemoryLedger()
    text = "x" * 100_000
    job = await ledger.enqueue(shout, text)
    await ledger.run_pending()
    assert await job.result() == text.upper()
    async with ledger.lock("account", "1") as held:
        assert held.fencing_number > 0
    made = await ledger.enqueue_many(greet, [{"name": str(number)} for number in range(5)])
    assert made.created == 5
    ends = [stored async for stored in ledger.events(follow=False, types=["completed"])]
    assert len(ends) == 1


async def test_what_needs_a_server_says_so() -> None:
    ledger = MemoryLedger()
    with pytest.raises(ConfigurationError, match="server_ledger"):
        ledger.events(durable="billing")
    with pytest.raises(ConfigurationError, match="server_ledger"):
        await ledger.subscriptions()


async def test_the_clock_stands_still_and_goes_forward_alone() -> None:
    clock = _at()
    assert clock.now() == clock.now() == datetime(2025, 1, 31, 8, tzinfo=UTC)
    assert clock.advance(1.5) == datetime(2025, 1, 31, 8, 0, 1, 500_000, tzinfo=UTC)
    for wrong in (clock.now() - timedelta(seconds=1), datetime(2030, 1, 1)):  # noqa: DTZ001 - that is what is wrong
        with pytest.raises(InvalidInputError):
            clock.move_to(wrong)


async def test_a_context_for_a_unit_test_keeps_what_the_task_says() -> None:
    @task(queue="q")
    async def resumes(context: Context, rows: int) -> int:
        begin = context.checkpoint_value or 0
        for row in range(begin, rows):
            context.progress(row + 1, rows, "row")
            await context.checkpoint(row + 1)
        return begin

    context = Context.for_test(checkpoint=1, attempt=2)
    assert await resumes(context, 3) == 1
    assert [report.done for report in context.channel.reports] == [2, 3]
    assert context.channel.checkpoints == [2, 3]
    context.channel.stop_reason = "the worker stops"
    with pytest.raises(AttemptStoppedError):
        context.heartbeat()
    with pytest.raises(InvalidInputError, match="cannot"):
        await context.checkpoint(object())
    with pytest.raises(InvalidInputError, match="has no ledger: give one"):
        _ = Context.for_test().ledger
    ledger = MemoryLedger()
    await welcome_all(Context.for_test(ledger=ledger), ["Ada"])
    await assert_in(ledger, greet, name="Ada")


async def test_a_failed_assertion_lists_the_jobs_that_there_are() -> None:
    ledger = MemoryLedger()
    await ledger.enqueue(greet, "Ada")
    await assert_in(ledger, "greet", name="Ada")
    await assert_in(ledger, shout, count=0)
    with pytest.raises(
        AssertionError, match=r'0 jobs of task greet with \{"name":"Grace"\}.*\n  greet \{"name":"Ada"\}'
    ):
        await assert_in(ledger, greet, name="Grace")
    with pytest.raises(AssertionError, match="1 jobs of task greet were enqueued, not 2"):
        await assert_in(ledger, greet, count=2)


SUITE = """
import pytest
from jobledger.ledger import Context, task

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"

@task(queue="mail")
async def greet(name: str) -> str:
    return f"hello {name}"

async def test_in_memory(ledger, worker, assert_enqueued):
    job = await ledger.enqueue(greet.options(delay_s=60), "Ada")
    await assert_enqueued(greet, name="Ada")
    assert await worker.run_pending() == []
    await worker.advance(60)
    assert await job.result() == "hello Ada"

async def test_on_a_server(server_ledger, server_worker, assert_enqueued):
    job = await server_ledger.enqueue(greet, "Ada")
    await server_worker.run_pending(greet)
    await assert_enqueued(greet, name="Ada")
    assert await job.result(timeout_s=5) == "hello Ada"

async def test_an_empty_ledger_for_each(server_ledger, assert_enqueued):
    await assert_enqueued(greet, count=0)
"""


async def test_the_plugin_gives_its_fixtures_to_any_suite(tmp_path: Path, nats_server_binary: str) -> None:
    assert nats_server_binary
    (tmp_path / "test_mine.py").write_text(SUITE, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    # Its folders in its own place: at its end pytest removes those of earlier runs, which may be gigabytes.
    options = ["-q", "-p", "no:cacheprovider", "--basetemp=kept"]
    ran = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-m", "pytest", *options, str(tmp_path)],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    )
    assert (ran.returncode, "3 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr


async def test_the_plugin_imports_no_library_and_of_the_product_only_errors(tmp_path: Path) -> None:
    program = "import sys, jobledger.testing.plugin\nprint(*(n for n in sys.modules if n.startswith('jobledger.ledger.') or n == 'msgspec'))"
    ran = subprocess.run(  # noqa: ASYNC221 - short
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    modules = {name.removeprefix("jobledger.ledger.") for name in ran.stdout.split()}
    assert modules <= {
        "on_demand",
        "loader.on_demand",
        "model",
        "model.errors",
        "model.graphs",
        "model.graphs.errors",
        "model.hooks",
        "model.hooks.errors",
    }


async def test_the_same_verbs_as_on_a_server(ledger: Ledger) -> None:
    """Every public verb of a connected ledger is one of a ledger in memory, and none is hidden by an attribute."""
    public = {name for name in dir(ledger) if not name.startswith("_")}
    assert public - set(dir(MemoryLedger())) == set()


async def test_a_lock_that_is_held_excludes_others() -> None:
    ledger = MemoryLedger()
    with anyio.fail_after(LIMIT_S):
        async with ledger.lock("account", "1"), anyio.create_task_group() as group:

            async def other() -> None:
                with pytest.raises(LockTimeoutError):
                    async with ledger.lock("account", "1", wait_s=0):
                        pass

            group.start_soon(other)


async def test_arguments_of_every_type_that_a_task_takes_can_be_asserted() -> None:
    @task(queue="q")
    async def ship(order: Order, to: Path, at: datetime) -> None: ...

    ledger, at = MemoryLedger(), datetime(2025, 1, 31, tzinfo=UTC)
    await ledger.enqueue(ship, Order(lines=[1]), Path("/out"), at)
    await assert_in(ledger, ship, order=Order(lines=[1]), to=Path("/out"), at=at)
    await assert_in(ledger, ship, count=0, to=Path("/elsewhere"))


async def test_a_blocking_task_cannot_wait_for_the_loop_that_calls_it() -> None:
    refused: list[str] = []

    @task(queue="q")
    def parent(context: Context) -> None:
        blocking = context.sync_ledger

        def on_progress(_count: int) -> None:
            try:
                blocking.enqueue(greet, "Ada")
            except InvalidInputError as error:
                refused.append(str(error))

        blocking.enqueue_many(greet, [{"name": "Grace"}], on_progress=on_progress)

    ledger = MemoryLedger()
    await ledger.enqueue(parent)
    with anyio.fail_after(LIMIT_S):
        states = [job.state for job in await ledger.run_pending()]
    assert set(states) == {JobState.COMPLETED}
    assert refused


async def test_a_server_that_does_not_answer_is_told_by_run_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle:
        def __init__(self, *_: object) -> None:
            self._stopped = anyio.Event()

        async def run(self) -> None:
            await self._stopped.wait()

        def stop(self) -> None:
            self._stopped.set()

    async def away(*_: object) -> None:
        raise ServerUnreachableError("no answer")

    monkeypatch.setattr("jobledger.workers.Worker", Idle)
    monkeypatch.setattr("jobledger.workers.idle.until_idle", away)
    with pytest.raises(ServerUnreachableError):
        await ServerWorker(MemoryLedger()).run_pending(greet)


async def test_rates_modes_and_fair_queues_are_kept_in_memory_and_proven() -> None:
    api = Limit("api", rate=1, per_s=60, burst=2)

    @task(queue="api", limits=(api,))
    async def call(n: int) -> int:
        return n

    @task(queue="new", limits=(Limit("only", rate=1, per_s=60, mode="newest"), "undefined"))
    async def newest(n: int) -> int:
        return n

    @task(queue=Queue("fair", fair="who"))
    async def turn(who: str) -> None: ...

    ledger = MemoryLedger()
    calls = [await ledger.enqueue(call, n) for n in range(5)]
    assert [job.id for job in await ledger.run_pending()] == [job.id for job in calls[:2]]
    assert await ledger.advance(59) == []
    assert [job.id for job in await ledger.advance(1)] == [calls[2].id]
    await ledger.pause_queue("api")
    assert await ledger.advance(60) == []
    await ledger.resume_queue("api")
    assert [job.id for job in await ledger.run_pending()] == [calls[3].id]
    assert [job.id for job in await ledger.advance(600)] == [calls[4].id]

    news = [await ledger.enqueue(newest, n) for n in range(3)]
    assert [job.id for job in await ledger.run_pending()] == [news[2].id]
    assert (await news[0].snapshot()).state is JobState.CANCELLED

    turns = [await ledger.enqueue(turn, who) for who in "aaab"]
    order = [job.id for job in await ledger.run_pending()]
    assert order[:2] == [turns[0].id, turns[3].id]
    report = await verify(ledger.log)
    assert report.sound, report.text()
    assert "rate" in report.proven


async def test_schedules_tick_in_memory_as_the_test_moves_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    @task(queue="cron")
    async def night(n: int) -> int:
        return n

    ledger = MemoryLedger(clock=MovableClock(datetime(2026, 1, 1, tzinfo=UTC)))
    await ledger.schedules.add("nightly", night, input={"n": 5}, cron="30 2 * * *")
    assert await ledger.run_pending() == []
    ran = await ledger.advance(timedelta(days=2))
    assert [job.id for job in ran] == ["nightly-20260101T023000Z", "nightly-20260102T023000Z"]
    ledger.clock.advance(timedelta(days=3))  # no worker ran
    assert [job.id for job in await ledger.run_pending()] == ["nightly-20260105T023000Z"]
    await ledger.schedules.pause("nightly")
    assert await ledger.advance(timedelta(days=3)) == []
    await ledger.schedules.add("often", night, input={"n": 1}, every_s=1)
    monkeypatch.setattr(memory, "MOMENTS_MAX", 5)
    with pytest.raises(ConfigurationError, match="advance by less"):
        await ledger.advance(timedelta(hours=1))


async def test_schedules_in_code_tick_when_time_is_moved() -> None:
    told: list[str] = []

    async def before(tick: Tick) -> dict[str, Any] | Skip:
        return Skip("a holiday") if tick.at.day == 2 else {"day": f"{tick.at:%m-%d}"}

    def after(tick: Tick, job: JobHandle[Any]) -> None:
        told.append(job.id)

    @task(queue="mail", schedule=Schedule(cron="0 6 * * *"))
    async def remind() -> str:
        return "reminded"

    @task(queue="mail")
    async def report(day: str = "") -> str:
        return day

    nightly = Schedule("nightly", task=report, cron="0 2 * * *", before=before, after=after)
    ledger = MemoryLedger(remind, nightly, clock=MovableClock(datetime(2026, 1, 1, tzinfo=UTC)))
    jobs = await ledger.advance(timedelta(days=3))
    assert [job.id for job in jobs if job.task == "remind"] == [
        f"remind-2026010{day}T060000Z" for day in (1, 2, 3)
    ]
    made = [job.id for job in jobs if job.task == "report"]
    assert made == told == [f"nightly-2026010{day}T020000Z" for day in (1, 3)]
    assert await (await ledger.job(made[1])).result(timeout_s=LIMIT_S) == "01-03"
    assert (await verify(ledger.log)).sound


async def test_a_task_that_is_enqueued_brings_its_schedule() -> None:
    @task(queue="mail", schedule=Schedule(every_s=3600))
    async def hourly() -> None: ...

    ledger = MemoryLedger()
    await ledger.enqueue(hourly)
    assert len(await ledger.run_pending()) == 1
    assert len(await ledger.advance(2 * 3600)) == 2


def test_blocking_code_has_a_ledger_in_memory(blocking_ledger: BlockingMemoryLedger) -> None:
    @task(queue="mail", schedule=Schedule(cron="0 6 * * *"))
    def double(number: int = 1) -> int:
        return 2 * number

    blocking_ledger.clock.move_to(datetime(2099, 1, 1, tzinfo=UTC))
    job = blocking_ledger.enqueue(double, 21)
    assert [each.id for each in blocking_ledger.run_pending()] == [job.id]
    assert job.result(timeout_s=LIMIT_S) == 42
    blocking_ledger.add(double)
    assert [each.id for each in blocking_ledger.advance(timedelta(days=2))] == [
        "double-20990101T060000Z",
        "double-20990102T060000Z",
    ]
