"""How fast a projection follows and is rebuilt, in events a second.

    python benchmarks/projection.py [--jobs N] [--no-server]
    python benchmarks/projection.py --events 1000000

Two histories of N jobs, three events each (queued, started, completed with a small result): `drained` ends each
job soon after it was queued, as a busy worker does; `backlog` queues all jobs before the first one starts. From a log in
memory the numbers are the projection's own; `drained` is read through a nats-server as well, as a user does: `read`
hands its events to nobody, and CPU time is told for both processes; `of_read` is the rate of a way divided by that of
`read`. `--events N` writes N events to a nats-server on this machine and reads, rebuilds, follows, verifies and compares
them, each in a process of its own, so that its peak memory is told apart. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
from shared import cpu_s, run

from jobledger.ledger.connection import connect
from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, advance, link
from jobledger.ledger.model.commands import Claim, Command, Complete, Enqueue, Stamp
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import Order
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef, Names
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import Projector, difference, rebuild, verify

IN_FLIGHT = 500
IN_FLIGHT_APPENDS = 2_000
STEPS = ("read", "rebuild", "follow", "verify", "compare")
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)


def schedule(jobs: int, lead: int) -> Iterator[tuple[int, str]]:
    """Yield (job, step); a job starts when `lead` newer ones are queued, and ends before the next one starts."""
    for number in range(jobs + lead):
        if number < jobs:
            yield number, "enqueue"
        if number >= lead:
            yield number - lead, "claim"
            yield number - lead, "complete"


class Appendable(Protocol):
    """What a history is written to."""

    names: Names

    async def append(self, entries: Sequence[Entry], /) -> int:
        """Store entries, return the first one's sequence."""
        ...


async def history(log: Appendable, jobs: int, lead: int) -> None:
    """Append the events of `jobs` jobs, decided as real ones are."""
    chains: dict[int, JobView] = {}
    for tick, (number, step) in enumerate(schedule(jobs, lead)):
        chain = chains.pop(number, EMPTY_CHAIN)
        stamp = Stamp(at=BEGIN + timedelta(microseconds=97 * tick), by="bench-1-abcdef")
        linked = link(chain, decide(chain.job, command_of(number, step, chain), stamp), log.names)
        chain = advance(chain, linked, await log.append(linked.entries))
        if step != "complete":
            chains[number] = chain


def command_of(number: int, step: str, chain: JobView) -> Command:
    """Return what happens to a job at this step."""
    if step == "enqueue":
        ref = JobRef(queue=f"queue-{number % 4}", job_id=f"0194{number:08x}-7abc-8def-0123456789ab")
        order = msgspec.Raw(b'{"user_id": %d, "template": "welcome", "language": "en"}' % number)
        return Enqueue(
            ref=ref, task="bench.send_welcome", order=Order(input=order, max_attempts=3, timeout_s=30)
        )
    if step == "claim":
        return Claim(worker="bench-1-abcdef", lease_s=15)
    assert chain.job is not None
    return Complete(epoch=chain.job.claim_epoch, result=msgspec.Raw(b'"sent"'))


async def measure(
    what: str,
    events: int,
    work: Callable[[], Awaitable[object]],
    *,
    server_pid: int | None = None,
    read_s: float | None = None,
) -> float:
    """Run `work` once and print what it took, of us and of the server; return its seconds. `read_s`: those of `read`."""
    began, cpu, served = time.perf_counter(), time.process_time(), cpu_s(server_pid)
    await work()
    took, busy = time.perf_counter() - began, time.process_time() - cpu
    line = {
        "what": what,
        "events": events,
        "seconds": round(took, 2),
        "events_per_s": round(events / took),
        "cpu_us_per_event": round(busy / events * 1e6, 1),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    if server_pid is not None:
        line["server_cpu_us_per_event"] = round((cpu_s(server_pid) - served) / events * 1e6, 1)
    if read_s is not None:
        line["of_read"] = round(read_s / took, 2)
    print(msgspec.json.encode(line).decode(), flush=True)
    return took


async def read(log: Log) -> None:
    """Read everything and do nothing with it."""
    async with contextlib.aclosing(log.read_messages()) as batches:
        async for _ in batches:
            pass


async def follow(log: Log, path: Path) -> None:
    """Follow from the start with `run`, until the head."""
    head = (await log.head()).last_sequence
    with Projector(log, path) as projector:
        async with anyio.create_task_group() as group:
            group.start_soon(projector.run)
            await projector.wait_for(head, timeout_s=600)
            group.cancel_scope.cancel()


async def catch_up(log: Log, path: Path) -> None:
    """Bring a new file up to the head."""
    with Projector(log, path) as projector:
        await projector.catch_up()


async def compare(name: str, log: Log, *, server_pid: int | None = None) -> None:
    """Measure the three ways to the same rows, and check that they are the same."""
    events = (await log.head()).last_sequence
    with tempfile.TemporaryDirectory() as folder:
        followed, caught_up, rebuilt = (Path(folder) / each for each in ("followed", "caught-up", "rebuilt"))
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "read": lambda: read(log),
            "catch up": lambda: catch_up(log, caught_up),
            "follow": lambda: follow(log, followed),
            "rebuild": lambda: rebuild(log, rebuilt),
        }
        read_s: float | None = None
        for way, work in ways.items():
            took = await measure(f"{name}: {way}", events, work, server_pid=server_pid, read_s=read_s)
            read_s = read_s or took
        for path in (followed, caught_up):
            found = difference(path, rebuilt)
            if found is not None:
                sys.exit(f"not equal to the rebuilt one: {found}")


