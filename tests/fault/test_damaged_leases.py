"""Keys of the workers' bucket are deleted and written over, workers killed, the server restarted: nothing else ends."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Final

import pytest
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, load_tasks
from tests.support.proof import prove
from tests.support.watch import Watch

from jobledger.ledger import Ledger
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(200)]

TASKS = load_tasks()
FULL: Final = Path("/dev/full")
ROUNDS = 12
_DELETED: Final = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"


async def _damage(ledger: Ledger, chance: random.Random) -> str:
    """Delete or write over the key of some worker; return its name, "" when none lives."""
    living = [info.worker for info in await ledger.leases.all() if not info.stopped]
    if not living:
        return ""
    name = chance.choice(living)
    subject = f"$KV.{ledger.names.workers_bucket}.{name}"
    headers, data = chance.choice([(_DELETED, b""), (b"", b"{"), (b"", b"{}"), (b"", b"\xff")])
    ledger.connection.send(subject, "", headers, data)
    return name


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
async def test_workers_whose_keys_are_damaged_and_whose_logs_are_full_lose_nothing(
    ledger: Ledger, server: EmbeddedServer, fleet: Fleet, chance: random.Random, record: Recorder
) -> None:
    """Row 34: two supervised workers that can tell nobody, their keys damaged one after the other, some of them killed."""
    kills = 0
    async with Watch.following(ledger) as watch:
        supervisor = await fleet.begin("--processes", "2", says_to=FULL)
        enqueued: list[tuple[str, str]] = []
        damaged: set[str] = set()
        for number in range(ROUNDS):
            before = watch.count["started"]
            jobs = [
                await ledger.enqueue(TASKS["nap"].options(max_attempts=50), chance.random())
                for _ in range(10)
            ]
            enqueued += [("work", job.id) for job in jobs]
            await watch.until_started(before + 1)
            damaged.add(await _damage(ledger, chance))
            if number % 4 == 1:
                kills += 1
                fleet.kill(chance.choice(supervisor.children()))
            if number % 6 == 3:
                await server.stop()
                await server.start()
            await asyncio.sleep(chance.random())
        await watch.until_ended(len(enqueued), 120.0)
        assert supervisor.alive
        proof = await prove(ledger, enqueued=enqueued, trace=fleet.trace, faults=fleet.faults)
        assert await supervisor.stop() == 0
    # Of a key that is deleted, or written over, its worker learns at the next renewal: until then two may run a job.
    rest = [problem for problem in proof.problems if not problem.startswith("overlap: ")]
    assert rest == [], rest
    assert set(watch.ended.values()) == {"completed"}
    record(
        "34",
        "keys of leases deleted and written over, stdout and stderr of supervisor and workers on a full disk, "
        "workers killed, the server restarted",
        faults=f"{len(damaged - {''})} keys, {kills} kills, 2 restarts",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
    )
