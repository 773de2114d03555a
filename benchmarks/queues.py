"""What many queues cost, and how soon workers see a pause: `python benchmarks/queues.py [ROUNDS] [--queues 1,20,1000]`.

First, for each number of queues, a worker that starts with them is given jobs of all of them in turns: once a backlog,
once as a steady stream that it easily keeps up with. Figures are processor time a job, beside that of one queue; with jobs that come
one by one the server's includes that of the enqueues. `--queues` measures only this.

Then pauses. Two worker processes run short jobs and a long one. Each round pauses the queue with `interrupt` while jobs are on
their way, and resumes it while jobs wait. All times are the server's, of the events in the ledger: from `paused` to
the last `started` after it and to the `interrupted` of the long job, from `resumed` to the first `started` after it.
Run it alone: these figures drift with whatever else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from shared import LEDGER_BYTES, LIMIT_S, cpu_s, reached, run, work, worker_process, worker_processes

from jobledger.ledger import JobHandle, JobState, Ledger, Task, TaskRegistry, connect, task
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


#: Of the figures by number of queues.
NUMBERS = "1,20,200"
BACKLOG = 8_000
A_SECOND = 200
STEADY_S = 6.0
SLOTS = 100
EVENTS = 3  # of a job


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


def many(queues: int) -> list[Task[..., None]]:
    """Return `queues` tasks, each with a queue of its own."""

    async def nothing(n: int) -> None:
        pass

    return [task(name=f"nothing_{each}", queue=f"queue_{each}")(nothing) for each in range(queues)]


class Cost(NamedTuple):
    """What a job costs, in microseconds of processor time."""

    worker_us: float
    server_us: float


@contextlib.asynccontextmanager
async def counted(server: EmbeddedServer, worker: int, ledger: Ledger) -> AsyncGenerator[list[Cost], None]:
    """Count for the length of the block: the list that it gives has the figures afterwards."""
    found: list[Cost] = []
    begun = (cpu_s(worker), cpu_s(server.pid), (await ledger.log.head()).last_sequence)
    yield found
    now = (cpu_s(worker), cpu_s(server.pid), (await ledger.log.head()).last_sequence)
    worker_s, server_s, events = (after - before for before, after in zip(begun, now, strict=True))
    found.append(Cost(worker_s / events * 1e6, server_s / events * 1e6))


async def enqueue_in_turns(ledger: Ledger, tasks: Sequence[Task[..., None]], first: int, count: int) -> None:
    """Enqueue jobs from a number on, each in the next queue."""
    for begin in range(first, first + count, 1_000):
        jobs = range(begin, min(begin + 1_000, first + count))
        await asyncio.gather(*(ledger.enqueue(tasks[number % len(tasks)], n=number) for number in jobs))


async def measure_queues(number: int) -> tuple[float, Cost, Cost]:
    """Return the seconds that a worker of `number` queues takes to start, and its costs: of a backlog, and steadily."""
    tasks = many(number)
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(Path(folder), port=0, durability="process")
        async with server, connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger:
            words = (__file__, "--worker", server.url, str(number))
            began = time.perf_counter()
            async with worker_process(ledger, *words) as process:
                await (await ledger.enqueue(tasks[-1], n=0)).wait(timeout_s=LIMIT_S)
                start_s = time.perf_counter() - began
                async with counted(server, process.pid, ledger) as steady:
                    until = time.perf_counter() + STEADY_S
                    for first in range(0, int(A_SECOND * STEADY_S), 10):
                        await enqueue_in_turns(ledger, tasks, first, 10)
                        left = until - time.perf_counter() - STEADY_S + (first + 10) / A_SECOND
                        await asyncio.sleep(max(0.0, left))
            await enqueue_in_turns(ledger, tasks, 0, BACKLOG)
            head = (await ledger.log.head()).last_sequence
            async with worker_process(ledger, *words) as process:
                await reached(ledger, head + BACKLOG // 5)  # it has started
                async with counted(server, process.pid, ledger) as backlog:
                    await reached(ledger, head + 2 * BACKLOG)
    return start_s, _of_jobs(backlog[0], 2), _of_jobs(steady[0], EVENTS)


def _of_jobs(cost: Cost, events: int) -> Cost:
    """Return the cost of a job from that of an event."""
    return Cost(cost.worker_us * events, cost.server_us * events)


def show_queues(numbers: Sequence[int]) -> None:
    """Measure each number of queues and print it beside the first."""
    print(
        f"processor time a job, {BACKLOG:,} jobs that wait, then {A_SECOND} a second; in brackets: of the first row"
    )
    print(f"{'queues':>6} {'start':>8}   {'backlog: worker, server':<36} one by one: worker, server")
    first: tuple[Cost, Cost] | None = None
    for number in numbers:
        start_s, *costs = run(measure_queues(number))
        backlog, steady = costs
        first = first or (backlog, steady)
        cells = [
            f"{us:5.0f} us ({us / base:4.1f})"
            for cost, bases in zip((backlog, steady), first, strict=True)
            for us, base in zip(cost, bases, strict=True)
        ]
        print(f"{number:>6} {start_s:6.2f} s   {'  '.join(cells)}", flush=True)


def show_pauses(rounds: int) -> None:
    """Measure some rounds, print."""
    late, given_back, first = zip(*run(measure(rounds)), strict=True)
    print(
        f"{rounds} rounds, {WORKERS} worker processes of 8 slots, {JOBS} jobs of {SHORT_S * 1e3:g} ms a round"
    )
    row("paused -> the last job that was started", late)
    row("paused -> a running attempt is given back", given_back)
    row("resumed -> the first job is started", first)


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=30)
    parser.add_argument("--queues", metavar="N,N,...")
    given = parser.parse_args()
    show_queues([int(number) for number in (given.queues or NUMBERS).split(",")])
    if given.queues is None:
        show_pauses(given.rounds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        url, *queues = sys.argv[2:]
        registry = TaskRegistry(many(int(queues[0]))) if queues else TaskRegistry([send, linger])
        run(work(url, registry, WorkerConfig(concurrency=SLOTS if queues else 8)))
    else:
        main()