async def compare_on_server(jobs: int) -> None:
    """Measure one history as a nats-server on this machine hands it out."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = await stack.enter_async_context(EmbeddedServer(Path(folder), port=0, durability="process"))
        ledger = await stack.enter_async_context(connect(server.url))
        await copy(ledger.log, jobs)
        await compare("drained, nats-server", ledger.log, server_pid=server.pid)


class Pipelined:
    """Appends of one writer, many in flight: the sequences are known before the server tells them."""

    def __init__(self, log: Log) -> None:
        self.names = log.names
        self._log = log
        self._next = 1
        self._outcomes: list[tuple[int, Awaitable[int]]] = []

    async def append(self, entries: Sequence[Entry]) -> int:
        """Submit entries; every now and then wait until all are stored where they were expected."""
        first, self._next = self._next, self._next + len(entries)
        self._outcomes.append((first, self._log.submit(entries)))
        if len(self._outcomes) >= IN_FLIGHT_APPENDS:
            await self.settle()
        return first

    async def settle(self) -> None:
        """Wait for all that is in flight."""
        for first, outcome in self._outcomes:
            assert await outcome == first, "nobody else writes to this ledger"
        self._outcomes.clear()


async def large(events: int) -> None:
    """Measure a history on a nats-server, each step in a process of its own."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = await stack.enter_async_context(EmbeddedServer(Path(folder), port=0, durability="process"))
        # Group commits would put appends of different jobs into another order.
        async with connect(server.url, ledger_bytes_max=8 << 30, commit="pipeline") as ledger:
            await measure("write to nats-server", events, lambda: fill(ledger.log, events))
        read_s = 0.0
        for step in STEPS:
            command = [sys.executable, __file__, "--step", step, "--url", server.url, "--folder", folder]
            command += ["--server-pid", str(server.pid), "--read-s", str(read_s)]
            done = await anyio.run_process(command, stderr=None)
            print(done.stdout.decode(), end="", flush=True)
            if step == "read":
                read_s = float(msgspec.json.decode(done.stdout)["seconds"])


async def fill(log: Log, events: int) -> None:
    """Append this many events."""
    pipelined = Pipelined(log)
    await history(pipelined, -(-events // 3), IN_FLIGHT)
    await pipelined.settle()


async def take(step: str, url: str, folder: Path, pid: int, read_s: float | None) -> None:
    """Take one step of a large history."""
    rebuilt, followed = folder / "rebuilt", folder / "followed"
    async with connect(url) as ledger:
        log = ledger.log
        events = (await log.head()).last_sequence
        if step == "read":
            await measure(step, events, lambda: read(log), server_pid=pid)
        elif step == "rebuild":
            await measure(step, events, lambda: rebuild(log, rebuilt), server_pid=pid, read_s=read_s)
        elif step == "follow":
            await measure(step, events, lambda: follow(log, followed), server_pid=pid, read_s=read_s)
        elif step == "verify":
            await measure(step, events, lambda: prove(log, followed), server_pid=pid)
        else:
            found = difference(followed, rebuilt)
            size_mb = rebuilt.stat().st_size >> 20
            print(msgspec.json.encode({"what": step, "difference": found, "file_mb": size_mb}).decode())


async def prove(log: Log, path: Path) -> None:
    """Verify a projection, or end."""
    _, found = await verify(log, path)
    if found is not None:
        sys.exit(found.sentence)


async def copy(log: Log, jobs: int) -> None:
    """Append a history made in memory, many events in flight."""
    source = MemoryLog(names=log.names)
    await history(source, jobs, IN_FLIGHT)
    lasts: dict[str, int] = {}
    outcomes: list[Awaitable[int]] = []
    async for batch in source.read():
        for stored in batch:
            chain = log.names.chain(JobRef(queue=stored.event.queue, job_id=stored.event.job))
            entry = Entry(log.names.event(stored.event), stored.data, chain, lasts.get(chain, 0))
            outcomes.append(log.submit([entry]))
            lasts[chain] = stored.stream_sequence
        for outcome in outcomes:
            await outcome
        outcomes.clear()


async def main() -> None:
    """Measure each history."""
    parser = argparse.ArgumentParser(description="Measure how fast a projection is followed and rebuilt.")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--no-server", action="store_true", help="read from memory only")
    parser.add_argument("--events", type=int, help="write this many events to a server, and measure on that")
    for name in ("--step", "--url", "--folder", "--server-pid", "--read-s"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.step is not None:
        read_s = float(chosen.read_s) or None
        await take(chosen.step, chosen.url, Path(chosen.folder), int(chosen.server_pid), read_s)
        return
    if chosen.events is not None:
        await large(chosen.events)
        return
    for name, lead in (("drained", IN_FLIGHT), ("backlog", chosen.jobs)):
        log = MemoryLog()
        await history(log, chosen.jobs, lead)
        await compare(name, log)
    if not chosen.no_server:
        await compare_on_server(chosen.jobs)


if __name__ == "__main__":
    run(main())
