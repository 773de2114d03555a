"""What others do to runs and their code: pauses, versions, another process, a look into one; and limits of children."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.working import LIMIT_S, becomes, ended, types, until, working

from jobledger.ledger import (
    JobState,
    Ledger,
    Limit,
    Run,
    Signal,
    TaskRegistry,
    step,
    task,
    workflow,
)
from jobledger.ledger.model.commands import RequestPause, ResumeJob
from jobledger.testing import MemoryLedger
from jobledger.workers import debug

pytestmark = pytest.mark.anyio

CALLS: Counter[str] = Counter()
GATE: dict[str, asyncio.Event] = {}
go_on = Signal("go_on", int)
MODULE = """
import os
from jobledger.ledger import Backoff, Run, step, workflow

PID = os.getpid()

@step(run_in="process", max_attempts=2, backoff=Backoff(base_s=0))
def where(parent: int, fail: bool = False) -> list[int]:
    if fail:
        raise KeyError("no such row")
    return [parent, os.getpid()]

@workflow(queue="apart", max_attempts=1)
async def apart(run: Run, fail: bool) -> list[int]:
    return await run.step(where, PID, fail=fail)
"""


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()
    GATE.clear()


@step
async def slow(number: int) -> int:
    CALLS["slow"] += 1
    await GATE["open"].wait()
    return number


@workflow(queue="runs")
async def works(run: Run) -> int:
    first = await run.step(slow, 1)
    second = await run.step(slow, 2)
    return first + second + await run.wait(go_on)


async def test_a_running_run_pauses_before_its_next_step_until_it_is_resumed(ledger: Ledger) -> None:
    GATE["open"] = asyncio.Event()
    async with working(ledger, works):
        job = await ledger.enqueue(works)
        await until(lambda: CALLS["slow"] == 1)
        await ledger.execute(job.ref, RequestPause(reason="a deploy"))
        GATE["open"].set()
        await becomes(job, JobState.PAUSED)
        found = await job.snapshot()
        assert (found.state is JobState.PAUSED, CALLS["slow"], list(found.steps)) == (True, 1, ["slow"])
        await ledger.signal(job, go_on, 3)
        assert await job.state() is JobState.PAUSED  # whatever comes meanwhile
        await ledger.execute(job.ref, ResumeJob())
        assert await job.result(timeout_s=LIMIT_S) == 6
    assert CALLS["slow"] == 2
    assert (await types(job)).count("pause_requested") == 1


async def test_a_run_that_is_paused_while_it_waits_goes_on_with_what_came_meanwhile(ledger: Ledger) -> None:
    GATE["open"] = asyncio.Event()
    GATE["open"].set()
    async with working(ledger, works):
        job = await ledger.enqueue(works)
        await becomes(job, JobState.WAITING)
        await ledger.execute(job.ref, RequestPause())
        await ledger.signal(job, go_on, 3)
        assert (await job.snapshot()).state is JobState.PAUSED
        await ledger.execute(job.ref, ResumeJob())
        assert await job.result(timeout_s=LIMIT_S) == 6
    assert CALLS["slow"] == 2


# Versions of code.


def version(number: str) -> Any:
    @workflow(name="versioned", queue="runs", version=number)
    async def function(run: Run) -> str:
        await run.wait(go_on)
        return f"{number} of {run.version}"

    return function


async def test_each_run_goes_on_with_the_version_that_it_began_with(ledger: Ledger) -> None:
    old, new = version("1"), version("2")
    async with working(ledger, old, new):
        jobs = [await ledger.enqueue(each) for each in (old, new, old)]
        for job in jobs:
            await ledger.signal(job, go_on, 1)
        assert [await job.result(timeout_s=LIMIT_S) for job in jobs] == ["1 of 1", "2 of 2", "1 of 1"]


async def test_a_worker_without_the_version_passes_a_run_on(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = version("1"), version("2")
    job = await ledger.enqueue(old)
    await ledger.signal(job, go_on, 1)
    async with working(ledger, new):
        await until(lambda: "version '1' of workflow 'versioned' is not loaded here" in caplog.text)
        assert await types(job) == ["queued", "signalled"]
    async with working(ledger, old):
        assert await job.result(timeout_s=LIMIT_S) == "1 of 1"


def test_two_workflows_of_one_name_and_version_are_refused() -> None:
    with pytest.raises(Exception, match="two tasks are called 'versioned'"):
        TaskRegistry([version("1"), version("1")])
    assert len(list(TaskRegistry([version("1"), version("2")]))) == 2


# Steps in other processes.


async def test_a_step_may_run_in_a_process_of_the_pool(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "apart_flow.py").write_text(MODULE, encoding="utf-8")
    registry = TaskRegistry.load(["apart_flow"])
    async with working(ledger, registry=registry):
        good = await ledger.enqueue(registry.get("apart"), fail=False)
        parent, child = await good.result(timeout_s=LIMIT_S)
        assert (parent, parent != child) == (os.getpid(), True)
        bad = await ended(await ledger.enqueue(registry.get("apart"), fail=True))
    assert bad.error is not None
    assert bad.error.type == "KeyError"
    assert (await types(await ledger.job(bad.id))).count("step_failed") == 2
    assert bad.error.message.startswith("step 'where': ")


# Children with limits.

per_tenant = Limit("tenant_slots", key="tenant", slots=1)


@task(queue="kids", limits=(per_tenant,))
async def limited(tenant: str) -> str:
    CALLS[tenant] += 1
    assert CALLS[tenant] == 1, "two at once"
    await asyncio.sleep(0.01)
    CALLS[tenant] -= 1
    return tenant


@workflow(queue="runs")
async def for_tenants(run: Run) -> list[str]:
    return await run.map(limited, ["a", "b", "a", "b", "a"], limit=4)


async def test_a_limit_of_the_children_s_task_holds_beside_that_of_the_group(ledger: Ledger) -> None:
    async with working(ledger, for_tenants, limited):
        job = await ledger.enqueue(for_tenants.options(id="t"))
        assert await job.result(timeout_s=LIMIT_S) == ["a", "b", "a", "b", "a"]
    child = await (await ledger.job("t-1-0-of-runs")).snapshot()
    assert child.order.limits == ("tenant_slots:a",)


# Looking into one.


async def test_a_look_into_a_run_calls_no_step_that_is_recorded_and_writes_nothing(ledger: Ledger) -> None:
    GATE["open"] = asyncio.Event()
    GATE["open"].set()
    async with working(ledger, works):
        job = await ledger.enqueue(works)
        await becomes(job, JobState.WAITING)
        await ledger.signal(job, go_on, 3)
        assert await job.result(timeout_s=LIMIT_S) == 6
    before = await job.history()
    ran = await debug.run(await debug.fetch(ledger, before), works, ledger.names)
    assert (ran.job.state, ran.job.result, CALLS["slow"]) == (JobState.COMPLETED, msgspec.Raw(b"6"), 2)
    assert await job.history() == before


# In memory.


async def test_a_run_in_memory_waits_for_time_that_a_test_moves() -> None:
    @workflow
    async def weeks(run: Run) -> int:
        await run.sleep(14 * 86_400)
        return await run.wait(go_on)

    ledger = MemoryLedger(weeks)
    job = await ledger.enqueue(weeks)
    await ledger.run_pending()
    assert await job.state() is JobState.WAITING
    await ledger.advance(14 * 86_400)
    await ledger.signal(job, go_on, 7)
    await ledger.run_pending()
    assert await job.result() == 7
