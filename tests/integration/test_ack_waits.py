"""A worker keeps its deliveries alive as often as the consumer wants it, whoever made the consumer."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.jetstream import api
from tests.support.limits import LIMIT_S
from tests.support.watch import make_consumers
from tests.support.working import working

from jobledger.ledger import Ledger, task

pytestmark = pytest.mark.anyio


@task(queue="waits")
async def nap(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def test_a_consumer_with_a_shorter_ack_wait_does_not_deliver_running_jobs_again(ledger: Ledger) -> None:
    await make_consumers(ledger, "waits", ack_wait_s=2.0)
    async with working(ledger, nap, ack_wait_s=60.0):
        job = await ledger.enqueue(nap, 5.0)
        await job.result(timeout_s=LIMIT_S)
        stream, consumer = ledger.names.ledger_stream, ledger.names.consumer("waits", "normal")
        info = await api(ledger.inbox, f"CONSUMER.INFO.{stream}.{consumer}", {})
        assert info["delivered"]["consumer_seq"] == 1
