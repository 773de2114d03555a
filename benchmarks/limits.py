"""What limits cost, beside jobs without limits in the same run, and what they are to cost at the most.

    python benchmarks/limits.py [--jobs N] [--rounds N] [--held N] [--big]

Each round starts fresh servers and takes turns: jobs without limits while nobody hosts the reactor of the limits, the
same while somebody does, then jobs with three limits each. The reactor is hosted by a process that runs no jobs, so that
its CPU is known by itself. `--big` adds a million jobs that wait. Figures drift with the machine: compare within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from core import reached
from shared import cpu_s, memory_mib, run

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.model.chain import commit_all
from jobledger.ledger.model.events import Held, Queued, Started
from jobledger.ledger.model.limits.definition import LIMIT, SetLimit, Terms, decide
from jobledger.ledger.model.limits.flow import FLOW, MAIN
from jobledger.ledger.model.log import end_of_chain
from jobledger.ledger.nats.streams import find_stream
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.process import tune_collector

Durability = Literal["power", "process"]
GLOBAL: Final = 100
TENANTS: Final = 1_000
FLOWS: Final = 3
LATENCY_JOBS: Final = 500
LEDGER_BYTES: Final = 8 << 30
LIMIT_S: Final = 300.0


@task(queue="bench")
async def noop(number: int) -> int:
    """Do nothing."""
    return number


@task(queue="aside")
async def aside() -> None:
    """Give the process that hosts the reactor a queue of its own, in which nothing is ever put."""


class Row(NamedTuple):
    """A line of the table."""

    what: str
    unit: str
    most: float | None = None  #: the target: so much at the most
    least: float | None = None  #: or so much at the least

    @property
    def target(self) -> str:
        """The target as it is shown; "" without one."""
        if self.most is not None:
            return f"<= {self.most:,g} {self.unit}"
        return "" if self.least is None else f">= {self.least:,g} {self.unit}"

    def verdict(self, figure: float) -> str:
        """Return whether a figure meets the target; "" without one."""
        if self.most is None and self.least is None:
            return ""
        is_met = (self.most is None or figure <= self.most) and (self.least is None or figure >= self.least)
        return "met" if is_met else "MISSED"


ROWS: Final = {
    "drain": Row("jobs without limits: drain beside a reactor", "%", least=-2),
    "drain/s": Row("  without one", "jobs/s"),
    "p50": Row("limited job with room: start, above plain, p50", "ms", most=1.5),
    "p99": Row("  p99", "ms", most=4),
    "limited/s": Row("held, 1,000 keys, three limits, global 100", "jobs/s", least=6_000),
    "reactor": Row("  reactor's CPU a job", "us", most=75),
    "server": Row("  server's CPU a job", "us", most=110),
    "power/s": Row("  every append fsynced", "jobs/s", least=2_500),
    "restart": Row("restart with {held:,} held: first grant", "s", most=3),
    "memory": Row("  reactor's memory", "MiB"),
    "killed": Row("one of two hosts killed: next grant", "s", most=2),
    "big restart": Row("restart with 1,000,000 held: first grant", "s"),
    "big memory": Row("  reactor's memory", "MiB", most=150),
}


async def define(ledger: Ledger, limit: str, slots: int) -> None:
    """Set a limit."""
    view = LIMIT.view(*await end_of_chain(ledger.log, LIMIT.chain(ledger.names, limit)))
    event = decide(limit, view.state, SetLimit(terms=Terms(slots=slots)), ledger.stamp())
    await commit_all(ledger.log, [(view, [event])])


async def fill(ledger: Ledger, jobs: int) -> None:
    """Enqueue jobs of three limits each."""
    for name, slots in (("global", GLOBAL), ("tenant", 10), ("flow", 5)):
        await define(ledger, name, slots)
    for part in range(min(TENANTS, jobs)):
        limits = ("global", f"tenant:t{part}", f"flow:f{part % (TENANTS * FLOWS)}")
        numbers = range(part, jobs, TENANTS)
        await ledger.enqueue_many(noop.options(limits=limits), ({"number": n} for n in numbers))


@contextlib.asynccontextmanager
async def process(ledger: Ledger, url: str, role: str) -> AsyncGenerator[subprocess.Popen[bytes], None]:
    """Run a worker in a process of its own; it holds a lease when this goes on."""
    known = {info.worker for info in await ledger.leases.all()}
    made = subprocess.Popen([sys.executable, __file__, "--role", role, "--url", url])  # noqa: ASYNC220, S603 - ourselves
    try:
        async with asyncio.timeout(30):
            while not any(info.worker not in known for info in await ledger.leases.all()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield made
    finally:
        made.send_signal(signal.SIGCONT)
        made.terminate()
        made.wait(timeout=30)


@contextlib.asynccontextmanager
async def fresh(durability: Durability = "process") -> AsyncGenerator[tuple[EmbeddedServer, Ledger], None]:
    """Yield a server and a client."""
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as directory:
        async with (
            EmbeddedServer(Path(directory), port=0, durability=durability) as server,
            connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger,
        ):
            yield server, ledger


async def plain_drain(jobs: int, *, beside_reactor: bool) -> float:
    """Return jobs a second without limits."""
    async with fresh() as (server, ledger), contextlib.AsyncExitStack() as stack:
        if beside_reactor:
            await define(ledger, "global", GLOBAL)
            await stack.enter_async_context(process(ledger, server.url, "reactor"))
        await ledger.enqueue_many(noop, ({"number": n} for n in range(jobs)))
        before = (await ledger.log.head()).last_sequence
        async with process(ledger, server.url, "worker"):
            began = await first_of(ledger, before + 1)
            await reached(ledger, before + 2 * jobs)
            return jobs / (time.perf_counter() - began)


async def first_of(ledger: Ledger, sequence: int) -> float:
    """Wait until an event is there; return when that was."""
    async with asyncio.timeout(LIMIT_S):
        while (await ledger.log.head()).last_sequence < sequence:  # noqa: ASYNC110 - nothing is sent to wait for
            await asyncio.sleep(0.005)
    return time.perf_counter()


async def limited_drain(jobs: int, durability: Durability) -> dict[str, float]:
    """Return jobs a second with three limits each, and CPU a job of reactor and server."""
    async with fresh(durability) as (server, ledger):
        await fill(ledger, jobs)
        before = (await ledger.log.head()).last_sequence
        async with process(ledger, server.url, "worker"), process(ledger, server.url, "reactor") as reactor:
            began = await first_of(ledger, before + 100)
            cpu = cpu_s(reactor.pid), cpu_s(server.pid)
            async with asyncio.timeout(LIMIT_S):
                while not await is_done(ledger, jobs):  # noqa: ASYNC110 - nothing is sent to wait for
                    await asyncio.sleep(0.1)
            took_s = time.perf_counter() - began
            return {
                "limited/s": jobs / took_s,
                "reactor": (cpu_s(reactor.pid) - cpu[0]) / jobs * 1e6,
                "server": (cpu_s(server.pid) - cpu[1]) / jobs * 1e6,
            }


async def is_done(ledger: Ledger, jobs: int) -> bool:
    """Return whether all that is to come is there: four events a job, three definitions, and the chain of grants."""
    info = await find_stream(
        ledger.inbox, ledger.names.ledger_stream, subjects=FLOW.chain(ledger.names, MAIN)
    )
    assert info is not None
    of_grants = sum((info.state.subjects or {}).values())
    return info.state.last_sequence >= 4 * jobs + 3 + of_grants


async def latency(ledger: Ledger, *limits: str) -> list[float]:
    """Return the milliseconds from first event to start of jobs that come one by one, by the server's clock."""
    before = (await ledger.log.head()).last_sequence
    for number in range(LATENCY_JOBS):
        await ledger.enqueue(noop.options(limits=limits), number)
        await asyncio.sleep(0.008)
    await asyncio.sleep(0.5)
    first: dict[str, float] = {}
    found: list[float] = []
    async for batch in ledger.log.read(from_sequence=before + 1):
        for stored in batch:
            event, at = stored.event, stored.stored_at.timestamp() * 1e3
            if isinstance(event, Held | Queued) and event.job not in first:
                first[event.job] = at
            elif isinstance(event, Started):
                found.append(at - first[event.job])
    return sorted(found)


