"""Tasks and hooks that do what nobody should: each harms its own attempt, never the worker, the ledger or another job."""

from __future__ import annotations

import asyncio
import sys
from decimal import Decimal
from typing import Any

import pytest
from tests.support.working import ended, types, until, working

from jobledger.ledger import Backoff, Cancel, Context, Hooks, JobState, Ledger, Notice, Retry, task
from jobledger.ledger.model.errors import ConfigurationError, InvalidInputError

pytestmark = pytest.mark.anyio

AT_ONCE = Backoff(base_s=0)


@task
async def counts_oddly(context: Context, done: str, note: str) -> None:
    context.progress(Decimal(done), True, [note])  # type: ignore[arg-type]
    await context.checkpoint(done)  # which comes after it


@task
def counts_oddly_in_a_thread(context: Context, done: str, note: str) -> None:
    context.progress(Decimal(done), True, [note])  # type: ignore[arg-type]
    context.checkpoint(done)  # type: ignore[unused-awaitable]


@pytest.mark.parametrize("odd", [counts_oddly, counts_oddly_in_a_thread], ids=lambda odd: odd.name)
async def test_progress_of_any_number_and_note_is_readable(ledger: Ledger, odd: Any) -> None:
    async with working(ledger, odd):
        job = await ended(await ledger.enqueue(odd, done="0.5", note="caf\\udce9"))
    assert (job.state, job.progress and job.progress.done) == (JobState.COMPLETED, 0.5)


@task(max_attempts=1)
async def counts_with_words(context: Context) -> None:
    context.progress("a half")  # type: ignore[arg-type]


@task(max_attempts=1)
async def cancels_with_a_number() -> Cancel:
    return Cancel(404)  # type: ignore[arg-type]


@task(max_attempts=1)
async def retries_with_a_number() -> Retry:
    return Retry(0, 404)  # type: ignore[arg-type]


class Unsayable(Exception):  # noqa: N818 - as users name them
    def __str__(self) -> str:  # noqa: PLE0307
        sys.exit(3)


class Unprintable(SyntaxError):  # noqa: N818
    def __init__(self) -> None:
        line: Any = 5  # which traceback trips over
        super().__init__("no", ("file", 1, 1, line))


@task(max_attempts=1)
async def fails_unsayably() -> None:
    raise Unsayable


@task(max_attempts=1)
async def fails_unprintably() -> None:
    raise Unprintable


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        (counts_with_words, "InvalidInputError"),
        (cancels_with_a_number, "ConfigurationError"),
        (retries_with_a_number, "ConfigurationError"),
        (fails_unsayably, "Unsayable"),
        (fails_unprintably, "Unprintable"),
    ],
)
async def test_it_is_the_failure_of_its_own_attempt(ledger: Ledger, odd: Any, error: str) -> None:
    async with working(ledger, odd):
        job = await ended(await ledger.enqueue(odd))
    assert job.state is JobState.DEAD_LETTERED
    assert job.error is not None
    assert job.error.type == error


@task
async def cancels_with_many_words() -> Cancel:
    return Cancel("caf\udce9" + 2_000_000 * "x")


async def test_a_long_reason_is_cut_to_what_an_event_holds(ledger: Ledger) -> None:
    async with working(ledger, cancels_with_many_words):
        job = await ended(await ledger.enqueue(cancels_with_many_words))
    assert job.state is JobState.CANCELLED
    assert job.cancel_reason.startswith("caf?xxx")
    assert len(job.cancel_reason) == 2_000


async def test_an_operators_reason_of_a_wrong_type_is_refused_and_changes_nothing(ledger: Ledger) -> None:
    job = await ledger.enqueue(cancels_with_a_number.options(delay_s=1_000))
    with pytest.raises(InvalidInputError, match="cannot be recorded"):
        await ledger.cancel(job.ref, reason=None)  # type: ignore[arg-type]
    assert (await job.snapshot()).state is JobState.SCHEDULED


@task(max_attempts=1, backoff=AT_ONCE)
async def cancels_its_own_attempt() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def test_an_attempt_that_cancels_itself_does_not_hold_its_job_for_ever(ledger: Ledger) -> None:
    async with working(ledger, cancels_its_own_attempt, ack_wait_s=1.0):
        job = await ended(await ledger.enqueue(cancels_its_own_attempt))
    assert job.state is JobState.DEAD_LETTERED


@task
async def awaits_no_checkpoint(context: Context) -> str:
    for number in range(3):
        context.checkpoint(number)  # type: ignore[unused-awaitable]
    return "done"


async def test_a_checkpoint_that_is_not_awaited_is_stored_before_the_outcome(ledger: Ledger) -> None:
    async with working(ledger, awaits_no_checkpoint):
        job = await ledger.enqueue(awaits_no_checkpoint)
        await ended(job)
    assert await types(job) == ["queued", "started", *3 * ["checkpointed"], "completed"]


def exits(_notice: Notice) -> None:
    sys.exit(9)


async def interrupts(_notice: Notice) -> None:
    raise KeyboardInterrupt


@task(hooks=Hooks(on_start=exits, on_success=interrupts))
async def has_hooks_that_exit() -> None:
    return


async def test_a_hook_that_exits_ends_nothing(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    async with working(ledger, has_hooks_that_exit):
        first = await ended(await ledger.enqueue(has_hooks_that_exit))
        second = await ended(await ledger.enqueue(has_hooks_that_exit))
        await until(lambda: caplog.text.count("failed for job") == 4)
    assert first.state is second.state is JobState.COMPLETED


def test_a_hook_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hook on_start must be a function, got 'page_someone'"):
        Hooks(on_start="page_someone")  # type: ignore[arg-type]


@pytest.mark.parametrize("delay_s", [10**400, float("nan"), True, -1])
def test_a_delay_that_is_none_is_refused(delay_s: float) -> None:
    with pytest.raises(ConfigurationError):
        Retry(delay_s)
    with pytest.raises(ConfigurationError):
        Backoff(base_s=delay_s)
