"""Code that must type-check; checked by test_typing.py, never run."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

from pydantic import BaseModel

from jobledger.ledger import (
    Cancel,
    Context,
    Job,
    JobHandle,
    JobState,
    Ledger,
    Limit,
    Queue,
    Retry,
    Snooze,
    sync,
    task,
)
from jobledger.testing import MemoryLedger, MovableClock, assert_enqueued


@task
async def add(a: int, b: int = 1) -> int:
    return a + b


@task(queue="mail", max_attempts=3)
def shout(text: str) -> str:
    return text.upper()


@task
async def with_context(context: Context, a: int) -> list[int]:
    return [a, context.attempt]


@task(timeout_s=3)
def with_context_in_thread(context: Context, a: int) -> dict[str, int]:
    return {context.job_id: a}


@task
async def fetch(context: Context, page: int) -> list[str] | Retry | Snooze | Cancel:
    return [str(page)]


@task
def poll() -> Snooze:
    return Snooze(60)


@task(queue=Queue("mail", fair="tenant"), limits=(Limit("tenant", key="tenant", slots=5), "global"))
async def limited(tenant: str) -> int:
    return len(tenant)


async def use(ledger: Ledger) -> None:
    assert_type(await ledger.enqueue(limited, "acme"), JobHandle[int])
    chosen = limited.options(queue=Queue("other"), limits=["api:x", Limit("api", rate=5.0)], tenant="acme")
    assert_type(await ledger.enqueue(chosen, tenant="acme"), JobHandle[int])
    assert_type(await ledger.enqueue(add, 1), JobHandle[int])
    assert_type(await ledger.enqueue(add, 1, b=2), JobHandle[int])
    assert_type(await ledger.enqueue(add.options(id="x", priority="high"), a=1), JobHandle[int])
    assert_type(await ledger.enqueue(shout, "x"), JobHandle[str])
    assert_type(await ledger.enqueue(with_context, 1), JobHandle[list[int]])
    assert_type(await ledger.enqueue(with_context_in_thread, a=1), JobHandle[dict[str, int]])
    assert_type(await (await ledger.enqueue(shout, "x")).result(timeout_s=1), str)
    assert_type(await (await ledger.enqueue(add, 1)).result(), int)
    await ledger.enqueue_many(add, ({"a": n} for n in range(3)))


async def call(context: Context) -> None:
    """A task that is called keeps the types of its function."""
    assert_type(await add(1, b=2), int)
    assert_type(shout("x"), str)
    assert_type(await with_context(context, 1), list[int])
    assert_type(with_context_in_thread(context, a=1), dict[str, int])
    assert_type(await fetch(context, 1), list[str] | Retry | Snooze | Cancel)


async def outcomes_are_no_results(ledger: Ledger) -> None:
    assert_type(await ledger.enqueue(fetch, 1), JobHandle[list[str]])
    assert_type(await ledger.enqueue(poll), JobHandle[None])


async def jobs(ledger: Ledger, job: JobHandle[int]) -> None:
    """Whatever takes a job takes its id, its handle or its ref."""
    assert_type(await ledger.job("x"), JobHandle[Any])
    assert_type(await ledger.job("x", queue="mail", task=fetch), JobHandle[list[str]])
    assert_type(await ledger.job(job.ref, task=add), JobHandle[int])
    assert_type(await ledger.job(job, task=fetch.options(id="x")), JobHandle[list[str]])
    assert_type(await job.state(), JobState)
    assert_type(await job.cancel(reason="r", by="ada"), Job)
    assert_type(await job.retry(), Job)
    await job.progress()
    for each in ("x", job, job.ref):
        await ledger.cancel(each)
        await ledger.retry(each)
        await ledger.requeue(each, attempts=2)
        await ledger.discard(each, reason="r")


def blocking(ledger: sync.Ledger) -> None:
    assert_type(ledger.enqueue(fetch, 1), sync.JobHandle[list[str]])
    assert_type(ledger.enqueue(add, 1).result(timeout_s=1), int)
    assert_type(ledger.job("x", task=add).cancel(), Job)


async def children(context: Context) -> None:
    assert_type(context.ledger, Ledger)
    assert_type(await context.ledger.enqueue(fetch, 1), JobHandle[list[str]])
    assert_type(context.claim_epoch, int)


def children_in_thread(context: Context) -> None:
    assert_type(context.sync_ledger.enqueue(add, 1), sync.JobHandle[int])
    assert_type(context.sync_ledger.enqueue(add, 1).result(), int)


class Order(BaseModel):
    lines: list[int]


@task
async def ship(order: Order, to: Path) -> Order | Retry:
    return order


async def models(ledger: Ledger) -> None:
    assert_type(await ledger.enqueue(ship, Order(lines=[1]), to=Path("/out")), JobHandle[Order])


async def in_memory(context: Context) -> None:
    ledger = MemoryLedger(clock=MovableClock())
    assert_type(await ledger.enqueue(fetch, 1), JobHandle[list[str]])
    assert_type(await ledger.run_pending(), list[Job])
    assert_type(await ledger.advance(60), list[Job])
    assert_type(await ledger.advance(timedelta(days=1)), list[Job])
    assert_type(ledger.clock.now(), datetime)
    assert_type(await assert_enqueued(ledger, fetch, count=1), list[JobHandle[Any]])
    made = Context.for_test(attempt=2, checkpoint={"row": 1}, ledger=ledger)
    made.channel.stop_reason = "deploy"
    assert_type(made.channel.heartbeats, int)
    assert_type(await ship(Order(lines=[1]), to=Path("/out")), Order | Retry)
