"""What limits cost: jobs without limits beside them, jobs under three limits each, and reactors that begin or die.

The reactor of the limits is hosted by processes that run no jobs, so that its CPU and memory are known by themselves.
Every function starts servers of its own and returns its figures in lists. `limits.py` prints them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from subprocess import Popen
from typing import Final, Literal

from drain import drained, noop
from shared import cpu_s, memory_mib, run, worker_process

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
from jobledger.workers.reactors.hosts import start_reactors

Durability = Literal["power", "process"]
Figures = dict[str, list[float]]
GLOBAL: Final = 100
TENANTS: Final = 1_000
LEDGER_BYTES: Final = 8 << 30
LIMIT_S: Final = 300.0
LEASE_S: Final = 15.0
SENT_S: Final = 0.05  # what a process sent before it was killed has arrived by then
_OTHERS_AT_ONCE: Final = 100_000
_MB_OF_MIB: Final = 1.048576


@task(queue="bench")
async def nap(number: int) -> int:
    """Take so long that jobs still wait when somebody is killed."""
    await asyncio.sleep(0.1)
    return number


@task(queue="aside")
async def aside() -> None:
    """Give the process that hosts the reactor a queue of its own, in which nothing is ever put."""


@task(queue="elsewhere")
async def other(number: int) -> int:
    """Never runs: it fills the ledger."""
    return number


async def define(ledger: Ledger, limit: str, slots: int) -> None:
    """Set a limit."""
    view = LIMIT.view(*await end_of_chain(ledger.log, LIMIT.chain(ledger.names, limit)))
    event = decide(limit, view.state, SetLimit(terms=Terms(slots=slots)), ledger.stamp())
    await commit_all(ledger.log, [(view, [event])])


async def fill(ledger: Ledger, jobs: int, *, naps: bool = False) -> None:
    """Enqueue jobs of three limits each."""
    for name, slots in (("global", GLOBAL), ("tenant", 10), ("flow", 5)):
        await define(ledger, name, slots)
    for part in range(min(TENANTS, jobs)):
        limits = ("global", f"tenant:t{part}", f"flow:f{part}")
        numbers = range(part, jobs, TENANTS)
        chosen = nap if naps else noop
        await ledger.enqueue_many(chosen.options(limits=limits), ({"number": n} for n in numbers))


def process(
    ledger: Ledger, server: EmbeddedServer, role: str, lease_s: float = LEASE_S
) -> contextlib.AbstractAsyncContextManager[Popen[bytes]]:
    """Run a worker of one of the roles in a process of its own; it holds a lease when this goes on."""
    return worker_process(ledger, __file__, role, server.url, str(lease_s))


@contextlib.asynccontextmanager
async def fresh(
    durability: Durability = "process", lease_s: float = LEASE_S
) -> AsyncGenerator[tuple[EmbeddedServer, Ledger], None]:
    """Yield a server and a client."""
    with tempfile.TemporaryDirectory(prefix="jobledger-bench-") as directory:
        async with (
            EmbeddedServer(Path(directory), port=0, durability=durability) as server,
            connect(server.url, ledger_bytes_max=LEDGER_BYTES, lease_s=lease_s) as ledger,
        ):
            yield server, ledger


async def plain_drain(jobs: int, durability: Durability = "process", *, beside_reactor: bool) -> float:
    """Return jobs a second without limits, beside a process with all reactors or with all but that of limits."""
    async with fresh(durability) as (server, ledger):
        await define(ledger, "global", GLOBAL)
        async with process(ledger, server, "reactor" if beside_reactor else "others"):
            return (await drained(ledger, jobs, process(ledger, server, "worker")))["jobs/s"]


async def drains(pairs: int, jobs: int) -> Figures:
    """Return jobs a second without limits, and by how many percent they are more beside the reactor of limits."""
    found: Figures = {"drain": [], "drain/s": []}
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)
        by = {beside: await plain_drain(jobs, beside_reactor=beside) for beside in order}
        found["drain"].append((by[True] / by[False] - 1) * 100)
        found["drain/s"].append(by[False])
    return found


async def limited_drains(rounds: int, jobs: int, durability: Durability) -> Figures:
    """Return jobs a second with three limits each, and CPU a job of reactor and server in us."""
    found: Figures = {"limited/s": [], "reactor": [], "server": []}
    for _ in range(rounds):
        async with fresh(durability) as (server, ledger):
            await fill(ledger, jobs)
            before = (await ledger.log.head()).last_sequence
            async with process(ledger, server, "worker"), process(ledger, server, "reactor") as reactor:
                began = await first_of(ledger, before + 100)
                cpu = cpu_s(reactor.pid), cpu_s(server.pid)
                async with asyncio.timeout(LIMIT_S):
                    while not await is_done(ledger, jobs):  # noqa: ASYNC110 - nothing is sent to wait for
                        await asyncio.sleep(0.1)
                found["limited/s"].append(jobs / (time.perf_counter() - began))
                found["reactor"].append((cpu_s(reactor.pid) - cpu[0]) / jobs * 1e6)
                found["server"].append((cpu_s(server.pid) - cpu[1]) / jobs * 1e6)
    return found


async def fsynced_drains(rounds: int, jobs: int) -> Figures:
    """Return what `limited_drains` does where every append is fsynced, and the same jobs without limits beside them."""
    found: Figures = {"limited/s": [], "plain/s": [], "of plain": []}
    for _ in range(rounds):
        limited = (await limited_drains(1, jobs, "power"))["limited/s"][0]
        plain = await plain_drain(jobs, "power", beside_reactor=True)
        found["limited/s"].append(limited)
        found["plain/s"].append(plain)
        found["of plain"].append(limited / plain * 100)
    return found


async def first_of(ledger: Ledger, sequence: int) -> float:
    """Wait until an event is there; return when that was."""
    async with asyncio.timeout(LIMIT_S):
        while (await ledger.log.head()).last_sequence < sequence:  # noqa: ASYNC110 - nothing is sent to wait for
            await asyncio.sleep(0.005)
    return time.perf_counter()


async def is_done(ledger: Ledger, jobs: int) -> bool:
    """Return whether all that is to come is there: four events a job, three definitions, and the chain of grants."""
    info = await find_stream(
        ledger.inbox, ledger.names.ledger_stream, subjects=FLOW.chain(ledger.names, MAIN)
    )
    assert info is not None
    of_grants = sum((info.state.subjects or {}).values())
    return info.state.last_sequence >= 4 * jobs + 3 + of_grants


async def latency(ledger: Ledger, jobs: int, *limits: str) -> list[float]:
    """Return the milliseconds from first event to start of jobs that come one by one, by the server's clock."""
    before = (await ledger.log.head()).last_sequence
    for number in range(jobs):
        await ledger.enqueue(noop.options(limits=limits), number)
        await asyncio.sleep(0.008)
    async with asyncio.timeout(LIMIT_S):
        while len(found := await spans(ledger, before + 1)) < jobs:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)
    return sorted(found)


