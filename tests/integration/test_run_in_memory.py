"""`run_in_memory`: workflows from beginning to end without a server, on a clock that jumps."""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobledger.audit.verify import verify
from jobledger.ledger import (
    Backoff,
    ChildFailedError,
    ConfigurationError,
    Context,
    Graph,
    InvalidInputError,
    JobCancelledError,
    JobFailedError,
    JobState,
    Run,
    RunEnd,
    Signal,
    UnknownTaskError,
    step,
    task,
    workflow,
)
from jobledger.ledger.model.events import event_type
from jobledger.testing import MemoryLedger, RunReport, after, run_in_memory

pytestmark = pytest.mark.anyio
DAY = 86_400.0


class Approval(msgspec.Struct):
    by: str
    yes: bool


approved = Signal("approved", Approval)
CALLS: list[str] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


@step
async def charge(order: str, cents: int) -> str:
    CALLS.append(f"charge {order} {cents}")
    return f"charge-{order}"


@step
def refund(charge_id: str) -> None:
    CALLS.append(f"refund {charge_id}")


@step(run_in="process")
def ship(order: str) -> str:
    return f"{os.getpid()} {order}"


@workflow(queue="orders", max_attempts=2, backoff=Backoff(kind="fixed", base_s=60, jitter=0))
async def order(run: Run, order: str, cents: int) -> str:
    charge_id = await run.step(charge, order, cents)
    run.on_failure(refund, charge_id)
    if cents > 100:
        answer = await run.wait(approved, timeout_s=3 * DAY)
        if not answer.yes:
            raise PermissionError(f"{answer.by} said no")
    await run.sleep(timedelta(days=1))
    return charge_id


@task(queue="pages", max_attempts=3, backoff=Backoff(kind="fixed", base_s=60, jitter=0))
async def fetch_page(context: Context, page: int) -> int:
    if context.attempt <= page % 3:
        raise ConnectionError("the line is bad")
    return 10 * page


async def _sound(report: RunReport[Any]) -> bool:
    return (await verify(report.ledger.log)).sound


async def test_a_run_ends_with_its_result_after_days_that_take_no_time() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    report = await run_in_memory(
        order, "77", cents=5_000, signals=[after(approved, Approval("eve", yes=True), days=2)], at=begin
    )
    assert (report.result, report.state, report.error) == ("charge-77", JobState.COMPLETED, None)
    assert report.virtual == timedelta(days=3)
    assert list(report.steps) == ["charge", "approved", "sleep"]
    assert [event_type(each.event) for each in report.history].count("paused") == 2
    assert report.history[-1].event.at - begin < timedelta(days=3, seconds=1)
    assert CALLS == ["charge 77 5000"]
    assert await _sound(report)


async def test_a_refusal_is_retried_undone_and_told() -> None:
    report = await run_in_memory(order, "77", 5_000, signals=[after(approved, Approval("eve", yes=False))])
    assert report.error is not None
    assert (report.error.type, report.error.message) == ("PermissionError", "eve said no")
    assert report.virtual == timedelta(seconds=60)
    assert CALLS == ["charge 77 5000", "refund charge-77"]
    with pytest.raises(JobFailedError, match="eve said no"):
        _ = report.result
    late = await run_in_memory(
        order, "77", 5_000, signals=[after(approved, Approval("eve", yes=True), days=4)]
    )
    assert late.error is not None
    assert late.error.type == "TimeoutError"
    assert await _sound(report)


async def test_thirty_days_with_a_hundred_children_cost_little() -> None:
    @workflow(queue="etl")
    async def month(run: Run) -> int:
        total = 0
        for _ in range(30):
            await run.sleep(timedelta(days=1))
        total += sum(await run.map(fetch_page, range(100), limit=20))
        return total

    await run_in_memory(order, "1", 1)  # what is imported and made once
    began = time.process_time()
    report = await run_in_memory(month, tasks=[fetch_page])
    assert time.process_time() - began < 0.5 * _SLOWNESS
    assert report.result == 10 * sum(range(100))
    assert len(report.children) == 100
    assert report.virtual > timedelta(days=30)
    assert await _sound(report)


#: It takes 0.2 s of CPU on a quiet machine; where processes share CPUs the same work counts more seconds.
_SLOWNESS = 4.0


async def test_steps_and_children_have_stand_ins() -> None:
    @workflow(queue="etl")
    async def child(run: Run, page: int) -> int:
        raise AssertionError(page)

    @workflow(queue="etl")
    async def whole(run: Run, name: str) -> list[Any]:
        found: list[Any] = [await run.step(charge, name, 3), await run.step(ship, name)]
        found += await run.map(fetch_page, [1, 2])
        return [*found, await run.call(child, page=4)]

    async def fake_child(page: int) -> int:
        return -page

    def fake_charge(order: str, cents: int) -> str:
        return f"fake {order} {cents}"

    def fake_page(page: int) -> int:
        return page

    fakes: dict[Any, Callable[..., Any]] = {charge: fake_charge, fetch_page: fake_page, child: fake_child}
    report = await run_in_memory(whole, "a", fakes=fakes)
    assert report.result == ["fake a 3", f"{os.getpid()} a", 1, 2, -4]
    assert CALLS == []
    with pytest.raises(
        ConfigurationError, match="only a step, a task or a function can have a fake, got 'x'"
    ):
        await run_in_memory(whole, "a", fakes={"x": fake_page})
    with pytest.raises(ConfigurationError, match="must be a function"):
        await run_in_memory(whole, "a", fakes={charge: "x"})  # type: ignore[dict-item]


