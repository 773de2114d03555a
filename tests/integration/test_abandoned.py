"""Tasks that do not end when they are told to: their attempts end without them, and their slots stay taken."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.working import LIMIT_S, attempts, ended, types, until, working

from jobledger.ledger import Backoff, Context, Hooks, JobState, Ledger, Notice, TaskRegistry, task
from jobledger.workers import Worker
from jobledger.workers.metrics import measured
from jobledger.workers.single import run_one

pytestmark = pytest.mark.anyio

TOLD: list[Notice] = []
_gate = threading.Event()
_began = 0


@pytest.fixture(autouse=True)
def gate() -> Iterator[threading.Event]:
    """Lets every task of the test go; at its end at the latest."""
    global _began  # noqa: PLW0603 - a task has no other way out
    _gate.clear()
    TOLD.clear()
    _began = 0
    yield _gate
    _gate.set()


async def _never_mind() -> None:
    while not _gate.is_set():
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            continue


@task(max_attempts=1, backoff=Backoff(base_s=0), hooks=Hooks(on_stall=TOLD.append), heartbeat_s=60)
async def stubborn(context: Context) -> str:
    global _began  # noqa: PLW0603
    _began += 1
    await _never_mind()
    return "done"


@task(max_attempts=1, hooks=Hooks(on_stall=TOLD.append), heartbeat_s=0.2)
async def silent(context: Context) -> str:
    return await stubborn.function(context)  # type: ignore[no-any-return]


@task(max_attempts=1)
def in_thread() -> None:
    _gate.wait(LIMIT_S)


@task
async def quick(number: int) -> int:
    return number


async def _until_began(count: int = 1) -> None:
    await until(lambda: _began == count)


async def _by_timeout(ledger: Ledger, _: Worker) -> Any:
    return await ledger.enqueue(stubborn.options(timeout_s=0.1))


async def _by_silence(ledger: Ledger, _: Worker) -> Any:
    return await ledger.enqueue(silent)


async def _by_cancel(ledger: Ledger, _: Worker) -> Any:
    job = await ledger.enqueue(stubborn)
    await _until_began()
    await ledger.cancel(job.ref, reason="not needed")
    return job


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (_by_timeout, "after its timeout of 0.1 s"),
        (_by_silence, "after 0.2 s without a heartbeat"),
        (_by_cancel, ""),
    ],
)
async def test_an_attempt_whose_task_swallows_its_cancellation_ends_without_it(
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    gate: threading.Event,
    way: Callable[[Ledger, Worker], Any],
    said: str,
) -> None:
    caplog.set_level(logging.INFO, "jobledger.workers")
    async with working(ledger, stubborn, silent, quick, concurrency=2, cancel_grace_s=0.1) as worker:
        job = await way(ledger, worker)
        after = await ended(job)
        assert after.state is (JobState.DEAD_LETTERED if said else JobState.CANCELLED)
        if said:
            assert after.error is not None
            assert (after.error.kind, said in after.error.message) == ("timeout", True)
            assert "in _never_mind" in after.error.traceback
            assert "execution.py" not in after.error.traceback
        # Its slot stays taken, the other one serves, and nothing of it is left with the broker.
        await until(lambda: worker.counts().held == 0)
        assert [await (await ledger.enqueue(quick, n)).result(timeout_s=LIMIT_S) for n in range(3)] == [
            0,
            1,
            2,
        ]
        counts = worker.counts()
        assert (counts.abandoned, counts.free, counts.running) == (1, 1, 0)
        warning = next(each.message for each in caplog.records if "does not end" in each.message)
        assert job.id in warning
        assert "in _never_mind" in warning
        gate.set()
        await until(lambda: worker.counts().free == 2)
        assert worker.counts().abandoned == 0
    # What it returned in the end is recorded nowhere.
    assert await attempts(job) == ["failed" if said else "cancelled"]
    assert "fenced" not in await types(job)
    assert [each.kind for each in TOLD] == (["stall"] if way is _by_silence else [])


async def test_a_retry_does_not_wait_for_the_attempt_that_runs_on(
    ledger: Ledger, gate: threading.Event
) -> None:
    async with working(ledger, stubborn, concurrency=3, cancel_grace_s=0.1) as worker:
        job = await ledger.enqueue(stubborn.options(timeout_s=0.1, max_attempts=2))
        after = await ended(job)
        assert (after.state, len(after.attempts)) == (JobState.DEAD_LETTERED, 2)
        assert worker.counts().abandoned == 2
        gate.set()


async def test_a_task_that_ends_within_the_grace_has_the_last_word(ledger: Ledger) -> None:
    @task
    async def tidies_up() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
        return "all done, a little late"

    async with working(ledger, tidies_up) as worker:
        job = await ledger.enqueue(tidies_up.options(timeout_s=0.1))
        assert await job.result(timeout_s=LIMIT_S) == "all done, a little late"
        assert worker.counts().abandoned == 0


@pytest.mark.parametrize("lost", [False, True], ids=["stopped", "lease lost"])
async def test_a_worker_gives_a_job_back_although_its_task_swallows_the_cancellation(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr("jobledger.workers.worker._FAREWELL_S", 1.0)
    async with working(ledger, stubborn, grace_s=0, cancel_grace_s=0.3 if lost else 60) as worker:
        job = await ledger.enqueue(stubborn)
        await _until_began()
        if lost:
            worker._attempts.lose(worker.identity)
            await until(lambda: worker.counts().abandoned == 1)
            await _until_began(2)
    assert (await types(job))[:4] == ["queued", "started", "interrupted", "queued"]
    assert await ledger.leases.find(worker.identity) is None  # nothing that it holds has to wait for its end


@pytest.mark.parametrize("supervisor", ["", "host-1-abcdefgh"])
async def test_a_worker_without_a_slot_left_says_so_and_makes_room_for_another(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, supervisor: str
) -> None:
    config: dict[str, Any] = {"concurrency": 2, "cancel_grace_s": 0.1, "supervisor": supervisor}
    async with (
        working(ledger, stubborn, in_thread, **config) as worker,
        measured(ledger, worker) as collector,
    ):
        await worker.taking.wait()
        assert collector.health() == ""
        for each in (stubborn, in_thread):
            await ended(await ledger.enqueue(each.options(timeout_s=0.1)))
        await until(lambda: worker.is_worn_out)
        assert "held by a task that does not end" in collector.health()
        figures = {each.name: each.samples[0].value for each in collector.collect() if each.samples}
        assert figures["jobledger_worker_abandoned_slots"] == 2
        await until(lambda: "every slot (2)" in caplog.text)
        assert worker._stopping.is_set() == bool(supervisor)
    if not supervisor:
        assert "--processes" in caplog.text
    said = [each.message for each in caplog.records if "does not end: its attempt" in each.message]
    assert ["in _never_mind" in said[0], "in in_thread" in said[1]] == [True, True]


async def test_jobs_run_ends_although_the_task_does_not(ledger: Ledger) -> None:
    job = await ledger.enqueue(stubborn.options(timeout_s=0.1))
    async with asyncio.timeout(LIMIT_S):
        after = await run_one(ledger, TaskRegistry([stubborn]), job.ref)
    assert after.state is JobState.DEAD_LETTERED
