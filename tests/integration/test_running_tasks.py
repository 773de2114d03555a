"""What a running task can say and hear: cancel, heartbeat, progress, checkpoints, hooks; and what its failure means."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.support.working import LIMIT_S, Connect, ended, types, until, working

from jobledger.audit.verify import verify
from jobledger.ledger import (
    AttemptStoppedError,
    Backoff,
    Cancel,
    Context,
    Fail,
    Hooks,
    JobState,
    Ledger,
    Notice,
    Retry,
    Snooze,
    TaskRegistry,
    task,
)
from jobledger.ledger.model.commands import CancelJob, Claim
from jobledger.ledger.model.errors import IllegalTransitionError, TaskDefinitionError

pytestmark = pytest.mark.anyio

SEEN: Counter[str] = Counter()
TOLD: list[Notice] = []
AT_ONCE = Backoff(base_s=0)
HINT_EVERY_S = 0.2  # of progress, at most; it is a quarter


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()
    TOLD.clear()


# Cancel.


@task
async def waits(context: Context) -> None:
    SEEN["began"] += 1
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        SEEN["heard"] += 1
        raise


@task
def waits_in_thread(context: Context) -> None:
    SEEN["began"] += 1
    try:
        for _ in range(4_000):
            context.heartbeat()
            time.sleep(0.01)
    except AttemptStoppedError:
        SEEN["heard"] += 1
        raise


@task
async def finishes_anyway(context: Context) -> str:
    SEEN["began"] += 1
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "nearly done, so done"
    return "never"


@pytest.mark.parametrize("each", [waits, waits_in_thread], ids=["async", "sync"])
async def test_a_running_job_hears_of_its_cancel_at_once(
    connected: Connect, monkeypatch: pytest.MonkeyPatch, each: Any
) -> None:
    monkeypatch.setattr(
        "jobledger.workers.attempt.cancels._LOOK_EVERY_S", 10 * LIMIT_S
    )  # only a hint comes in time
    async with connected() as ledger, connected() as client, working(ledger, waits, waits_in_thread):
        job = await client.enqueue(each)
        await until(lambda: SEEN["began"] == 1)
        asked = await client.cancel(job.ref, reason="not needed", by="ada")
        assert (asked.state, asked.cancel_requested) == (JobState.RUNNING, True)
        after = await ended(job)
        assert (after.state, after.cancel_reason, SEEN["heard"]) == (JobState.CANCELLED, "not needed", 1)
        assert await types(job) == ["queued", "started", "cancel_requested", "cancelled"]


async def test_a_cancel_without_a_hint_is_found_by_looking(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobledger.workers.attempt.cancels._LOOK_EVERY_S", 0.2)
    async with working(ledger, waits):
        job = await ledger.enqueue(waits)
        await until(lambda: SEEN["began"] == 1)
        await ledger.execute(job.ref, CancelJob(reason="quietly"))  # no hint is sent
        assert (await ended(job)).state is JobState.CANCELLED


async def test_a_job_that_completes_although_cancelled_stays_completed(ledger: Ledger) -> None:
    async with working(ledger, finishes_anyway):
        job = await ledger.enqueue(finishes_anyway)
        await until(lambda: SEEN["began"] == 1)
        await ledger.cancel(job.ref)
        assert await job.result(timeout_s=LIMIT_S) == "nearly done, so done"


async def test_a_thread_that_never_looks_up_is_left_behind_and_keeps_its_slot(ledger: Ledger) -> None:
    gate = threading.Event()

    @task
    def deaf() -> None:
        SEEN["began"] += 1
        gate.wait(LIMIT_S)

    try:
        async with working(ledger, deaf, concurrency=2, cancel_grace_s=0.1) as worker:
            job = await ledger.enqueue(deaf)
            await until(lambda: SEEN["began"] == 1)
            await ledger.cancel(job.ref)
            assert (await ended(job)).state is JobState.CANCELLED
            await until(lambda: worker._free() == 1)
            gate.set()
            await until(lambda: worker._free() == 2)
    finally:
        gate.set()


async def test_whoever_takes_a_cancelled_job_over_obeys(connected: Connect) -> None:
    async with connected() as ledger, connected() as other:
        job = await other.enqueue(waits)
        # A worker that claims, and of which nothing is heard again; it has no lease.
        await ledger.execute(job.ref, Claim(worker="dead-1-00000000", lease_s=2.0))
        assert (await other.cancel(job.ref, reason="too late for it")).state is JobState.RUNNING
        async with working(other, waits):
            after = await ended(job)
    assert (after.state, after.cancel_reason, SEEN["began"]) == (JobState.CANCELLED, "too late for it", 0)


async def test_a_job_is_asked_to_end_only_once_and_a_finished_one_not_at_all(ledger: Ledger) -> None:
    async with working(ledger, waits):
        job = await ledger.enqueue(waits)
        await until(lambda: SEEN["began"] == 1)
        await ledger.cancel(job.ref)
        await ended(job)
        with pytest.raises(IllegalTransitionError, match="is cancelled"):
            await ledger.cancel(job.ref)
        with pytest.raises(IllegalTransitionError, match="is cancelled"):
            await ledger.retry(job.ref)


# Heartbeat, progress, checkpoint.


@task(max_attempts=1, heartbeat_s=2.0)
async def falls_silent(context: Context, beats: int) -> str:
    for _ in range(beats):
        context.heartbeat()
        await asyncio.sleep(0.2)
    await asyncio.sleep(60 if beats < 12 else 0)
    return "alive"


@task(max_attempts=1, heartbeat_s=2.0)
def falls_silent_in_thread(context: Context, beats: int) -> str:
    for _ in range(beats):
        context.heartbeat()
        time.sleep(0.2)
    time.sleep(3.5 if beats < 12 else 0)
    return "alive"


@pytest.mark.parametrize("each", [falls_silent, falls_silent_in_thread], ids=["async", "sync"])
async def test_an_attempt_without_a_sign_of_life_is_ended(ledger: Ledger, each: Any) -> None:
    async with working(ledger, falls_silent, falls_silent_in_thread):
        alive = await ledger.enqueue(each, beats=12)
        silent = await ended(await ledger.enqueue(each, beats=2))
        assert await alive.result(timeout_s=LIMIT_S) == "alive"
    assert silent.error is not None
    assert (silent.error.kind, "without a heartbeat" in silent.error.message) == ("timeout", True)


def test_a_heartbeat_limit_without_a_context_is_refused() -> None:
    @task(heartbeat_s=5)
    async def mute() -> None: ...

    with pytest.raises(TaskDefinitionError, match="heartbeat_s"):
        TaskRegistry([mute])


@task
async def reports(context: Context) -> None:
    for done in range(1_000):
        context.progress(done, 1_000, "counting")
        if done % 100 == 0:
            await asyncio.sleep(0.02)
    SEEN["counted"] += 1
    await asyncio.sleep(1)


@task
def reports_in_thread(context: Context) -> None:
    for done in range(1_000):
        context.progress(done, 1_000, "counting")
    SEEN["counted"] += 1
    time.sleep(1)


@pytest.mark.parametrize("each", [reports, reports_in_thread], ids=["async", "sync"])
async def test_progress_is_seen_live_and_is_no_event_per_tick(
    connected: Connect, monkeypatch: pytest.MonkeyPatch, each: Any
) -> None:
    monkeypatch.setattr("jobledger.workers.attempt.channel._LEDGER_EVERY_S", 3_600.0)
    heard: list[Any] = []
    began = time.monotonic()
    async with connected() as ledger, connected() as client, working(ledger, reports, reports_in_thread):
        job = await client.enqueue(each.options(id="watched"))
        async with client.hints.watch_progress(job.ref, lambda data: heard.append(msgspec.json.decode(data))):
            await until(lambda: any(report["done"] == 999 for report in heard))
        shown = (await job.snapshot()).progress
        await ended(job)
        # The first one, and the newest with the outcome; one is both where the loop was late.
        assert (await types(job)).count("progressed") in {1, 2}
        newest = (await job.snapshot()).progress
        assert newest is not None
        assert newest.done == 999
    assert len(heard) <= 2 + (time.monotonic() - began) / HINT_EVERY_S
    assert shown is not None
    assert shown.total == 1_000


@task(max_attempts=1)
async def counts(context: Context, end: str) -> Any:
    for done in range(1, 61):
        context.progress(done, 60, f"file {done}")
    if end == "raise":
        raise ValueError("no")
    return {"snooze": Snooze(3_600), "fail": Fail("no use"), "cancel": Cancel("enough")}.get(end, end)


@task(max_attempts=1)
def counts_in_thread(context: Context, end: str) -> str:
    for done in range(1, 61):
        context.progress(done, 60, f"file {done}")
    return end


@task(max_attempts=1)
async def says_it_once(context: Context) -> None:
    context.progress(60, 60, "file 60")
    await until(lambda: context.job_id in STORED)


STORED: set[str] = set()


async def test_the_newest_report_is_stored_with_the_outcome(ledger: Ledger) -> None:
    tasks = (counts, counts_in_thread, says_it_once)
    async with working(ledger, *tasks):
        jobs = [await ledger.enqueue(counts, end) for end in ("return", "raise", "snooze", "fail", "cancel")]
        jobs.append(await ledger.enqueue(counts_in_thread, "return"))
        once = await ledger.enqueue(says_it_once)
        for job in jobs:
            async with asyncio.timeout(LIMIT_S):
                while (await job.state()) in (JobState.QUEUED, JobState.RUNNING):
                    await asyncio.sleep(0.005)
            found = (await job.snapshot()).progress
            assert found is not None
            assert (found.done, found.total, found.note) == (60, 60, "file 60")
            assert (await types(job)).count("progressed") <= 2
        async with asyncio.timeout(LIMIT_S):
            while "progressed" not in await types(once):
                await asyncio.sleep(0.005)
        STORED.add(once.id)
        await once.wait(timeout_s=LIMIT_S)
    assert await types(once) == [
        "queued",
        "started",
        "progressed",
        "completed",
    ]  # what is stored is not said again
    report = await verify(ledger.log)
    assert report.sound, report.text()


@task(max_attempts=3, backoff=AT_ONCE)
async def continues(context: Context, rows: int) -> list[int]:
    start = context.checkpoint_value or 0
    for row in range(start, rows):
        await context.checkpoint(row + 1)
        if row % 2 == 1 and context.attempt < 3:
            raise ConnectionError("cut off")
    return [start, rows]


@task(max_attempts=3, backoff=AT_ONCE)
def continues_in_thread(context: Context, rows: int) -> list[int]:
    start = context.checkpoint_value or 0
    for row in range(start, rows):
        context.checkpoint(row + 1)  # type: ignore[unused-awaitable]
        if row % 2 == 1 and context.attempt < 3:
            raise ConnectionError("cut off")
    return [start, rows]


@pytest.mark.parametrize("each", [continues, continues_in_thread], ids=["async", "sync"])
async def test_a_checkpoint_is_handed_to_the_next_attempt(ledger: Ledger, each: Any) -> None:
    async with working(ledger, continues, continues_in_thread):
        job = await ledger.enqueue(each, rows=6)
        assert await job.result(timeout_s=LIMIT_S) == [4, 6]
    assert (await types(job)).count("checkpointed") == 6


@task(max_attempts=1)
async def keeps_on(context: Context) -> None:
    SEEN["began"] += 1
    for number in range(100_000):
        await context.checkpoint(number)


async def test_a_task_that_checkpoints_all_the_time_can_be_cancelled(ledger: Ledger) -> None:
    async with working(ledger, keeps_on):
        job = await ledger.enqueue(keeps_on)
        await until(lambda: SEEN["began"] == 1)
        await ledger.cancel(job.ref)
        assert (await ended(job)).state is JobState.CANCELLED


@task(max_attempts=1)
async def keeps(context: Context, what: str) -> None:
    await context.checkpoint({"nan": float("nan"), "object": object(), "big": "x" * 200_000}[what])


@pytest.mark.parametrize("what", ["nan", "object"])
async def test_a_checkpoint_that_json_cannot_hold_fails_the_attempt(ledger: Ledger, what: str) -> None:
    async with working(ledger, keeps):
        job = await ended(await ledger.enqueue(keeps, what))
    assert job.error is not None
    assert (job.error.type, "checkpoint" in job.error.message) == ("InvalidInputError", True)


async def test_a_large_checkpoint_lies_outside_the_event(ledger: Ledger) -> None:
    async with working(ledger, keeps):
        job = await ended(await ledger.enqueue(keeps, "big"))
    assert (job.state, job.checkpoint_ref is not None) == (JobState.COMPLETED, True)


# What a failure means.


@task(max_attempts=3, backoff=AT_ONCE, retry_on=(OSError,), give_up_on=(FileNotFoundError,))
async def raises(name: str) -> None:
    raise {"os": OSError, "file": FileNotFoundError, "value": ValueError}[name](name)


@pytest.mark.parametrize(
    ("name", "attempts", "reason"),
    [("os", 3, "exhausted"), ("file", 1, "rejected"), ("value", 1, "rejected")],
)
async def test_rules_say_which_exceptions_are_worth_another_attempt(
    ledger: Ledger, name: str, attempts: int, reason: str
) -> None:
    async with working(ledger, raises):
        job = await ended(await ledger.enqueue(raises, name))
    assert (len(job.attempts), job.dead_reason) == (attempts, reason)


@task(max_attempts=2)
async def later(delay_s: float) -> Retry:
    return Retry(delay_s, "not now", priority="low")


async def test_a_failure_waits_as_long_as_it_is_told(ledger: Ledger) -> None:
    async with working(ledger, later):
        job = await ledger.enqueue(later, 1_000)
        while (await job.state()) is not JobState.RETRY_WAIT:
            await asyncio.sleep(0.01)
        waiting = await job.snapshot()
        assert waiting.due_at is not None
        assert 995 < (waiting.due_at - waiting.updated_at).total_seconds() <= 1_000
        assert waiting.order.priority == "low"
        # An operator does not let it wait: the second attempt is the last.
        assert (await ledger.retry(job.ref, reason="now", by="ada")).state is JobState.QUEUED
        assert (await ended(job)).state is JobState.DEAD_LETTERED
        assert (await ledger.retry(job.ref, by="ada")).attempts_left == 1


# Hooks.


async def tell(notice: Notice) -> None:
    TOLD.append(notice)


def tell_in_thread(notice: Notice) -> None:
    assert threading.current_thread() is not threading.main_thread()
    TOLD.append(notice)


def fails(notice: Notice) -> None:
    SEEN["hook failed"] += 1
    raise RuntimeError(notice.kind)


@task(
    max_attempts=2,
    backoff=AT_ONCE,
    hooks=Hooks(on_start=tell, on_success=tell_in_thread, on_failure=tell, on_dead_letter=tell_in_thread),
)
async def hooked(ok: bool) -> None:
    if not ok:
        raise ValueError("no")


@task(hooks=Hooks(on_start=fails, on_success=fails))
async def hooked_badly() -> str:
    return "fine"


async def test_hooks_hear_what_became_of_each_attempt(ledger: Ledger) -> None:
    async with working(ledger, hooked):
        good = await ledger.enqueue(hooked, ok=True)
        await ended(good)
        await until(lambda: len(TOLD) == 2)
        bad = await ledger.enqueue(hooked, ok=False)
        await ended(bad)
        await until(lambda: len(TOLD) == 7)
    assert sorted(notice.kind for notice in TOLD[:2]) == ["start", "success"]
    failures = [notice for notice in TOLD if notice.kind == "failure"]
    assert sorted((notice.attempt, notice.will_retry) for notice in failures) == [(1, True), (2, False)]
    dead = next(notice for notice in TOLD if notice.kind == "dead_letter")
    assert dead.error is not None
    assert (dead.job_id, dead.reason, dead.error.message) == (bad.id, "exhausted", "no")


async def test_a_hook_that_fails_changes_nothing_and_is_reported(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(ledger, hooked_badly):
        job = await ledger.enqueue(hooked_badly)
        assert await job.result(timeout_s=LIMIT_S) == "fine"
        await until(lambda: SEEN["hook failed"] == 2)
        await until(lambda: sum("hook fails failed for job" in line for line in caplog.messages) == 2)


async def test_hooks_at_the_top_of_a_module_are_for_all_its_tasks(
    ledger: Ledger, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hooked_app.py").write_text(
        "from jobledger.ledger import Hooks, Notice, task\n"
        "TOLD: list[Notice] = []\n"
        "hooks = Hooks(on_success=TOLD.append)\n"
        "@task\nasync def one() -> int:\n    return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = TaskRegistry.load(["hooked_app"])
    assert registry.modules == ("hooked_app",)
    async with working(ledger, registry=registry):
        job = await ledger.enqueue(registry.get("one"))
        await ended(job)
        told: list[Notice] = sys.modules["hooked_app"].TOLD
        await until(lambda: len(told) == 1)
        assert told[0].job_id == job.id


# A task that blocks the loop.


@task(hooks=Hooks(on_stall=tell))
async def blocks(seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - the mistake this is about
    return "at last"


async def test_a_task_that_blocks_the_loop_is_named_while_it_does(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with working(ledger, blocks, stall_s=0.3):
        job = await ledger.enqueue(blocks, 1.2)
        assert await job.result(timeout_s=LIMIT_S) == "at last"
        await until(lambda: len(TOLD) == 1)
    # A busy machine may block the loop by itself, which is said of no task.
    said = [line for line in caplog.messages if f"task blocks of job {job.id}" in line]
    assert "has been blocked" in said[0]
    assert "time.sleep(seconds)" in said[0]
    assert TOLD[0].kind == "stall"


# Weights.


@task(queue="heavy")
async def heavy(n: int) -> None:
    SEEN["heavy"] += 1
    await asyncio.sleep(0.002)


@task(queue="light")
async def light(n: int) -> None:
    SEEN["light"] += 1
    await asyncio.sleep(0.002)


async def test_queues_get_slots_by_their_weights(ledger: Ledger) -> None:
    for each in (heavy, light):
        await ledger.enqueue_many(each, ({"n": n} for n in range(600)))
    queues: dict[str, Any] = {"queues": ("heavy", "light"), "weights": {"heavy": 3}, "concurrency": 8}
    async with working(ledger, heavy, light, **queues):
        await until(lambda: min(SEEN["heavy"], SEEN["light"]) >= 8)  # both have been handed out
        before = SEEN.copy()
        await until(lambda: (SEEN - before).total() >= 300)
        share = (SEEN - before)["heavy"] / (SEEN - before).total()
    assert 0.6 < share < 0.85
