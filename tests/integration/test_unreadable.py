"""Rubbish that any app of the account publishes below the ledger's subjects: workers, clients and readers go on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from nats.aio.client import Client
from tests.support.limits import LIMIT_S
from tests.support.working import ended, types, working

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, task
from jobledger.ledger.model.log import Log

pytestmark = [pytest.mark.anyio, pytest.mark.unsound_ledger("messages that are no events are published")]


@task(queue="rubbish")
async def double(number: int) -> int:
    return 2 * number


@task(queue="rubbish")
async def waits() -> str:
    async with asyncio.timeout(LIMIT_S):
        began.set()
        await go_on.wait()
    return "done"


began = asyncio.Event()
go_on = asyncio.Event()


async def rubbish(raw: Client, ledger: Ledger, *ends: str, data: bytes = b"\xff rubbish") -> None:
    """Publish as any app of the account can, and wait until it is stored."""
    for end in ends:
        await raw.jetstream().publish(f"{ledger.names.ledger_root}.{end}", data)


def _id(values: Mapping[str, Any]) -> str:
    return "one" if values["number"] == 21 else "two"


async def broken(log: Log) -> list[tuple[int, str, str]]:
    report = await verify(log)
    return [(each.stream_sequence, each.job, each.rule) for each in report.violations]


async def test_a_job_runs_whose_id_was_taken_by_rubbish(ledger: Ledger, raw: Client) -> None:
    await rubbish(raw, ledger, "job.rubbish.one.queued.normal", "job.rubbish.two.completed")
    job = await ledger.enqueue(double.options(id="one"), 21)
    assert (job.created, job.sequence) == (True, 3)
    again = await ledger.enqueue(double.options(id="one"), 21)
    assert (again.created, again.sequence) == (False, 3)
    inputs: list[dict[str, Any]] = [{"number": 21}, {"number": 2}]
    made = await ledger.enqueue_many(double, inputs, ids=_id)
    assert (made.created, made.existing, made.last_sequence) == (1, 1, 4)
    async with working(ledger, double):
        assert await job.result(timeout_s=LIMIT_S) == 42
        await ended(await ledger.job("two"))
    assert await types(job) == ["queued", "started", "completed"]
    assert await broken(ledger.log) == [(1, "rubbish/one", "readable"), (2, "rubbish/two", "readable")]


async def test_an_outcome_is_recorded_behind_rubbish(ledger: Ledger, raw: Client) -> None:
    began.clear()
    go_on.clear()
    async with working(ledger, waits, double) as worker:
        job = await ledger.enqueue(waits.options(id="it"))
        async with asyncio.timeout(LIMIT_S):
            await began.wait()
        ends = ("completed", "cancel_requested", "queued.normal", "what.ever", "started")
        await rubbish(raw, ledger, *(f"job.rubbish.it.{end}" for end in ends))
        go_on.set()
        assert await job.result(timeout_s=LIMIT_S) == "done"
        assert await (await ledger.enqueue(double, 2)).result(timeout_s=LIMIT_S) == 4
        assert worker.counts().held == 0  # what is no dispatch is acknowledged
    assert await types(job) == ["queued", "started", "completed"]
    assert {rule for _, _, rule in await broken(ledger.log)} == {"readable"}
