"""A server of a cluster that is frozen, not dead: its kernel goes on taking connections and bytes."""

from __future__ import annotations

import asyncio
import functools
import random
import signal
import time
from typing import Any

import anyio
import pytest
from tests.support.cluster import Cluster
from tests.support.figures import Recorder
from tests.support.limits import LIMIT_S
from tests.support.working import until, working

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.model.errors import UnreachableError

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(180)]
FREEZES = 3
#: The promise. Nothing but the ping notices: without it a client waits for six minutes.
NOTICED_S = 10.0


@task(queue="work", max_attempts=50)
async def add(a: int, b: int) -> int:
    return a + b


def place(ledger: Ledger) -> int:
    """Return the port of the server that a client is connected to, 0 without one."""
    url = ledger.connection.connected_url
    return 0 if url is None else url.port or 0


async def freeze(made: Cluster, ledger: Ledger) -> float:
    """Freeze the server that a client is connected to; return the seconds until it is at another."""
    port = place(ledger)
    begun = time.monotonic()
    made.servers[port].send_signal(signal.SIGSTOP)
    try:
        await until(lambda: place(ledger) not in {0, port}, limit_s=2 * LIMIT_S)
        return time.monotonic() - begun
    finally:
        made.servers[port].send_signal(signal.SIGCONT)


async def test_a_frozen_server_is_left_within_ten_seconds_and_nothing_is_lost(
    replicas: Cluster, chance: random.Random, record: Recorder
) -> None:
    """Row 17f."""
    settings: dict[str, Any] = {"replicas": 3, "ledger_bytes_max": 64 << 20}
    ids: list[str] = []
    noticed: list[float] = []
    async with connect(replicas.url, **settings) as ledger:
        async with connect(replicas.url, **settings) as far, working(far, add) as worker:
            await worker.taking.wait()
            enqueueing = asyncio.create_task(_enqueue(ledger, ids))
            for _ in range(FREEZES):
                await anyio.sleep(chance.random())
                noticed.append(await freeze(replicas, ledger))
                await until(functools.partial(_has_grown, ids, len(ids) + 20))
            enqueueing.cancel()
            for job_id in ids:
                assert await (await ledger.job(job_id)).result(timeout_s=LIMIT_S) == 1
        report = await verify(ledger.log)
        assert report.sound, report.violations
    assert max(noticed) < NOTICED_S
    record(
        "17f",
        "a server of three frozen (SIGSTOP) while it serves a client, then woken",
        faults=f"{FREEZES} freezes; the client was at another server after {max(noticed):.1f} s at most",
        jobs=len(ids),
        events=report.events,
        now=time.monotonic(),
    )


def _has_grown(ids: list[str], size: int) -> bool:
    return len(ids) > size


async def _enqueue(ledger: Ledger, ids: list[str]) -> None:
    while True:
        job_id = f"f-{len(ids)}"
        try:
            await ledger.enqueue(add.options(id=job_id), 0, 1)
        except UnreachableError:
            continue  # the same id again: whether it was stored or not
        ids.append(job_id)
        await anyio.sleep(0.01)
