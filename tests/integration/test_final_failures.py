"""Failures that no other attempt can mend: `Fail`, and a workflow whose code fails twice with nothing new between."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobledger.audit.verify import verify
from jobledger.ledger import (
    Backoff,
    ConfigurationError,
    Fail,
    JobHandle,
    JobState,
    Run,
    Signal,
    step,
    task,
    workflow,
)
from jobledger.ledger.model.events import event_type
from jobledger.testing import MemoryLedger, RunReport, after, run_in_memory

pytestmark = pytest.mark.anyio

approved = Signal("approved", bool)
CALLS: list[str] = []
BACKOFF = Backoff(kind="fixed", base_s=60, jitter=0)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


@step
async def charge(order: str) -> str:
    CALLS.append(f"charge {order}")
    return f"charge-{order}"


@step(max_attempts=3, backoff=BACKOFF)
async def refund(charge_id: str, fails: int) -> None:
    CALLS.append(f"refund {charge_id}")
    if len(CALLS) - 1 <= fails:
        raise ConnectionError("the bank does not answer")


def ends(report: RunReport[Any]) -> list[str]:
    """Return how each attempt of a run ended."""
    return [each.state for each in report.job.attempts]


async def sound(ledger: MemoryLedger) -> bool:
    report = await verify(ledger.log)
    assert report.sound, report.text()
    return True


@task(max_attempts=5, backoff=BACKOFF)
async def send(to: str) -> int | Fail:
    return Fail("there is no such address") if to == "nobody" else len(to)


@task(max_attempts=5)
def send_blocking(to: str) -> int | Fail:
    return Fail(f"there is no {to}")


async def test_a_task_that_returns_fail_is_a_dead_letter_at_once() -> None:
    ledger = MemoryLedger()
    jobs: list[JobHandle[int]] = [
        await ledger.enqueue(send, "nobody"),
        await ledger.enqueue(send_blocking, "house"),
    ]
    right = await ledger.enqueue(send, "ada")
    await ledger.run_pending()
    assert await right.result() == 3
    for job, words in zip(jobs, ("there is no such address", "there is no house"), strict=True):
        found = await job.snapshot()
        assert (found.state, found.dead_reason, found.attempts_count) == (
            JobState.DEAD_LETTERED,
            "rejected",
            1,
        )
        assert found.error is not None
        assert (found.error.type, found.error.message) == ("Fail", words)
    assert await sound(ledger)


def test_fail_needs_a_reason() -> None:
    with pytest.raises(ConfigurationError, match="Fail needs a reason"):
        Fail("")
    with pytest.raises(ConfigurationError, match="Fail's reason must be a text"):
        Fail(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@workflow(max_attempts=5, backoff=BACKOFF)
async def order(run: Run, order: str, fails: int = 0) -> str | Fail:
    charge_id = await run.step(charge, order)
    run.on_failure(refund, charge_id, fails)
    if not await run.wait(approved):
        return Fail("they said no")
    return charge_id


async def test_a_run_that_returns_fail_is_undone_at_once() -> None:
    report = await run_in_memory(order, "77", signals=[after(approved, False, days=1)])
    assert (ends(report), report.virtual) == (["paused", "failed"], timedelta(days=1))
    assert report.error is not None
    assert (report.error.type, report.error.message) == ("Fail", "they said no")
    assert report.job.dead_reason == "rejected"
    assert CALLS == ["charge 77", "refund charge-77"]
    assert await sound(report.ledger)


async def test_its_undos_are_tried_again_and_end_it_for_what_it_failed_for() -> None:
    report = await run_in_memory(order, "77", fails=2, signals=[after(approved, False)])
    assert ["charge 77", *["refund charge-77"] * 3] == CALLS
    assert report.error is not None
    assert (report.error.message, report.job.dead_reason) == ("they said no", "rejected")
    assert await sound(report.ledger)


@workflow(max_attempts=5, backoff=BACKOFF)
async def refuses(run: Run, order: str, fails: int = 0) -> str:
    charge_id = await run.step(charge, order)
    run.on_failure(refund, charge_id, fails)
    if not await run.wait(approved):
        raise PermissionError("they said no")
    return charge_id


@pytest.mark.parametrize("fails", [0, 1])
async def test_code_that_fails_twice_with_nothing_new_between_is_undone(fails: int) -> None:
    report = await run_in_memory(refuses, "77", fails, signals=[after(approved, False)])
    assert report.error is not None
    assert (report.error.type, report.error.message) == ("PermissionError", "they said no")
    assert (report.job.dead_reason, ends(report).count("failed")) == ("rejected", 2)
    assert ["charge 77", *["refund charge-77"] * (1 + fails)] == CALLS
    assert report.virtual == timedelta(seconds=60 * (1 + fails))
    assert await sound(report.ledger)


async def test_code_whose_error_changes_is_tried_as_often_as_it_may() -> None:
    @workflow(max_attempts=4, backoff=BACKOFF)
    async def looks_outside(run: Run) -> str:
        await run.step(charge, "77")
        CALLS.append("look")
        if len(CALLS) < 5:
            raise ConnectionError(f"no answer to request {len(CALLS)}")
        return "found"

    report = await run_in_memory(looks_outside)
    assert (report.result, ends(report)) == ("found", ["failed", "failed", "failed", "completed"])


async def test_code_that_names_what_is_retried_is_tried_as_often_as_it_may() -> None:
    @workflow(max_attempts=4, backoff=BACKOFF, retry_on=(ConnectionError,))
    async def looks_outside(run: Run) -> str:
        await run.step(charge, "77")
        CALLS.append("look")
        raise ConnectionError("no answer")

    report = await run_in_memory(looks_outside)
    assert (report.job.dead_reason, ends(report)) == ("exhausted", ["failed"] * 4)


async def test_a_step_that_fails_is_something_new_in_each_attempt() -> None:
    @step
    async def fetch() -> int:
        CALLS.append("fetch")
        if len(CALLS) < 4:
            raise ConnectionError("no answer")
        return len(CALLS)

    @workflow(max_attempts=5, backoff=BACKOFF)
    async def fetches(run: Run) -> int:
        return await run.step(fetch)

    report = await run_in_memory(fetches)
    assert (report.result, ends(report)) == (4, ["failed", "failed", "failed", "completed"])


async def test_code_that_goes_on_between_two_equal_errors_is_tried_again() -> None:
    @workflow(max_attempts=5, backoff=BACKOFF)
    async def goes_on(run: Run) -> int:
        for number in range(3):
            await run.step(charge, str(number))
            if CALLS.count("told") <= number:
                CALLS.append("told")
                raise ValueError("not yet")
        return 3

    report = await run_in_memory(goes_on)
    assert (report.result, ends(report)) == (3, ["failed", "failed", "failed", "completed"])


async def test_a_run_that_was_given_up_goes_on_once_its_code_is_mended() -> None:
    is_mended: list[bool] = []

    @workflow(max_attempts=5, backoff=BACKOFF)
    async def broken(run: Run) -> str:
        said = await run.step(charge, "77")
        return said if is_mended else said[99]

    report = await run_in_memory(broken)
    assert (report.error is not None, ends(report)) == (True, ["failed", "failed"])
    is_mended.append(True)
    job = await report.ledger.job(report.job.id)
    await report.ledger.requeue(job)
    await report.ledger.run_pending()
    assert await job.result() == "charge-77"
    assert [event_type(each.event) for each in await job.history()].count("step_completed") == 1
    assert await sound(report.ledger)


async def test_a_wait_that_was_not_met_in_time_ends_the_run() -> None:
    @workflow(max_attempts=5, backoff=BACKOFF)
    async def waits(run: Run) -> bool:
        return await run.wait(approved, timeout_s=5)

    report = await run_in_memory(waits)
    assert (ends(report), report.virtual) == (["paused", "failed", "failed"], timedelta(seconds=65))
