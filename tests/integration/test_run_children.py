"""Children of runs on a real server: jobs of their own whose results come back once, whatever dies meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.working import LIMIT_S, Connect, attempts, ended, working

from jobledger.audit.verify import verify
from jobledger.ledger import ChildFailedError, JobState, Ledger, Run, task, workflow

pytestmark = pytest.mark.anyio

CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()


@task(queue="kids", max_attempts=1)
async def double(number: int, by: int = 2) -> int:
    CALLS["double"] += 1
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return number * by


@task(queue="kids")
def large(size: int) -> str:
    return "x" * size


@workflow(queue="runs")
async def calls(run: Run, number: int) -> list[int]:
    first = await run.call(double, number)
    child = await run.start(double, number, by=10)
    CALLS["went on"] += 1
    second = await run.call(double.options(priority="high"), number=first)
    return [first, second, await child.result()]


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_a_child_is_a_job_of_its_own_and_its_result_comes_back(
    ledger: Ledger, concurrency: int
) -> None:
    async with working(ledger, calls, double, concurrency=concurrency):
        job = await ledger.enqueue(calls.options(id="p"), 3)
        assert await job.result(timeout_s=LIMIT_S) == [6, 12, 30]
    assert CALLS["double"] == 3
    child = await (await ledger.job("p-1-0-of-runs")).snapshot()
    assert (child.queue, child.task, child.state) == ("kids", "double", JobState.COMPLETED)
    assert child.member is not None
    assert (child.member.job, child.member.step) == ("p", "double")


@workflow(queue="runs", max_attempts=1)
async def many_large(run: Run, count: int, size: int) -> list[int]:
    pages = await run.map(large, [size + number for number in range(count)])
    await run.sleep(0.01)
    return sorted({len(page) for page in pages})[:2]


async def test_results_that_are_more_than_one_value_may_be_are_read_in_every_attempt(
    connected: Connect,
) -> None:
    """Scaled down: what 10,000 results of 1 KB are to 8 MiB, 60 are to 32 KiB."""
    async with connected(inline_bytes_max=1_024, payload_bytes_max=1 << 15) as ledger:
        async with working(ledger, many_large, large, concurrency=4):
            job = await ledger.enqueue(many_large, 60, 1_000)
            assert await job.result(timeout_s=LIMIT_S) == [1_000, 1_001]
            again = await ledger.rerun(job, from_step="sleep", task=many_large)
            assert await again.result(timeout_s=LIMIT_S) == [1_000, 1_001]
        step = (await job.snapshot()).steps["large"]
        assert step.result_ref is not None
        assert step.result_ref.size_bytes > 60_000
        report = await verify(ledger.log)
        assert report.sound, report.text()


async def test_results_that_are_more_than_a_run_may_read_fail_their_step_once(connected: Connect) -> None:
    async with (
        connected(inline_bytes_max=1_024, payload_bytes_max=2_048) as ledger,
        working(ledger, many_large, large, concurrency=4),
    ):
        job = await ended(await ledger.enqueue(many_large, 60, 1_900))
    assert (job.state, job.steps["large"].state) == (JobState.DEAD_LETTERED, "failed")
    assert job.error is not None
    assert job.error.type == "PayloadTooLargeError"
    assert job.error.message.startswith("step 'large': the result of step large has ")


@workflow(queue="runs", max_attempts=1)
async def maps(run: Run, numbers: list[int], limit: int) -> list[int]:
    found = await run.options(on_dead_letter="fail").map(double, numbers, limit=limit)
    CALLS["after"] += 1
    await run.sleep(0.01)
    return found


async def test_a_map_has_a_job_for_each_item_and_a_result_once(ledger: Ledger) -> None:
    numbers = list(range(60))
    async with working(ledger, maps, double, concurrency=4):
        job = await ledger.enqueue(maps, numbers, 5)
        assert await job.result(timeout_s=LIMIT_S) == [2 * each for each in numbers]
        none = await ledger.enqueue(maps, [], 0)
        assert await none.result(timeout_s=LIMIT_S) == []
    assert CALLS["double"] == 60


async def test_a_map_fails_with_its_first_failure_and_begins_no_more(ledger: Ledger) -> None:
    async with working(ledger, maps, double, concurrency=4):
        job = await ended(await ledger.enqueue(maps.options(id="bad"), [1, -2, *range(50)], 1))
    assert job.state is JobState.DEAD_LETTERED
    assert job.error is not None
    assert (job.error.kind, job.error.type) == ("child_failed", ChildFailedError.__name__)
    assert "item 1 of step 'double' failed: ValueError: -2 is below 0" in job.error.message
    assert "jobledger jobs show bad-1-1-of-runs" in job.error.message
    assert CALLS["double"] == 2
    assert len(await attempts(await ledger.job("bad"))) <= 2


@workflow(queue="runs")
async def settles(run: Run) -> list[str]:
    found = await run.map_settled(double, [1, -1, 3])
    return [str(each.value()) if not each.error else f"{each.state}: {each.error}" for each in found]


async def test_settled_children_are_told_one_by_one(ledger: Ledger) -> None:
    async with working(ledger, settles, double):
        job = await ledger.enqueue(settles)
        assert await job.result(timeout_s=LIMIT_S) == [
            "2",
            "dead_lettered: ValueError: -1 is below 0",
            "6",
        ]


@workflow(queue="runs")
async def large_result(run: Run) -> int:
    text = await run.call(large, 200_000)
    await run.sleep(0.01)
    return len(text)


async def test_a_large_result_of_a_child_is_kept_for_as_long_as_its_run_needs_it(ledger: Ledger) -> None:
    async with working(ledger, large_result, large, concurrency=1):
        job = await ledger.enqueue(large_result.options(id="big"))
        assert await job.result(timeout_s=LIMIT_S) == 200_000
        assert len(await (await ledger.job("big-1-0-of-runs")).result()) == 200_000
