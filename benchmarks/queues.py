"""How soon workers see that a queue is paused and resumed: `python benchmarks/queues.py [ROUNDS]`.

Two worker processes run short jobs and a long one. Each round pauses the queue with `interrupt` while jobs are on
their way, and resumes it while jobs wait. All times are the server's, of the events in the ledger: from `paused` to
the last `started` after it and to the `interrupted` of the long job, from `resumed` to the first `started` after it.
Run it alone: these figures drift with whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from shared import LEDGER_BYTES, run, work, worker_processes

from jobledger.ledger import JobHandle, JobState, Ledger, TaskRegistry, connect, task
from jobledger.ledger.model.codec import StoredEvent
from jobledger.ledger.model.errors import JobCancelledError
from jobledger.ledger.model.events import Interrupted, Started
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import WorkerConfig

QUEUE = "post"
WORKERS = 2
SHORT_S = 0.005
JOBS = 400
PATIENCE_S = 30.0
#: Beyond this after the pause nothing of it is still to be started.
SETTLED_S = 0.5


@task(queue=QUEUE)
async def send(n: int) -> int:
    """Take a moment."""
    await asyncio.sleep(SHORT_S)
    return n


@task(queue=QUEUE, max_attempts=1_000)
async def linger() -> None:
    """Run until somebody ends it."""
    await asyncio.sleep(3600.0)


async def running(job: JobHandle[None]) -> None:
    """Wait until the job runs."""
    async with asyncio.timeout(PATIENCE_S):
        while await job.state() is not JobState.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def since(ledger: Ledger, sequence: int) -> tuple[datetime, list[StoredEvent]]:
    """Return when the event at a stream sequence was stored, and the events of jobs after it."""
    message = await ledger.log.get(sequence)
    assert message is not None, "it was stored"
    events = [each async for batch in ledger.log.read(from_sequence=sequence) for each in batch]
    return message.stored_at, events


def ms(later: datetime, earlier: datetime) -> float:
    """Return a span in milliseconds."""
    return (later - earlier).total_seconds() * 1e3


async def pause_and_resume(ledger: Ledger, long: JobHandle[None]) -> tuple[float, float, float]:
    """Pause and resume once; return the three spans in milliseconds."""
    await ledger.enqueue_many(send, ({"n": n} for n in range(JOBS)))
    await running(long)
    paused = await ledger.pause_queue(QUEUE, interrupt=True)
    await asyncio.sleep(SETTLED_S)
    at, events = await since(ledger, paused.sequence)
    late = max((ms(each.stored_at, at) for each in events if isinstance(each.event, Started)), default=0.0)
    given_back = next(
        ms(each.stored_at, at)
        for each in events
        if isinstance(each.event, Interrupted) and each.event.job == long.id
    )
    resumed = await ledger.resume_queue(QUEUE)
    await running(long)
    at, events = await since(ledger, resumed.sequence)
    first = next(ms(each.stored_at, at) for each in events if isinstance(each.event, Started))
    return late, given_back, first


async def measure(rounds: int) -> list[tuple[float, float, float]]:
    """Return the three spans of each round, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(Path(folder), port=0, durability="process")
        async with (
            server,
            connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger,
            worker_processes(__file__, server.url, ledger, WORKERS),
        ):
            long = await ledger.enqueue(linger)
            found = [await pause_and_resume(ledger, long) for _ in range(rounds)]
            await long.cancel()
            with contextlib.suppress(JobCancelledError):
                await long.wait()  # a worker that ends while it runs waits for it
    return found


def row(name: str, spans: Sequence[float]) -> None:
    """Print what was measured of one thing."""
    print(f"{name:<42} p50 {statistics.median(spans):6.1f} ms   max {max(spans):6.1f} ms")


def main(rounds: int) -> None:
    """Measure some rounds, print."""
    late, given_back, first = zip(*run(measure(rounds)), strict=True)
    print(
        f"{rounds} rounds, {WORKERS} worker processes of 8 slots, {JOBS} jobs of {SHORT_S * 1e3:g} ms a round"
    )
    row("paused -> the last job that was started", late)
    row("paused -> a running attempt is given back", given_back)
    row("resumed -> the first job is started", first)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        run(work(sys.argv[2], TaskRegistry([send, linger]), WorkerConfig(concurrency=8)))
    else:
        main(int((*sys.argv[1:], "30")[0]))