async def latencies() -> dict[str, float]:
    """Return what a limit with room adds between a job's first event and its start, at 125 jobs a second."""
    async with fresh() as (server, ledger):
        await define(ledger, "roomy", 1_000)
        async with process(ledger, server.url, "worker"), process(ledger, server.url, "reactor"):
            plain = await latency(ledger)
            limited = await latency(ledger, "roomy")
    middle, high = LATENCY_JOBS // 2, LATENCY_JOBS * 99 // 100
    return {"p50": limited[middle] - plain[middle], "p99": limited[high] - plain[high]}


async def first_grant_s(ledger: Ledger, after: int) -> float:
    """Return the seconds until a grant is stored behind a stream sequence."""
    began = time.perf_counter()
    async with asyncio.timeout(60):
        while True:
            newest = await ledger.log.last(FLOW.of_type(ledger.names, "granted", MAIN))
            if newest is not None and newest.stream_sequence > after:
                return time.perf_counter() - began
            await asyncio.sleep(0.01)


async def restart(held: int) -> dict[str, float]:
    """Return how long a reactor that begins takes to its first grant, and the memory it then has."""
    async with fresh() as (server, ledger):
        await fill(ledger, held)
        head = (await ledger.log.head()).last_sequence
        # Somebody has to serve the queue, and run nothing: what waits stays.
        async with process(ledger, server.url, "idle"), process(ledger, server.url, "reactor") as reactor:
            took_s = await first_grant_s(ledger, head)
            return {"restart": took_s, "memory": memory_mib(reactor.pid)}


