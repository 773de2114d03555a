"""How fast a ledger is checked, in events a second, and how much memory a job costs the checker.

    python benchmarks/audit.py [--jobs N] [--memory MIB] [--no-server] [--profile]

Two histories of N jobs; of ten, seven run once, two fail once and are retried, and one is taken over. `drained` ends
each job soon after it was queued, as a busy worker does; `backlog` queues all jobs before the first one starts and
stops half-way, so that half of them stay open. `fed` times the checker alone on events decoded before, `verified`
the whole way from a log in memory, and of the first history from a nats-server as well, with the CPU time of both
processes. `bounded` writes the
events to a file, and a process of its own checks them from there: its greatest resident size, for a quarter of the jobs
and for all of them, with the checker's memory bounded to `--memory`. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import resource
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec
from shared import cpu_s, run

from jobledger.audit.verify import Checker, CheckOptions, Report, verify
from jobledger.ledger.connection import connect
from jobledger.ledger.model.aggregates import read_message
from jobledger.ledger.model.chain import EMPTY_CHAIN, JobView, advance, link
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.commands import Claim, Command, Complete, Enqueue, Fail, Stamp, TakeOver
from jobledger.ledger.model.decisions import decide
from jobledger.ledger.model.events import ErrorInfo, Order
from jobledger.ledger.model.log import Entry, Log
from jobledger.ledger.model.memory import MemoryLog
from jobledger.ledger.model.subjects import JobRef, Names
from jobledger.ledger.server import EmbeddedServer

IN_FLIGHT = 500
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom", traceback="x" * 400)


MIB: Final = 1 << 20
LENGTHS: Final = struct.Struct("<II")  # of subject and data


class Sink(Protocol):
    """What a history is appended to."""

    names: Names

    async def append(self, entries: Sequence[Entry]) -> int:
        """Store; return the first one's sequence."""
        ...


class FileSink:
    """Keeps events in a file, since in memory they would hide what the checker takes."""

    def __init__(self, file: BinaryIO) -> None:
        self.names = Names()
        self._file = file
        self._last = 0

    async def append(self, entries: Sequence[Entry]) -> int:
        """Store; return the first one's sequence."""
        for entry in entries:
            subject = entry.subject.encode()
            self._file.write(LENGTHS.pack(len(subject), len(entry.data)) + subject + entry.data)
        self._last += len(entries)
        return self._last - len(entries) + 1


def life(number: int) -> list[str]:
    """Return what happens to a job after it was queued."""
    kind = number % 10
    if kind < 7:
        return ["claim", "complete"]
    return ["claim", "fail", "claim", "complete"] if kind < 9 else ["claim", "take over", "complete"]


def schedule(jobs: int, lead: int, ended: int) -> Iterator[tuple[int, str]]:
    """Yield (job, step); a job starts when `lead` newer ones are queued, and only the first `ended` ever do."""
    for number in range(jobs + lead):
        if number < jobs:
            yield number, "enqueue"
        if lead <= number < ended + lead:
            for step in life(number - lead):
                yield number - lead, step


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
    epoch = chain.job.claim_epoch
    if step == "take over":
        return TakeOver(worker="bench-2-abcdef", lease_s=15, lost_epoch=epoch)
    if step == "fail":
        return Fail(epoch=epoch, error=BOOM)
    return Complete(epoch=epoch, result=msgspec.Raw(b'"sent"'))


async def history(log: Sink, jobs: int, lead: int, ended: int) -> None:
    """Append the events of `jobs` jobs, decided as real ones are."""
    chains: dict[int, JobView] = {}
    for tick, (number, step) in enumerate(schedule(jobs, lead, ended)):
        chain = chains.pop(number, EMPTY_CHAIN)
        stamp = Stamp(at=BEGIN + timedelta(microseconds=97 * tick), by="bench-1-abcdef")
        linked = link(chain, decide(chain.job, command_of(number, step, chain), stamp), log.names)
        chain = advance(chain, linked, await log.append(linked.entries))
        if step != "complete":
            chains[number] = chain


async def copy(source: Log, log: Log) -> None:
    """Append one log's events to another, many in flight."""
    lasts: dict[str, int] = {}
    outcomes: list[Awaitable[int]] = []
    async for batch in source.read():
        for stored in batch:
            chain = log.names.chain(JobRef(queue=stored.event.queue, job_id=stored.event.job))
            outcomes.append(
                log.submit([Entry(stored.subject, stored.data, chain, lasts.get(chain, 0))]),
            )
            lasts[chain] = stored.stream_sequence
        for outcome in outcomes:
            await outcome
        outcomes.clear()


def feed(checker: Checker, events: list[StoredEvent]) -> Report:
    """Check events that are there already."""
    for stored in events:
        checker.feed(stored)
    return checker.finish()


