"""How fast a ledger is checked, in events a second, and how much memory a job costs the checker.

    python benchmarks/audit.py [--jobs N] [--server] [--profile]

Two histories of N jobs; of ten, seven run once, two fail once and are retried, and one is taken over. `drained` ends
each job soon after it was queued, as a busy worker does; `backlog` queues all jobs before the first one starts and
stops half-way, so that half of them stay open. `fed` times the checker alone on events decoded before, `verified`
the whole way from a log in memory; `--server` reads the first history from a nats-server as well. Prints one JSON
object a line.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import msgspec

from jobledger.ledger.audit import Checker, Report, verify
from jobledger.ledger.chain import EMPTY_CHAIN, Chain, advance, seal
from jobledger.ledger.client import connect
from jobledger.ledger.codec import Stored
from jobledger.ledger.commands import Claim, Command, Complete, Enqueue, Fail, Stamp, TakeOver
from jobledger.ledger.decisions import decide
from jobledger.ledger.events import ErrorInfo
from jobledger.ledger.log import Entry, Log
from jobledger.ledger.memory import MemoryLog
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.subjects import JobRef

IN_FLIGHT = 500
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
BOOM = ErrorInfo(kind="exception", type="ValueError", message="boom", traceback="x" * 400)


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


def command_of(number: int, step: str, chain: Chain) -> Command:
    """Return what happens to a job at this step."""
    if step == "enqueue":
        ref = JobRef(queue=f"queue-{number % 4}", job_id=f"0194{number:08x}-7abc-8def-0123456789ab")
        order = msgspec.Raw(b'{"user_id": %d, "template": "welcome", "language": "en"}' % number)
        return Enqueue(ref=ref, task="bench.send_welcome", input=order, max_attempts=3, timeout_s=30)
    if step == "claim":
        return Claim(worker="bench-1-abcdef", lease_s=15)
    assert chain.job is not None
    epoch = chain.job.claim_epoch
    if step == "take over":
        return TakeOver(worker="bench-2-abcdef", lease_s=15, lost_epoch=epoch)
    if step == "fail":
        return Fail(epoch=epoch, error=BOOM)
    return Complete(epoch=epoch, result=msgspec.Raw(b'"sent"'))


async def history(log: Log, jobs: int, lead: int, ended: int) -> None:
    """Append the events of `jobs` jobs, decided as real ones are."""
    chains: dict[int, Chain] = {}
    for tick, (number, step) in enumerate(schedule(jobs, lead, ended)):
        chain = chains.pop(number, EMPTY_CHAIN)
        stamp = Stamp(at=BEGIN + timedelta(microseconds=97 * tick), by="bench-1-abcdef")
        sealed = seal(chain, decide(chain.job, command_of(number, step, chain), stamp), log.names)
        chain = advance(chain, sealed, await log.append(sealed.entries))
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


def feed(checker: Checker, events: list[Stored]) -> Report:
    """Check events that are there already."""
    for stored in events:
        checker.feed(stored)
    return checker.finish()


def tell(what: str, report: Report, took: float, busy: float) -> None:
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
    print(msgspec.json.encode(line).decode(), flush=True)


async def measure_verify(what: str, log: Log) -> None:
    """Time the whole way from a log."""
    began, cpu = time.perf_counter(), time.process_time()
    report = await verify(log)
    tell(what, report, time.perf_counter() - began, time.process_time() - cpu)


def measure_feed(what: str, log: Log, events: list[Stored], *, profile: bool) -> None:
    """Time the checker alone, and once more with every allocation counted."""
    began, cpu = time.perf_counter(), time.process_time()
    report = feed(Checker(log.names), events)
    tell(what, report, time.perf_counter() - began, time.process_time() - cpu)
    if profile:
        with cProfile.Profile() as profiler:
            feed(Checker(log.names), events)
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(20)


async def measure_memory(what: str, log: Log, jobs: int) -> None:
    """Count what the checker keeps, from events that are gone once they were fed."""
    checker = Checker(log.names)
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


async def main() -> None:
    """Measure each history."""
    parser = argparse.ArgumentParser(description="Measure how fast a ledger is checked.")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--server", action="store_true", help="read through a nats-server as well")
    parser.add_argument("--profile", action="store_true", help="show where the checker's time goes")
    chosen = parser.parse_args()
    jobs: int = chosen.jobs
    for name, lead, ended in (("drained", IN_FLIGHT, jobs), ("backlog", jobs, jobs // 2)):
        log = MemoryLog()
        await history(log, jobs, lead, ended)
        events = [stored async for batch in log.read() for stored in batch]
        measure_feed(f"{name}: fed", log, events, profile=chosen.profile)
        del events
        await measure_verify(f"{name}: verified", log)
        await measure_memory(f"{name}: memory", log, jobs)
        if chosen.server and name == "drained":
            async with AsyncExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                server = EmbeddedServer(folder, port=0, durability="process")
                await stack.enter_async_context(server)
                ledger = await stack.enter_async_context(connect(server.url))
                await copy(log, ledger.log)
                await measure_verify("drained: verified, nats-server", ledger.log)


if __name__ == "__main__":
    anyio.run(main)
