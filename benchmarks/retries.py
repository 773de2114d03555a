"""What a job costs that fails once, beside one that succeeds: CPU of workers and server, events in the ledger.

    python benchmarks/retries.py [--jobs N] [--rounds N] [--workers N] [--durability power|process] [--json]

Each round has a fresh embedded server for each row: jobs that succeed, jobs that fail once and are retried at once, and
jobs that are retried after a second. CPU is measured from the first tenth of the events, or from when all workers run, to
the last event: with several workers take some 20,000 jobs. The machine's speed drifts, so the rows are interleaved, and `times_success` of a row compares medians of one run.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from shared import LEDGER_BYTES, arguments, cpu_s, reached, run, show, work, worker_processes

from jobledger.ledger import Context, Retry, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import WorkerConfig

#: Of each row: after how many seconds the first attempt is retried, None: it succeeds; and how many events a job has.
ROWS = {"success": (None, 3), "at_once": (0.0, 5), "after_1_s": (1.0, 6)}


@task(queue="bench", max_attempts=3)
async def noop(number: int, delay_s: float | None, padding: str, context: Context) -> int | Retry:  # noqa: ARG001 - the input is part of the cost
    """Do nothing, or ask for one retry."""
    if delay_s is None or context.attempt > 1:
        return number
    return Retry(delay_s=delay_s)


async def measure(row: str, jobs: int, workers: int, durability: Any) -> dict[str, float]:
    """Return what a job of a row costs: microseconds of CPU, and events."""
    delay_s, events = ROWS[row]
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedServer(Path(directory), port=0, durability=durability, monitor_port=None)
        async with server, connect(server.url, ledger_bytes_max=LEDGER_BYTES) as ledger:
            inputs = ({"number": n, "delay_s": delay_s, "padding": "x" * 60} for n in range(jobs))
            await ledger.enqueue_many(noop, inputs)
            begun = (await ledger.log.head()).last_sequence
            last = begun + (events - 1) * jobs
            async with worker_processes(__file__, server.url, ledger, workers) as pids:
                await reached(ledger, begun + (last - begun) // 10)
                first = (await ledger.log.head()).last_sequence
                before = [sum(map(cpu_s, pids)), cpu_s(server.pid)]
                await reached(ledger, last)
                if first >= last:
                    raise SystemExit("all was over before all workers ran: take more --jobs")
                share = jobs * (last - first) / (last - begun)
                own, of_server = sum(map(cpu_s, pids)) - before[0], cpu_s(server.pid) - before[1]
            types = [msgspec.json.decode(each.data)["type"] async for each in ledger.events(follow=False)]
    return {
        "worker_us": own / share * 1e6,
        "server_us": of_server / share * 1e6,
        "events": len(types) / jobs,
        "failed": types.count("failed") / jobs,
    }


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]}


def main() -> None:
    """Read the arguments, measure, print."""
    parser = arguments("what a retried job costs beside one that succeeds")
    parser.add_argument("--jobs", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    if given.worker:
        run(work(given.worker, TaskRegistry([noop]), WorkerConfig(concurrency=100)))
        return
    rounds: dict[str, list[dict[str, float]]] = {row: [] for row in ROWS}
    for _ in range(given.rounds):
        for row, found in rounds.items():
            found.append(run(measure(row, given.jobs, given.workers, given.durability)))
    figures = {f"{row}_{name}": value for row, each in rounds.items() for name, value in median(each).items()}
    cost = {row: figures[f"{row}_worker_us"] + figures[f"{row}_server_us"] for row in ROWS}
    figures |= {f"{row}_times_success": round(cost[row] / cost["success"], 2) for row in ROWS}
    show(figures, as_json=given.json)


if __name__ == "__main__":
    main()