async def spans(ledger: Ledger, from_sequence: int) -> list[float]:
    """Return the milliseconds from first event to start of each job that has started."""
    first: dict[str, float] = {}
    found: list[float] = []
    async for batch in ledger.log.read(from_sequence=from_sequence):
        for stored in batch:
            event, at = stored.event, stored.stored_at.timestamp() * 1e3
            if isinstance(event, Held | Queued) and event.job not in first:
                first[event.job] = at
            elif isinstance(event, Started) and event.job in first:
                found.append(at - first[event.job])
    return found


async def latencies(pairs: int, jobs: int) -> Figures:
    """Return what a limit with room adds between a job's first event and its start, at 125 jobs a second, in ms."""
    found: Figures = {"p50": [], "p99": []}
    middle, high = jobs // 2, jobs * 99 // 100
    async with fresh() as (server, ledger):
        await define(ledger, "roomy", 1_000)
        async with process(ledger, server, "worker"), process(ledger, server, "reactor"):
            for number in range(pairs):
                order = ((), ("roomy",)) if number % 2 else (("roomy",), ())
                by = {limits: await latency(ledger, jobs, *limits) for limits in order}
                found["p50"].append(by["roomy",][middle] - by[()][middle])
                found["p99"].append(by["roomy",][high] - by[()][high])
    return found


