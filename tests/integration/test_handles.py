"""Handles: results of the annotated type, verbs on one job, and every way to name a job."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from tests.support.limits import LIMIT_S
from tests.support.working import working

from jobledger.ledger import Context, JobState, Ledger, Retry, Snooze, sync, task
from jobledger.ledger.model.errors import (
    AmbiguousIdError,
    InvalidInputError,
    InvalidTokenError,
    JobCancelledError,
    JobNotFoundError,
    ResultMismatchError,
)
from jobledger.ledger.model.subjects import JobRef
from jobledger.ledger.server import EmbeddedServer


class Colour(Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    y: int


@dataclasses.dataclass
class Receipt:
    at: datetime
    colour: Colour
    points: tuple[Point, ...]


RECEIPT = Receipt(datetime(2026, 1, 2, tzinfo=UTC), Colour.RED, (Point(1, 2), Point(3, 4)))


@task
async def charge(cents: int) -> Receipt | Retry | Snooze:
    return RECEIPT


@task
def numbers_of(count: int) -> set[int]:
    return set(range(count))


@task
async def plain(cents: int):  # type: ignore[no-untyped-def] # an application need not annotate
    return RECEIPT


@task
async def promises(cents: int) -> int:
    answer: Any = "many"
    return answer  # type: ignore[no-any-return]


@task
async def tells(context: Context) -> None:
    context.progress(3, 4, "almost")
    await asyncio.sleep(1_000)


async def test_a_result_is_what_the_task_is_annotated_to_return(ledger: Ledger) -> None:
    async with working(ledger, charge, numbers_of, plain):
        made = await ledger.enqueue(charge, 100)
        assert await made.result(timeout_s=LIMIT_S) == RECEIPT
        assert await (await ledger.enqueue(numbers_of, 3)).result(timeout_s=LIMIT_S) == {0, 1, 2}
        found = await ledger.job(made.id, task=charge)
        assert await found.result() == RECEIPT
        unknown = await (await ledger.job(made)).result()
        assert unknown["points"] == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
        assert await (await ledger.enqueue(plain, 100)).result(timeout_s=LIMIT_S) == unknown


async def test_a_result_of_another_type_is_an_error_that_names_job_and_task(ledger: Ledger) -> None:
    async with working(ledger, promises):
        job = await ledger.enqueue(promises, 1)
        with pytest.raises(ResultMismatchError, match=f"{job.id} is not what task promises") as caught:
            await job.result(timeout_s=LIMIT_S)
        assert (caught.value.job_id, caught.value.task) == (job.id, "promises")
        assert await (await ledger.job(job.id)).result() == "many"


class Order(pydantic.BaseModel):
    lines: list[int]
    file: Path | None = None


@task
async def ship(order: Order, to: Path) -> Order:
    assert isinstance(order, Order)
    return order.model_copy(update={"file": to / "order.json"})


@task
def folder_of(file: Path) -> Path:
    return file.parent


async def test_models_and_paths_are_inputs_and_results(ledger: Ledger) -> None:
    async with working(ledger, ship, folder_of):
        job = await ledger.enqueue(ship, Order(lines=[1, 2]), to=Path("/out"))
        assert await job.result(timeout_s=LIMIT_S) == Order(lines=[1, 2], file=Path("/out/order.json"))
        many = await ledger.enqueue_many(ship, ({"order": {"lines": [n]}, "to": "/out"} for n in range(3)))
        assert many.created == 3
        parent = await ledger.enqueue(folder_of, Path("/a/b"))
        assert await parent.result(timeout_s=LIMIT_S) == Path("/a")
        with pytest.raises(InvalidInputError, match=r"lines\.0: Input should be a valid integer"):
            await ledger.enqueue_many(ship, [{"order": {"lines": ["x"]}, "to": "/out"}])


async def test_a_job_of_another_task_is_refused(ledger: Ledger) -> None:
    job = await ledger.enqueue(numbers_of, 3)
    with pytest.raises(InvalidInputError, match=f"job {job.id} runs task numbers_of, not charge"):
        await ledger.job(job, task=charge)
    no_task: Any = 7
    with pytest.raises(InvalidInputError, match="7 is not a task: decorate the function with @task"):
        await ledger.job(job, task=no_task)
    later = numbers_of.options(delay_s=1)
    assert (await ledger.job(job, task=later)).ref == job.ref


async def test_a_handle_has_the_verbs_of_its_job(ledger: Ledger) -> None:
    later = await ledger.enqueue(numbers_of.options(delay_s=3_600), 1)
    assert (await later.retry(reason="now", by="ada")).state is JobState.QUEUED
    assert (await later.cancel(reason="not needed", by="ada")).cancel_reason == "not needed"
    assert await later.state() is JobState.CANCELLED
    with pytest.raises(JobCancelledError):
        await later.result(timeout_s=LIMIT_S)
    assert await later.progress() is None
    async with working(ledger, tells):
        job = await ledger.enqueue(tells)
        async with asyncio.timeout(LIMIT_S):
            while (told := await job.progress()) is None:
                await asyncio.sleep(0.01)
        await job.cancel()
    assert (told.done, told.total, told.note) == (3, 4, "almost")


async def test_whatever_takes_a_job_takes_its_id_its_handle_or_its_ref(ledger: Ledger) -> None:
    for way in ("id", "handle", "ref"):
        job = await ledger.enqueue(numbers_of.options(delay_s=3_600), 1)
        name: Any = {"id": job.id, "handle": job, "ref": job.ref}[way]
        assert (await ledger.job(name)).ref == job.ref
        assert (await ledger.retry(name)).state is JobState.QUEUED
        assert (await ledger.cancel(name)).state is JobState.CANCELLED
        dead = await _dead_letter(ledger)
        name = {"id": dead.job_id, "handle": await ledger.job(dead.job_id), "ref": dead}[way]
        assert (await ledger.requeue(name, reason="again")).state is JobState.QUEUED
        dead = await _dead_letter(ledger)
        name = {"id": dead.job_id, "handle": await ledger.job(dead.job_id), "ref": dead}[way]
        assert (await ledger.discard(name, reason="no")).state is JobState.DISCARDED


@task(max_attempts=1)
async def fails() -> None:
    raise ValueError("no")


async def _dead_letter(ledger: Ledger) -> JobRef:
    async with working(ledger, fails):
        job = await ledger.enqueue(fails)
        assert (await job.wait(timeout_s=LIMIT_S)).state is JobState.DEAD_LETTERED
    return job.ref


async def test_what_names_no_job_is_told_so(ledger: Ledger) -> None:
    job = await ledger.enqueue(numbers_of.options(id="twice", delay_s=3_600), 1)
    await ledger.enqueue(numbers_of.options(id="twice", queue="other", delay_s=3_600), 1)
    nothing: Any = 7
    with pytest.raises(InvalidInputError, match="7 names no job: give its id, its handle or its JobRef"):
        await ledger.cancel(nothing)
    with pytest.raises(InvalidInputError, match="job twice is in queue default, not in other"):
        await ledger.cancel(job, queue="other")
    with pytest.raises(AmbiguousIdError):
        await ledger.cancel("twice")
    with pytest.raises(InvalidTokenError):
        await ledger.cancel("two words")
    with pytest.raises(JobNotFoundError):
        await ledger.cancel(JobRef(queue="default", job_id="nobody"))
    assert (await ledger.cancel("twice", queue="other")).queue == "other"
    assert await job.state() is JobState.SCHEDULED


def test_blocking_code_has_the_same_verbs(nats_server: EmbeddedServer) -> None:
    with sync.connect(nats_server.url, environment="t_handles", ledger_bytes_max=1 << 24) as ledger:
        job = ledger.enqueue(numbers_of.options(delay_s=3_600), 3)
        assert ledger.retry(job.id).state is JobState.QUEUED
        assert job.progress() is None
        assert ledger.job(job.ref, task=numbers_of).cancel(reason="no").cancel_reason == "no"
        later = ledger.enqueue(numbers_of.options(delay_s=3_600), 3)
        assert later.retry().state is JobState.QUEUED
        with pytest.raises(InvalidInputError, match="names no job"):
            ledger.discard(None)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
