"""What a worker makes of tasks and their outcomes, and which work it takes in which order."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
import time
from datetime import datetime, timedelta, tzinfo
from typing import Any

import msgspec
import pytest
from tests.support.orders import enqueue_of
from tests.support.worker_tasks import BEGAN, RUNS, double, sleep
from tests.support.working import LIMIT_S, Connect, ended, types, until, working

from jobledger.ledger import (
    Backoff,
    Cancel,
    Context,
    JobHandle,
    JobState,
    Ledger,
    Retry,
    Task,
    task,
)
from jobledger.ledger.model.commands import CancelJob, Requeue
from jobledger.ledger.model.errors import JobFailedError
from jobledger.ledger.model.subjects import JobRef

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def forget_runs() -> None:
    RUNS.clear()
    BEGAN.clear()


# Tasks.


AT_ONCE = Backoff(base_s=0)
GATE = threading.Event()


@task
def double_in_thread(n: int) -> int:
    assert threading.current_thread() is not threading.main_thread()
    return 2 * n


@task
async def note(context: Context, name: str) -> None:
    RUNS[context.job_id] += 1
    BEGAN.append(name)


class BrokenTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class ForeignError(BaseException):
    pass


def recurse(depth: int) -> int:
    return recurse(depth + 1)


class Point(msgspec.Struct):
    x: int


class OddClock(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        raise KeyError("no such place")

    dst = utcoffset

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


async def cancelled_elsewhere() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(30))
    inner.cancel()
    await inner


def hostile(how: str) -> Any:
    """Return a value that fails with an error of its own where it is written."""
    if how == "odd clock":
        return datetime(2026, 1, 1, tzinfo=OddClock())
    unset = Point(1)
    del unset.x
    return unset


def misbehave(how: str) -> Any:  # noqa: C901, PLR0912, PLR0911 - a table of mischief
    match how:
        case "raise":
            raise ValueError("no such user")
        case "broken text":
            raise BrokenTextError
        case "huge text":
            raise ValueError("x" * 5_000_000)
        case "odd text":
            raise ValueError("\udcff \x00 \u2028")
        case "recursion":
            return recurse(0)
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "generator exit":
            raise GeneratorExit
        case "stop iteration":
            raise StopIteration(1)
        case "cancelled":
            raise asyncio.CancelledError
        case "foreign":
            raise ForeignError("not even an Exception")
        case "group":
            raise BaseExceptionGroup("several", [SystemExit(1), ValueError("one of them")])
        case "timeout error":
            raise TimeoutError("the remote was slow")
        case "object":
            return object()
        case "nan":
            return {"a": [math.nan]}
        case "surrogate":
            return "\udcff"
        case "deep":
            value: list[Any] = []
            for _ in range(5_000):
                value = [value]
            return value
        case "cycle":
            loop: list[Any] = []
            loop.append(loop)
            return loop
        case "broken raw":
            return msgspec.Raw(b'{"never": ')
        case "unset field" | "odd clock":
            return hostile(how)
        case "huge result":
            return "x" * (9 << 20)
        case _:
            raise AssertionError(how)


@task(max_attempts=1)
async def naughty(how: str) -> Any:
    if how == "cancelled elsewhere":
        await cancelled_elsewhere()
    return misbehave(how)


@task(max_attempts=1)
def naughty_in_thread(how: str) -> Any:
    return misbehave(how)


_MISCHIEF = [
    ("raise", "exception", "ValueError", "no such user"),
    ("broken text", "exception", "BrokenTextError", ""),
    ("huge text", "exception", "ValueError", "xxx"),
    ("odd text", "exception", "ValueError", ""),
    ("recursion", "exception", "RecursionError", "recursion"),
    ("exit", "exception", "SystemExit", "3"),
    ("interrupt", "exception", "KeyboardInterrupt", ""),
    ("generator exit", "exception", "GeneratorExit", ""),
    ("stop iteration", "exception", "RuntimeError", "StopIteration"),
    ("cancelled", "exception", "CancelledError", ""),
    ("cancelled elsewhere", "exception", "CancelledError", ""),
    ("foreign", "exception", "ForeignError", "not even"),
    ("group", "exception", "BaseExceptionGroup", "several"),
    ("timeout error", "exception", "TimeoutError", "remote was slow"),
    ("object", "invalid_result", "InvalidInputError", "JSON"),
    ("nan", "invalid_result", "InvalidInputError", "nan"),
    ("surrogate", "invalid_result", "InvalidInputError", "Unicode"),
    ("deep", "invalid_result", "InvalidInputError", "deep"),
    ("cycle", "invalid_result", "InvalidInputError", "deep"),
    ("broken raw", "invalid_result", "InvalidInputError", "JSON"),
    ("unset field", "invalid_result", "InvalidInputError", "JSON"),
    ("odd clock", "invalid_result", "InvalidInputError", "JSON"),
    ("huge result", "invalid_result", "PayloadTooLargeError", "limit"),
]


@pytest.mark.parametrize("mischief", [naughty, naughty_in_thread], ids=["async", "sync"])
async def test_whatever_a_task_does_is_its_own_failure_and_the_worker_goes_on(
    ledger: Ledger, mischief: Task[[str], Any]
) -> None:
    async with working(ledger, naughty, naughty_in_thread, double):
        jobs = {
            # What it did is done when it returns: a result that cannot be stored leaves no room for another attempt.
            how: await ledger.enqueue(
                mischief.options(max_attempts=3 if kind == "invalid_result" else 1), how
            )
            for how, kind, *_ in _MISCHIEF
            if mischief is naughty or how != "cancelled elsewhere"
        }
        for how, kind, name, words in _MISCHIEF:
            if how not in jobs:
                continue
            job = await ended(jobs[how])
            assert job.state is JobState.DEAD_LETTERED, how
            assert job.error is not None, how
            assert (job.error.kind, job.error.type) == (kind, name), how
            assert words in job.error.message, (how, job.error.message[:200])
            rejected = kind == "invalid_result"
            assert job.dead_reason == ("rejected" if rejected else "exhausted"), how
            assert not rejected or job.error.message.startswith("the result of task naughty"), how
            assert len(job.error.message) <= 2_000
            assert len(job.error.traceback) <= 16_000
            assert [attempt.state for attempt in job.attempts] == ["failed"], how
            assert await types(jobs[how]) == ["queued", "started", "failed", "dead_lettered"]
            with pytest.raises(JobFailedError):
                await jobs[how].result(timeout_s=LIMIT_S)
        after = await ledger.enqueue(double, 4)
        assert await after.result(timeout_s=LIMIT_S) == 8


async def test_the_traceback_shows_the_users_frames_and_not_ours(ledger: Ledger) -> None:
    async with working(ledger, naughty, naughty_in_thread):
        for mischief in (naughty, naughty_in_thread):
            job = await ended(await ledger.enqueue(mischief, "raise"))
            assert job.error is not None
            assert "in misbehave" in job.error.traceback
            assert "ValueError: no such user" in job.error.traceback
            assert "execution.py" not in job.error.traceback


async def test_async_and_sync_tasks_give_their_results(ledger: Ledger) -> None:
    async with working(ledger, double, double_in_thread):
        jobs = [await ledger.enqueue(each, n) for n in range(20) for each in (double, double_in_thread)]
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == [2 * (n // 2) for n in range(40)]
        assert await types(jobs[0]) == ["queued", "started", "completed"]


@task(timeout_s=0.2, max_attempts=2, backoff=AT_ONCE)
async def slow(seconds: float) -> None:
    RUNS["slow"] += 1
    await asyncio.sleep(seconds)


@task(timeout_s=0.2, max_attempts=1)
def slow_in_thread(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize("each", [slow, slow_in_thread], ids=["async", "sync"])
async def test_an_attempt_that_takes_too_long_is_stopped(ledger: Ledger, each: Task[[float], None]) -> None:
    async with working(ledger, slow, slow_in_thread):
        job = await ended(await ledger.enqueue(each, 3.0))
    assert job.state is JobState.DEAD_LETTERED
    assert job.error is not None
    assert (job.error.kind, "0.2 s" in job.error.message) == ("timeout", True)
    assert len(job.attempts) == each.defaults.max_attempts


@task(max_attempts=3, backoff=AT_ONCE)
async def fails_until(context: Context, attempt: int) -> int:
    RUNS[context.job_id] += 1
    if context.attempt < attempt:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


async def test_a_failing_task_is_tried_as_often_as_it_may_and_then_is_a_dead_letter(ledger: Ledger) -> None:
    async with working(ledger, fails_until):
        second = await ledger.enqueue(fails_until, 2)
        never = await ledger.enqueue(fails_until, 9)
        assert await second.result(timeout_s=LIMIT_S) == 2
        job = await ended(never)
        assert [attempt.state for attempt in job.attempts] == ["failed"] * 3
        assert (job.state, job.dead_reason) == (JobState.DEAD_LETTERED, "exhausted")
        assert (RUNS[second.id], RUNS[never.id]) == (2, 3)
        await ledger.execute(never.ref, Requeue(attempts=6))
        await until(lambda: RUNS[never.id] == 9)
        assert await never.result(timeout_s=LIMIT_S) == 9


@task
async def says(what: str) -> Any:
    return Cancel("nothing to do") if what == "cancel" else Retry(0, "not yet")


async def test_values_that_a_task_returns_to_say_more(ledger: Ledger) -> None:
    async with working(ledger, says):
        cancelled = await ended(await ledger.enqueue(says, "cancel"))
        assert (cancelled.state, cancelled.cancel_reason) == (JobState.CANCELLED, "nothing to do")
        retried = await ended(await ledger.enqueue(says.options(max_attempts=2), "retry"))
        assert (retried.state, len(retried.attempts)) == (JobState.DEAD_LETTERED, 2)


async def _order(ledger: Ledger, name: str, text: str, **more: Any) -> JobHandle[Any]:
    """Enqueue as a client with another version of the code would."""
    ref = JobRef(queue="default", job_id=secrets.token_hex(8))
    command = enqueue_of(ref, task=name, input=msgspec.Raw(text.encode()), **more)
    await ledger._enqueuer.begin(command)
    return await ledger.job(ref)


@pytest.mark.parametrize("text", ['{"n": "one"}', "{}", '{"n": 1, "m": 2}', "[]", "null", '{"n": 1e400}'])
async def test_an_input_that_no_longer_fits_is_given_up_without_running(ledger: Ledger, text: str) -> None:
    async with working(ledger, double):
        job = await ended(await _order(ledger, "double", text, max_attempts=5))
    assert (job.state, job.dead_reason, len(job.attempts)) == (JobState.DEAD_LETTERED, "invalid", 1)
    assert job.error is not None
    assert job.error.kind == "invalid_input"
    assert not RUNS


async def test_a_task_that_no_worker_knows_is_given_up_after_some_deliveries(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.workers.attempt.settlement._UNKNOWN_TASK_S", 0.001)
    monkeypatch.setattr("jobledger.workers.attempt.settlement.UNKNOWN_TASK_DELIVERIES_MAX", 10)
    async with working(ledger, double):
        job = await ended(await _order(ledger, "gone", "{}", max_attempts=5))
        assert (job.state, job.dead_reason) == (JobState.DEAD_LETTERED, "rejected")
        assert job.error is not None
        assert (job.error.kind, "'gone'" in job.error.message) == ("unknown_task", True)


async def test_a_task_unknown_here_is_run_by_a_worker_that_knows_it(
    connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.workers.attempt.settlement._UNKNOWN_TASK_S", 0.05)
    async with connected() as one, connected() as two, working(one, double) as knows_it_not:
        job = await one.enqueue(fails_until, 1)
        await until(lambda: knows_it_not.counts().deliveries > 0)
        async with working(two, fails_until):
            assert await job.result(timeout_s=LIMIT_S) == 1


# Which work, in which order, how much at once.


async def test_a_job_cancelled_before_a_worker_saw_it_never_runs(ledger: Ledger) -> None:
    cancelled = await ledger.enqueue(double, 1)
    await ledger.execute(cancelled.ref, CancelJob(reason="changed my mind"))
    after = await ledger.enqueue(double, 2)
    async with working(ledger, double, concurrency=1):
        assert await after.result(timeout_s=LIMIT_S) == 4
    assert RUNS == {"double-2": 1}
    assert await types(cancelled) == ["queued", "cancelled"]


async def test_high_goes_before_normal_before_low(ledger: Ledger) -> None:
    jobs = [
        await ledger.enqueue(note.options(priority=priority), priority)
        for priority in ("low", "normal", "high", "low", "normal", "high")
    ]
    async with working(ledger, note, concurrency=1):
        for job in jobs:
            await ended(job)
    assert BEGAN == ["high", "high", "normal", "normal", "low", "low"]


async def test_the_low_end_does_not_starve(ledger: Ledger) -> None:
    low = await ledger.enqueue(note.options(priority="low"), "low")
    await ledger.enqueue_many(note.options(priority="high"), ({"name": f"high-{n}"} for n in range(60)))
    async with working(ledger, note, concurrency=1):
        await ended(low)
        await until(lambda: len(BEGAN) == 61)
    assert 5 <= BEGAN.index("low") <= 40


async def test_a_worker_serves_its_queues_and_no_others(ledger: Ledger) -> None:
    mine = [await ledger.enqueue(note.options(queue=queue), queue) for queue in ("a", "b", "a")]
    other = await ledger.enqueue(note.options(queue="c"), "c")
    async with working(ledger, note, queues=("a", "b")):
        for job in mine:
            await ended(job)
        assert await other.state() is JobState.QUEUED
    assert sorted(BEGAN) == ["a", "a", "b"]


@task
async def holds(context: Context) -> int:
    RUNS[context.job_id] += 1
    while not GATE.is_set():
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    return context.attempt


@task
def holds_in_thread(context: Context) -> int:
    RUNS[context.job_id] += 1
    assert GATE.wait(LIMIT_S)
    time.sleep(0.02)
    return context.attempt


@pytest.mark.parametrize("each", [holds, holds_in_thread], ids=["async", "sync"])
async def test_no_more_run_at_once_than_allowed(ledger: Ledger, each: Task[[], int]) -> None:
    jobs = [await ledger.enqueue(each) for _ in range(30)]
    GATE.clear()
    most = 0
    async with working(ledger, each, concurrency=4) as worker:
        await until(lambda: sum(RUNS.values()) == 4)
        GATE.set()
        while not all(RUNS[job.id] for job in jobs):
            most = max(most, worker.running)
            await asyncio.sleep(0.002)
        for job in jobs:
            assert await job.result(timeout_s=LIMIT_S) == 1
    assert most == 4
    assert set(RUNS.values()) == {1}


async def test_a_busy_worker_keeps_nothing_from_an_idle_one(connected: Connect) -> None:
    GATE.clear()
    async with connected() as one, connected() as two, working(one, holds, note, concurrency=1) as first:
        await until(lambda: all(lane.consumer.standing for lane in first._intake._lanes))
        long = await one.enqueue(holds)
        await until(lambda: first.running == 1)
        async with working(two, holds, note, concurrency=1) as second:
            await until(lambda: all(lane.consumer.standing for lane in second._intake._lanes))
            urgent = [await one.enqueue(note.options(priority=each), each) for each in ("high", "low")]
            for job in urgent:
                await ended(job)
            assert await long.state() is JobState.RUNNING
            GATE.set()
            await ended(long)


async def test_many_jobs_on_two_workers_run_once_each(connected: Connect) -> None:
    async with connected() as one, connected() as two, working(one, double), working(two, double):
        result = await one.enqueue_many(double, ({"n": n} for n in range(1_000)))
        assert result.created == 1_000
        await until(lambda: len(RUNS) == 1_000)

        async def finished() -> int:
            return len([1 async for _ in one.events(types=["completed"], follow=False)])

        async with asyncio.timeout(LIMIT_S):
            while await finished() < 1_000:
                await asyncio.sleep(0.05)
        assert set(RUNS.values()) == {1}
        assert await finished() == 1_000


async def test_payloads_never_reach_the_log(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with working(ledger, naughty, sleep):
        await ended(await ledger.enqueue(naughty, "raise"))
        await ended(await _order(ledger, "naughty", '{"how": "topsecret", "more": "topsecret"}'))
    assert "topsecret" not in caplog.text