async def first_grant(ledger: Ledger, after: int) -> float:
    """Wait until a grant is stored behind a stream sequence; return when that was."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            newest = await ledger.log.last(FLOW.of_type(ledger.names, "granted", MAIN))
            if newest is not None and newest.stream_sequence > after:
                return time.perf_counter()
            await asyncio.sleep(0.01)


async def begun(server: EmbeddedServer, ledger: Ledger, held: int) -> tuple[float, float]:
    """Return how many seconds a reactor that begins takes to its first grant, and how many MB of memory it then has."""
    await fill(ledger, held)
    head = (await ledger.log.head()).last_sequence
    # Somebody has to serve the queue, or nobody is granted anything.
    async with process(ledger, server, "idle"), process(ledger, server, "reactor") as reactor:
        started = time.perf_counter()
        return await first_grant(ledger, head) - started, memory_mib(reactor.pid) * _MB_OF_MIB


async def restart(held: int) -> tuple[float, float]:
    """Return what `begun` does in a ledger of its own."""
    async with fresh() as (server, ledger):
        return await begun(server, ledger, held)


async def restarts_among(held: int, others: int) -> tuple[float, float]:
    """Return the seconds to the first grant in a ledger with `others` jobs without limits: without and with a snapshot."""
    async with fresh() as (server, ledger):
        for begin in range(0, others, _OTHERS_AT_ONCE):
            numbers = range(begin, min(others, begin + _OTHERS_AT_ONCE))
            await ledger.enqueue_many(other, ({"number": n} for n in numbers))
        first_s, _ = await begun(server, ledger, held)
        again_s, _ = await begun(server, ledger, held)  # the first grant of all had a snapshot before it
        return first_s, again_s


async def restarts(rounds: int, held: int) -> Figures:
    """Return times and memory of some restarts, each with a ledger of its own."""
    found = [await restart(held) for _ in range(rounds)]
    return {"restart": [took_s for took_s, _ in found], "memory": [memory for _, memory in found]}


async def large_restarts(held: int, events: int) -> Figures:
    """Return the memory with very many held, and the times with these and in a very large ledger with few held."""
    took_s, memory = await restart(held)
    first_s, again_s = await restarts_among(GLOBAL, events - GLOBAL)
    return {
        "big restart": [took_s],
        "big memory": [memory],
        "big ledger": [again_s],
        "big ledger, first": [first_s],
    }


async def takeover(jobs: int, lease_s: float, *, both: bool) -> float:
    """Return how many seconds nothing is granted after the host that grants was killed, or both hosts at once."""
    async with fresh(lease_s=lease_s) as (server, ledger), contextlib.AsyncExitStack() as stack:
        reactors = [
            await stack.enter_async_context(process(ledger, server, "reactor", lease_s))
            for _ in range(3 if both else 2)
        ]
        await fill(ledger, jobs, naps=True)
        filled = (await ledger.log.head()).last_sequence
        await stack.enter_async_context(process(ledger, server, "worker", lease_s))
        await first_grant(ledger, filled)
        newest = await ledger.log.last(FLOW.of_type(ledger.names, "granted", MAIN))
        assert newest is not None, "it was just there"
        names = sorted(info.worker for info in await ledger.leases.all() if info.reactors)
        victims = names[:2] if both else [FLOW.decode(newest).by]
        for each in reactors:
            if any(f"-{each.pid}-" in name for name in victims):
                each.kill()
        killed_at = time.perf_counter()
        await asyncio.sleep(SENT_S)
        return await first_grant(ledger, (await ledger.log.head()).last_sequence) - killed_at


async def takeovers(rounds: int, jobs: int, lease_s: float) -> Figures:
    """Return for how long nothing is granted: after one host was killed, and after both, beyond the lease."""
    one = [await takeover(jobs, lease_s, both=False) for _ in range(rounds)]
    both = [await takeover(jobs, lease_s, both=True) - lease_s for _ in range(rounds)]
    return {"killed": one, "both killed": both}


async def be(role: str, url: str, lease_s: float) -> None:
    """Be a process of the benchmark."""
    tune_collector()
    config = {
        "worker": WorkerConfig(concurrency=256, reactors=False),
        "idle": WorkerConfig(queues=("bench",), concurrency=1, reactors=False),
        "reactor": WorkerConfig(queues=("aside",), concurrency=1),
        "others": WorkerConfig(queues=("aside",), concurrency=1, reactors=False),
    }[role]
    tasks = TaskRegistry([aside] if config.queues == ("aside",) else [noop, nap])
    async with connect(url, ledger_bytes_max=LEDGER_BYTES, lease_s=lease_s) as ledger:
        worker = Worker(ledger, tasks, config)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        others = start_reactors(ledger) if role == "others" else []
        await worker.run()
        for each in others:
            each.cancel()


if __name__ == "__main__":
    run(be(sys.argv[1], sys.argv[2], float(sys.argv[3])))