@pytest.mark.parametrize("branches", [False, True])
async def test_a_crash_after_a_step_leaves_it_done_once(branches: bool) -> None:
    @step
    async def second(name: str) -> str:
        CALLS.append(f"second {name}")
        return name

    @workflow(queue="etl", max_attempts=1)
    async def whole(run: Run) -> list[str]:
        async def one() -> str:
            return await run.step(charge, "a", 1)

        async def other() -> str:
            await run.sleep(1)
            return await run.step(second, "b")

        if branches:
            return list(await run.gather(one, other))
        return [await one(), await other()]

    key = "one/charge" if branches else "charge"
    report = await run_in_memory(whole, crash_after=key)
    assert report.result == ["charge-a", "b"]
    assert CALLS == ["charge a 1", "second b"]
    assert [attempt.state for attempt in report.job.attempts][:2] == ["lost", "paused"]
    assert await _sound(report)
    with pytest.raises(
        AssertionError, match="crash_after names step 'chrage', which never ended; steps of the run:"
    ):
        await run_in_memory(whole, crash_after="chrage")


async def test_what_nothing_can_wake_is_told() -> None:
    forever = Signal("forever", int)

    @workflow(queue="etl")
    async def waits(run: Run) -> int:
        return await run.wait(forever)

    @workflow(queue="etl")
    async def whole(run: Run) -> int:
        return await run.call(waits)

    with pytest.raises(AssertionError) as raised:
        await run_in_memory(whole.options(id="top"), tasks=[waits])
    said = str(raised.value)
    assert said.startswith("nothing can ever wake run top: it waits for 1 of 1 child of 'waits'")
    assert "run top-1-0 of waits: it waits for signal 'forever'" in said
    assert "nobody has sent it" in said


async def test_a_deadline_cancels_the_run_and_undoes_it() -> None:
    @workflow(queue="orders", deadline_s=2 * DAY)
    async def hasty(run: Run) -> None:
        run.on_failure(refund, await run.step(charge, "a", 1))
        await run.wait(approved)

    report = await run_in_memory(hasty)
    assert (report.state, report.job.cancel_reason) == (JobState.CANCELLED, "deadline")
    assert report.virtual == timedelta(days=2)
    assert CALLS == ["charge a 1", "refund charge-a"]


async def test_bad_uses_are_told_at_once() -> None:
    @workflow(queue="etl")
    async def whole(run: Run) -> list[int]:
        return await run.map(fetch_page, [1])

    with pytest.raises(UnknownTaskError, match="fetch_page"):
        await run_in_memory(whole)
    with pytest.raises(InvalidInputError):
        await run_in_memory(order, "77", cents="many")
    with pytest.raises(ConfigurationError, match="before the run begins"):
        after(approved, Approval("eve", yes=True), days=-1)

    @workflow(queue="etl")
    async def endless(run: Run) -> None:
        while True:
            await run.sleep(1)

    with pytest.raises(ConfigurationError, match="20 jobs were run"):
        await run_in_memory(endless, attempts_max=20)


async def test_failed_children_callbacks_and_what_follows_in_another_run() -> None:
    told: list[str] = []

    @task(queue="mail")
    async def tell(end: RunEnd) -> None:
        told.append(f"{end.id} {end.state}")

    @workflow(queue="etl", on_success=tell, on_fail=tell, give_up_on=(ChildFailedError,))
    async def whole(run: Run, left: int) -> int:
        outcomes = await run.map_settled(fetch_page, [left])
        assert outcomes[0].state == "completed"
        if left:
            return run.again(left - 1)
        return sum([each.value() for each in outcomes])

    report = await run_in_memory(whole.options(id="w"), 2, tasks=[fetch_page, tell])
    assert (report.result, report.job.id) == (0, "w-r3")
    assert report.virtual == timedelta(minutes=3)
    assert told == ["w-end", "w-r2-end", "w-r3 completed"][2:]
    assert len(report.children) == 3
    assert await _sound(report)


async def test_graphs_batches_and_runs_go_on_in_any_ledger_in_memory() -> None:
    ledger = MemoryLedger(fetch_page, order)
    graph = Graph("pages", limit=1)
    total = graph.add(fetch_page, 3)
    graph.after(total).add(fetch_page, 6)
    handle = await ledger.run_graph(graph, id="nightly")
    await ledger.run_pending()
    assert await handle.result(timeout_s=5) == {"fetch_page": 30, "fetch_page#2": 60}
    batch = await ledger.enqueue_many(fetch_page, [{"page": 3}, {"page": 4}], batch="pages-1")
    assert batch.created == 2
    await ledger.run_pending()
    await ledger.advance(3600)
    assert (await (await ledger.job("pages-1")).snapshot()).state is JobState.COMPLETED
    run = await ledger.enqueue(order.options(id="order-1"), "1", cents=500)
    await ledger.run_pending()
    await ledger.signal(run, approved, Approval("eve", yes=True))
    await ledger.advance(timedelta(days=2))
    assert await run.result(timeout_s=5) == "charge-1"
    stopped = await ledger.enqueue(order.options(id="order-2"), "2", cents=500)
    await ledger.run_pending()
    await stopped.cancel(reason="enough")
    await ledger.run_pending()
    with pytest.raises(JobCancelledError, match="enough"):
        await stopped.result(timeout_s=5)
    assert CALLS[-1] == "refund charge-2"
    assert (await verify(ledger.log)).sound


async def test_the_tests_that_the_docs_show_pass() -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "shown"}
    for block in [blocks[0], *(each for each in blocks if "run_in_memory" in each)]:
        exec(compile(block, "testing.md", "exec", dont_inherit=True), names)
    shown = [
        name for name in names if name.startswith("test_") and not inspect.signature(names[name]).parameters
    ]
    assert shown
    for name in shown:
        await names[name]()
