"""What ticks cost: how late they are, and how much of a core nats-server and the workers need for them.

    python benchmarks/schedules.py [--schedules N] [--every S] [--workers N] [--seconds N] [--durability ...] [--json]

A fresh embedded server, and workers in processes of their own, which tick and run no job. Every schedule ticks each
`--every` seconds, all at the same moment. Lateness is the server's stamp on the job's first event against the moment of
the tick. CPU is that of the server, and of all workers together, in percent of one core, and in microseconds for each
tick: `net` is what is more than the server and the idle workers took before there were schedules. The last line says
whether the target for 200 ticks a second holds.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from shared import LEDGER_BYTES, arguments, cpu_s, run, show, work, worker_processes

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.model.events import Order, Queued
from jobledger.ledger.model.schedules.decisions import Declare
from jobledger.ledger.model.schedules.definition import Definition
from jobledger.ledger.model.schedules.ticks import Spec
from jobledger.ledger.server import EmbeddedServer

#: For 200 ticks a second: percent of a core of the server, all told, and milliseconds late, of 99 in 100 ticks.
SERVER_PERCENT_MAX = 3.0
LATE_P99_MS_MAX = 50.0


@task(queue="idle")
async def idle() -> None:
    """Never runs: the jobs of the ticks stay queued."""


async def declare(ledger: Ledger, count: int, every_s: int) -> None:
    """Declare the schedules."""
    definition = Definition(
        spec=Spec(every_s=every_s),
        task="add",
        queue="cron",
        order=Order(input=msgspec.Raw(b'{"n":1}')),
        overlap="allow",
    )
    command = Declare(definition=definition)
    await asyncio.gather(*(ledger.schedules.act(f"s{number}", command) for number in range(count)))


async def lateness_ms(ledger: Ledger, begin: datetime, end: datetime) -> list[float]:
    """Return how late each tick within a range of time was, sorted."""
    late: list[float] = []
    async for stored in ledger.events(follow=False):
        event = stored.event
        if isinstance(event, Queued) and event.tick:
            moment = datetime.strptime(event.tick.rpartition("-")[2], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            if begin <= moment < end:
                late.append(1000 * (stored.stored_at - moment).total_seconds())
    return sorted(late)


class Load(NamedTuple):
    """How much ticks, and for how long."""

    schedules: int = 200
    every_s: int = 1
    workers: int = 5
    seconds: float = 15.0
    #: Before both spans that are measured, without schedules and with them: the writers find out in it, once, that
    #: groups do not pay here.
    warm_s: float = 15.0


async def measure(load: Load, durability: Any = "process") -> dict[str, float]:
    """Let all tick on a fresh server."""
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedServer(Path(directory), port=0, durability=durability, monitor_port=None)
        async with (
            server,
            connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger,
            worker_processes(__file__, server.url, ledger, load.workers) as pids,
        ):
            await asyncio.sleep(load.warm_s)
            idle = await shares(server.pid, pids, load.seconds)
            await declare(ledger, load.schedules, load.every_s)
            await asyncio.sleep(load.warm_s)
            begin = datetime.now(UTC)
            busy = await shares(server.pid, pids, load.seconds)
            end = datetime.now(UTC)
            await asyncio.sleep(2.0)
            late = await lateness_ms(ledger, begin, end)
    per_s = len(late) / (end - begin).total_seconds()
    net, workers_net = (after - before for after, before in zip(busy, idle, strict=True))
    return {
        "ticks_per_s": round(per_s),
        "late_p50_ms": round(statistics.median(late), 1),
        "late_p99_ms": round(late[int(0.99 * len(late))], 1),
        "late_max_ms": round(late[-1], 1),
        "server_percent": round(100 * busy[0], 2),
        "server_idle_percent": round(100 * idle[0], 2),
        "server_net_percent": round(100 * net, 2),
        "server_us_per_tick": round(1e6 * net / per_s, 1),
        "workers_percent": round(100 * busy[1], 2),
        "workers_us_per_tick": round(1e6 * workers_net / per_s, 1),
    }


async def shares(server: int | None, workers: list[int], seconds: float) -> tuple[float, float]:
    """Return the shares of a core that the server, and all workers together, take in the next `seconds`."""
    began, before = time.monotonic(), (cpu_s(server), sum(map(cpu_s, workers)))
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - began
    return (cpu_s(server) - before[0]) / took_s, (sum(map(cpu_s, workers)) - before[1]) / took_s


def verdict(figures: dict[str, float]) -> str:
    """Say whether the target for 200 ticks a second holds; what another number of ticks takes is converted to 200."""
    server = figures["server_idle_percent"] + figures["server_us_per_tick"] * 200 / 1e4
    met = server <= SERVER_PERCENT_MAX and figures["late_p99_ms"] <= LATE_P99_MS_MAX
    return (
        f"target: 200 ticks/s with {SERVER_PERCENT_MAX:g} % of a core of the server, p99 {LATE_P99_MS_MAX:g} ms late: "
        f"{'met' if met else 'missed'} ({server:.1f} %, of which {figures['server_idle_percent']:.1f} without ticks; "
        f"{figures['late_p99_ms']:.0f} ms)"
    )


def main() -> None:
    """Read the arguments, measure, print."""
    parser = arguments("lateness and cost of ticks")
    usual = Load()
    parser.add_argument("--schedules", type=int, default=usual.schedules)
    parser.add_argument("--every", type=int, default=usual.every_s)
    parser.add_argument("--workers", type=int, default=usual.workers)
    parser.add_argument("--seconds", type=float, default=usual.seconds)
    given = parser.parse_args()
    if given.worker:
        run(work(given.worker, TaskRegistry([idle])))
    else:
        load = Load(given.schedules, given.every, given.workers, given.seconds)
        figures = run(measure(load, given.durability))
        show(figures, as_json=given.json)
        if not given.json:
            print(verdict(figures))


if __name__ == "__main__":
    main()