def tell(what: str, report: Report, took: float, busy: float, served: float | None = None) -> None:
    """Print one measurement; a benchmark of what is wrong says nothing."""
    if not report.sound:
        sys.exit(report.text())
    line = {
        "what": what,
        "events": report.events,
        "jobs": report.jobs,
        "seconds": round(took, 2),
        "events_per_s": round(report.events / took),
        "cpu_us_per_event": round(busy / report.events * 1e6, 1),
    }
    if served is not None:
        line["server_cpu_us_per_event"] = round(served / report.events * 1e6, 1)
    print(msgspec.json.encode(line).decode(), flush=True)


async def measure_verify(what: str, log: Log, *, server_pid: int | None = None) -> None:
    """Time the whole way from a log."""
    began, cpu, served = time.perf_counter(), time.process_time(), cpu_s(server_pid)
    report = await verify(log)
    took, busy = time.perf_counter() - began, time.process_time() - cpu
    tell(what, report, took, busy, None if server_pid is None else cpu_s(server_pid) - served)


def measure_feed(what: str, log: Log, events: list[StoredEvent], *, profile: bool) -> None:
    """Time the checker alone, and once more with every allocation counted."""
    began, cpu = time.perf_counter(), time.process_time()
    report = feed(Checker(log.names), events)
    tell(what, report, time.perf_counter() - began, time.process_time() - cpu)
    if profile:
        with cProfile.Profile() as profiler:
            feed(Checker(log.names), events)
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(20)


async def measure_memory(what: str, log: Log, jobs: int) -> None:
    """Count what the checker keeps when nothing bounds it, from events that are gone once they were fed."""
    checker = Checker(log.names, options=CheckOptions(memory_bytes_max=None))
    tracemalloc.start()
    async for batch in log.read():
        for stored in batch:
            checker.feed(stored)
    batch = []
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    checker.finish()
    line = {"what": what, "jobs": jobs, "bytes_per_job": kept // jobs, "peak_bytes_per_job": peak // jobs}
    print(msgspec.json.encode(line).decode(), flush=True)


def check_file(path: Path, memory_mib: int) -> None:
    """Check the events in a file, and print how fast and in how much memory; for a process of its own."""
    began, sequence = time.perf_counter(), 0
    base = _resident_mib()
    checker = Checker(Names(), options=CheckOptions(memory_bytes_max=memory_mib * MIB))
    with path.open("rb") as file:
        while lengths := file.read(LENGTHS.size):
            subject, data = (file.read(length) for length in LENGTHS.unpack(lengths))
            sequence += 1
            checker.feed(read_message(subject.decode(), data, sequence, BEGIN))
    report = checker.finish()
    took = time.perf_counter() - began
    line = {
        "what": f"{path.stem}: bounded to {memory_mib} MiB",
        "events": report.events,
        "jobs": report.jobs,
        "sound": report.sound,
        "events_per_s": round(report.events / took),
        "resident_mib_before": base,
        "resident_mib_max": _resident_mib(),
    }
    print(msgspec.json.encode(line).decode(), flush=True)


def _resident_mib() -> int:
    """Return the greatest resident size of this process so far; where only rusage tells, its parent's may be in it."""
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text("ascii").splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) // 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // MIB


async def measure_bounded(name: str, jobs: int, lead: int, ended: int, memory_mib: int) -> None:
    """Let a process of its own check a history from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        with path.open("wb") as file:
            await history(FileSink(file), jobs, lead, ended)
        command = (sys.executable, __file__, "--check", str(path), "--memory", str(memory_mib))
        _ = await asyncio.to_thread(subprocess.run, command, check=True)


async def main(chosen: argparse.Namespace) -> None:
    """Measure each history."""
    jobs: int = chosen.jobs
    for name, lead, ended in (("drained", IN_FLIGHT, jobs), ("backlog", jobs, jobs // 2)):
        for part in (jobs // 4, jobs):
            await measure_bounded(
                name, part, min(lead, part), min(ended, part // 2 if lead == jobs else part), chosen.memory
            )
        if chosen.only_bounded:
            continue
        log = MemoryLog()
        await history(log, jobs, lead, ended)
        events = [stored async for batch in log.read() for stored in batch]
        measure_feed(f"{name}: fed", log, events, profile=chosen.profile)
        del events
        await measure_verify(f"{name}: verified", log)
        await measure_memory(f"{name}: memory", log, jobs)
        if not chosen.no_server and name == "drained":
            async with AsyncExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                server = EmbeddedServer(folder, port=0, durability="process")
                await stack.enter_async_context(server)
                ledger = await stack.enter_async_context(connect(server.url))
                await copy(log, ledger.log)
                await measure_verify("drained: verified, nats-server", ledger.log, server_pid=server.pid)


def parse() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description="Measure how fast a ledger is checked.")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--memory", type=int, default=16, metavar="MIB", help="bound of the checker")
    parser.add_argument("--only-bounded", action="store_true", help="only the measurements from a file")
    parser.add_argument("--no-server", action="store_true", help="read from memory only")
    parser.add_argument("--profile", action="store_true", help="show where the checker's time goes")
    parser.add_argument("--check", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    asked = parse()
    if asked.check is not None:
        check_file(asked.check, asked.memory)
    else:
        run(main(asked))
