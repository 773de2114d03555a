"""Everything at once: 20,000 jobs of every kind, three supervised workers, and a nemesis that does not rest."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.support.figures import Recorder
from tests.support.fleet import Fleet, load_tasks
from tests.support.mixture import Producer, plans
from tests.support.nemesis import Nemesis
from tests.support.proof import prove
from tests.support.proxy import Proxy
from tests.support.watch import Watch

from jobledger.ledger import Ledger

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault]

JOBS = int(os.environ.get("JOBLEDGER_FAULT_JOBS", "20000"))
HARM_S_MAX = 180.0  # on a busy machine the rest goes in peace, or the harm would have no end
POISON = {
    "process by exit": 8,
    "process by segfault": 4,
    "process by memory": 4,
    "worker by exit": 4,
    "worker by segfault": 2,
    "worker by memory": 4,
}


@pytest.mark.timeout(420)
async def test_twenty_thousand_jobs_under_a_nemesis(
    ledger: Ledger,
    server: EmbeddedServer,
    fleet: Fleet,
    *,
    chance: random.Random,
    secret: str,
    record: Recorder,
) -> None:
    wanted = plans(JOBS, chance, poison=POISON)
    async with Proxy(server.port, chance) as proxy, Watch.following(ledger) as watch:
        producer = Producer(ledger, load_tasks(), watch, chance, secret)
        nemesis = Nemesis(
            chance,
            server=server,
            proxy=proxy,
            fleet=fleet,
            watch=watch,
            crews={
                "near": ("--processes", "2", "--grace", "5"),
                "far": ("--processes", "1", "--grace", "5"),
            },
            proxied="far",
        )
        async with asyncio.TaskGroup() as group:
            producing = group.create_task(producer.run(wanted, clients=64, backlog_max=2_000))
            rests_at = time.monotonic() + HARM_S_MAX
            await nemesis.run(
                until=lambda: (
                    time.monotonic() >= rests_at or (producing.done() and len(watch.ended) >= JOBS * 0.98)
                )
            )
        await watch.until_ended(JOBS, 120)
        proof = await prove(
            ledger,
            enqueued=producer.acknowledged,
            trace=fleet.trace,
            faults=fleet.faults,
            logs=[*fleet.logs, server.log_path],
            secrets=[secret],
            within_s=60.0,
        )
        proof.hold()
        await nemesis.make_whole()
        codes = await fleet.stop()
    assert codes == [0, 0]
    wrong = Counter(
        f"{plan.kind}: {watch.ended[plan.job_id]}"
        for plan in wanted
        if watch.ended[plan.job_id] not in plan.ends
    )
    assert wrong == {}
    rerun_s = max(proof.judged.rerun_s, default=0.0)
    record(
        "all",
        "retries, delays, cancels, poison, threads and processes under a seeded nemesis: workers, supervisors, "
        "server and network killed, frozen, cut, slowed, robbed of answers and acks",
        faults=f"{nemesis.done.total()} ({', '.join(f'{count} {_words(harm)}' for harm, count in nemesis.done.most_common())})",
        jobs=proof.report.jobs,
        events=proof.report.events,
        now=time.monotonic(),
        worst_recovery=f"{rerun_s:.1f} s until a killed attempt ran again, "
        f"median {statistics.median(proof.judged.rerun_s):.1f} s; "
        f"{max(nemesis.recovery_s, default=0.0):.1f} s from the server's return to the next outcome",
    )


def _words(name: str) -> str:
    return name.replace("_", " ")
