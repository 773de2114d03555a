"""A worker that stops when its queues have nothing left to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.support.limited import define
from tests.support.limits import LIMIT_S

from jobledger.ledger import Ledger, TaskRegistry, task
from jobledger.ledger.model.errors import ServerUnreachableError
from jobledger.ledger.model.log import Head
from jobledger.workers import Worker, idle
from jobledger.workers.idle import until_idle

pytestmark = pytest.mark.anyio


async def _run_until_idle(ledger: Ledger, *tasks: object, started: Callable[[], None] = lambda: None) -> None:
    worker = Worker(ledger, TaskRegistry(tasks))  # type: ignore[arg-type]
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            await worker.taking.wait()
            started()
            await until_idle(ledger, worker)
            worker.stop()


async def test_jobs_that_jobs_enqueue_are_done_too_and_later_ones_stay(ledger: Ledger) -> None:
    done: list[int] = []

    @task(queue="idle")
    async def count_down(number: int) -> None:
        done.append(number)
        if number:
            await ledger.enqueue(count_down, number - 1)

    await ledger.enqueue(count_down, 5)
    later = await ledger.enqueue(count_down.options(delay_s=3600), 0)
    await _run_until_idle(ledger, count_down)
    assert done == [5, 4, 3, 2, 1, 0]
    assert (await later.state()) == "scheduled"


async def test_it_waits_for_what_another_worker_runs(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, ended = anyio.Event(), anyio.Event(), list[str]()
    looks, look = list[bool](), idle._unsettled

    async def counted(ledger: Ledger, worker: Worker) -> bool:
        looks.append(await look(ledger, worker))
        return looks[-1]

    monkeypatch.setattr(idle, "_unsettled", counted)

    @task(queue="idle")
    async def slow() -> None:
        begun.set()
        await may_end.wait()

    async def second() -> None:
        await _run_until_idle(ledger, slow)
        ended.append("second")

    await ledger.enqueue(slow)
    first = Worker(ledger, TaskRegistry([slow]))
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await begun.wait()
            group.start_soon(second)
            while len(looks) < 3 and not ended:
                await anyio.sleep(0.01)
            assert set(looks) == {True}
            assert ended == []
            may_end.set()
            while not ended:
                await anyio.sleep(0.01)
            first.stop()


APP = """
from jobledger.ledger import task

@task(queue="idle")
def greet(name: str) -> str:
    return f"hello {name}"
"""


async def test_the_command_ends_with_0_and_refuses_many_processes(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "idle_app.py").write_text(APP, encoding="utf-8")
    where = ["--url", ledger.config.url, "--environment", ledger.names.environment]
    begin = [sys.executable, "-m", "jobledger.cli"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*begin, *words, "--app", "idle_app", *where],
            cwd=tmp_path,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )

    added = await anyio.to_thread.run_sync(lambda: run("enqueue", "greet", "name=Ada", "--id", "one"))
    assert added.returncode == 0, added.stderr
    ran = await anyio.to_thread.run_sync(lambda: run("worker", "--until-idle"))
    assert ran.returncode == 0, ran.stderr
    assert (await (await ledger.job("one")).result()) == "hello Ada"
    refused = await anyio.to_thread.run_sync(lambda: run("worker", "--until-idle", "--processes", "2"))
    assert (refused.returncode, "is for one process" in refused.stderr) == (2, True)


async def test_an_outage_of_a_moment_does_not_end_the_wait(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    @task(queue="idle")
    async def nothing() -> None: ...

    await ledger.enqueue(nothing)
    head, asked = ledger.log.head, 0

    async def away_once() -> Head:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ServerUnreachableError("no answer")
        return await head()

    away = partial(monkeypatch.setattr, ledger.log, "head", away_once)
    await _run_until_idle(ledger, nothing, started=away)
    assert asked > 1


async def test_jobs_that_wait_for_limits_are_done_as_long_as_these_admit_them(ledger: Ledger) -> None:
    done: list[int] = []

    @task(queue="idle")
    async def count(number: int) -> None:
        done.append(number)

    await define(ledger, "api", slots=2)
    for number in range(5):
        await ledger.enqueue(count.options(limits=("api",)), number)
    stuck = await ledger.enqueue(count.options(limits=("api", "undefined")), 9)
    await _run_until_idle(ledger, count)
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert (await stuck.state()) == "held"
