"""What timers cost: how late a job is dispatched, and how a crowd that is due at one moment drains.

    python benchmarks/timers.py [--jobs N] [--spread N] [--durability power|process] [--json]

A fresh embedded server and one worker in a process of its own. First `--spread` jobs are due one after the other, 20 ms
apart: lateness is the server's stamp on `queued` against the moment that was asked for. Then `--jobs` are due at one
moment: rates are from that moment to the last `queued`, and to the last completion. Memory is the worker's peak.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shared import LEDGER_BYTES, arguments, memory_mib, reached, run, show, work, worker_processes

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.model.events import Completed, Queued, Scheduled
from jobledger.ledger.nats.streams import find_stream
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import WorkerConfig

LIMIT_S = 600.0
STEP_S = 0.02
ENQUEUES_PER_S = 3_000  # a low guess: the crowd's moment must not come before it is there


@task(queue="bench")
async def noop(number: int) -> int:
    """Do nothing."""
    return number


async def outcome(ledger: Ledger, from_sequence: int, count: int) -> tuple[list[float], datetime, datetime]:
    """Wait for `count` delayed jobs; return each one's lateness in s, the last dispatch and the last completion."""
    await reached(ledger, from_sequence - 1 + 4 * count)  # scheduled, queued, started, completed
    due: dict[str, datetime] = {}
    late: list[float] = []
    queued_at = completed_at = datetime.min.replace(tzinfo=UTC)
    async for stored in ledger.events(from_sequence=from_sequence, follow=False):
        event = stored.event
        if isinstance(event, Scheduled):
            due[event.job] = event.run_at
        elif isinstance(event, Queued):
            late.append((stored.stored_at - due[event.job]).total_seconds())
            early = (event.at - due[event.job]).total_seconds()
            assert early >= 0, f"job {event.job} was dispatched {-early} s early"
            queued_at = max(queued_at, stored.stored_at)
        elif isinstance(event, Completed):
            completed_at = max(completed_at, stored.stored_at)
    assert len(late) == count, f"{len(late)} of {count} were dispatched"
    return sorted(late), queued_at, completed_at


async def spread(ledger: Ledger, count: int) -> dict[str, float]:
    """Measure the lateness of jobs that are due one after the other."""
    first = (await ledger.log.head()).last_sequence + 1
    begin = datetime.now(UTC) + timedelta(seconds=2)
    for number in range(count):
        run_at = begin + timedelta(seconds=number * STEP_S)
        await ledger.enqueue(noop.options(run_at=run_at), number)
    late, _, _ = await outcome(ledger, first, count)
    return {
        "late_p50_ms": round(1000 * statistics.median(late), 2),
        "late_p99_ms": round(1000 * late[int(0.99 * len(late))], 2),
        "late_max_ms": round(1000 * late[-1], 2),
    }


async def crowd(ledger: Ledger, count: int, worker: int, server: int | None) -> dict[str, float]:
    """Measure a crowd that is due at one moment."""
    first = (await ledger.log.head()).last_sequence + 1
    run_at = datetime.now(UTC) + timedelta(seconds=3 + count / ENQUEUES_PER_S)
    began = time.perf_counter()
    await ledger.enqueue_many(noop.options(run_at=run_at), ({"number": n} for n in range(count)))
    enqueued_s = time.perf_counter() - began
    if datetime.now(UTC) >= run_at:
        raise SystemExit("the machine is too busy: the moment came before all jobs were there")
    async with asyncio.timeout(LIMIT_S):
        while await timers_set(ledger) < count and datetime.now(UTC) < run_at - timedelta(seconds=1):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    set_s = time.perf_counter() - began
    set_in_time = await timers_set(ledger)
    _, queued_at, completed_at = await outcome(ledger, first, count)
    return {
        "enqueued_per_s": round(count / enqueued_s),
        "set_per_s": round(count / set_s),
        "set_before_due": set_in_time,
        "dispatched_per_s": round(count / (queued_at - run_at).total_seconds()),
        "completed_per_s": round(count / (completed_at - run_at).total_seconds()),
        "worker_peak_mib": round(memory_mib(worker, "VmHWM")),
        "server_peak_mib": round(memory_mib(server, "VmHWM")),
    }


async def timers_set(ledger: Ledger) -> int:
    """Return how many timers the stream holds."""
    info = await find_stream(ledger.inbox, ledger.names.timers_stream)
    assert info is not None
    return info.state.messages


async def measure(jobs: int, apart: int, durability: Any) -> dict[str, float]:
    """Run both parts on a fresh server."""
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedServer(Path(directory), port=0, durability=durability, monitor_port=None)
        async with (
            server,
            connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger,
            worker_processes(__file__, server.url, ledger) as (worker,),
        ):
            figures = await spread(ledger, apart)
            return figures | await crowd(ledger, jobs, worker, server.pid)


def main() -> None:
    """Read the arguments, measure, print."""
    parser = arguments("lateness and drain rate of timers")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--spread", type=int, default=300)
    given = parser.parse_args()
    if given.worker:
        run(work(given.worker, TaskRegistry([noop]), WorkerConfig(concurrency=256)))
    else:
        show(run(measure(given.jobs, given.spread, given.durability)), as_json=given.json)


if __name__ == "__main__":
    main()