async def killed(jobs: int) -> dict[str, float]:
    """Return how long nothing is granted after the one that grants was killed."""
    async with fresh() as (server, ledger):
        await fill(ledger, jobs)
        async with (
            process(ledger, server.url, "worker"),
            process(ledger, server.url, "reactor") as one,
            process(ledger, server.url, "reactor") as two,
        ):
            await first_grant_s(ledger, (await ledger.log.head()).last_sequence)
            newest = await ledger.log.last(FLOW.of_type(ledger.names, "granted", MAIN))
            assert newest is not None
            author = FLOW.decode(newest).by
            next(each for each in (one, two) if f"-{each.pid}-" in author).kill()
            await asyncio.sleep(0.05)  # what it sent before has arrived
            return {"killed": await first_grant_s(ledger, (await ledger.log.head()).last_sequence)}


async def be(role: str, url: str) -> None:
    """Be a process of the benchmark."""
    tune_collector()
    config = {
        "worker": WorkerConfig(concurrency=256, reactors=False),
        "idle": WorkerConfig(queues=("bench",), concurrency=1, reactors=False),
        "reactor": WorkerConfig(queues=("aside",), concurrency=1),
    }[role]
    tasks = TaskRegistry([aside if role == "reactor" else noop])
    async with connect(url, ledger_bytes_max=LEDGER_BYTES) as ledger:
        worker = Worker(ledger, tasks, config)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


async def one_round(options: argparse.Namespace, number: int) -> dict[str, float]:
    """Measure what is measured in each round, jobs without limits in turns."""
    order = (False, True) if number % 2 else (True, False)
    drains = {beside: await plain_drain(options.jobs, beside_reactor=beside) for beside in order}
    figures = {"drain": (drains[True] / drains[False] - 1) * 100, "drain/s": drains[False]}
    figures |= await limited_drain(options.jobs, "process")
    figures["power/s"] = (await limited_drain(options.jobs // 4, "power"))["limited/s"]
    return figures | await latencies()


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return the median of each figure."""
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
        rounds.append(await one_round(options, number))
    figures = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    print("restart and takeover ...", file=sys.stderr, flush=True)
    figures |= await restart(options.held) | await killed(max(options.jobs, 60_000))
    if options.big:
        figures |= {f"big {name}": value for name, value in (await restart(1_000_000)).items()}
    return figures


def table(figures: dict[str, float], held: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'':<48}{'target':>18}{'measured':>18}"
    for name, row in ROWS.items():
        if name in figures:
            measured = f"{figures[name]:,.1f} {row.unit}"
            yield f"{row.what.format(held=held):<48}{row.target:>18}{measured:>18}  {row.verdict(figures[name])}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what limits cost.")
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--held", type=int, default=300_000)
    parser.add_argument("--big", action="store_true", default=bool(os.environ.get("BIG")))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        run(be(options.role, options.url))
        return
    figures = run(measure(options))
    print(json.dumps(figures, indent=2) if options.json else chr(10).join(table(figures, options.held)))


if __name__ == "__main__":
    main()
