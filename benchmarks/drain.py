"""How fast one worker runs jobs without limits.

    python benchmarks/drain.py URL JOBS

Enqueues the jobs, runs them in a worker process and prints one JSON object. A script of its own, so that it can be run
with the packages of another commit (`against.py`): it uses nothing that is younger than workers and `enqueue_many`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AbstractAsyncContextManager
from subprocess import Popen

from shared import cpu_s, reached, run, worker_process

import jobledger.ledger
from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.process import tune_collector

LEDGER_BYTES = 1 << 30


@task(queue="bench")
async def noop(number: int) -> int:
    """Do nothing."""
    return number


async def drained(
    ledger: Ledger, jobs: int, worker: AbstractAsyncContextManager[Popen[bytes]]
) -> dict[str, float]:
    """Return the jobs a second from the first `started` to the last end, and the worker's CPU in us a job.

    `worker` starts a process that runs `noop`. By the server's clock; nothing else may append meanwhile.
    """
    await ledger.enqueue_many(noop, ({"number": n} for n in range(jobs)))
    before = (await ledger.log.head()).last_sequence
    async with worker as process:
        cpu, done = cpu_s(process.pid), ((await ledger.log.head()).last_sequence - before) / 2
        await reached(ledger, before + 2 * jobs)
        cpu = cpu_s(process.pid) - cpu
    first, last = await ledger.log.get(before + 1), await ledger.log.get(before + 2 * jobs)
    assert first is not None, "it was stored"
    assert last is not None, "it was stored"
    took_s = (last.stored_at - first.stored_at).total_seconds()
    return {"jobs/s": jobs / took_s, "us": cpu / max(1, jobs - done) * 1e6}


async def once(url: str, jobs: int) -> None:
    """Measure once, and print it with the place of the packages that were measured."""
    async with connect(url, ledger_bytes_max=LEDGER_BYTES) as ledger:
        figures = await drained(ledger, jobs, worker_process(ledger, __file__, "--worker", url))
    print(json.dumps({**figures, "packages": jobledger.ledger.__file__}))


async def work(url: str) -> None:
    """Be the worker, with all that a worker hosts by itself."""
    tune_collector()
    async with connect(url, ledger_bytes_max=LEDGER_BYTES) as ledger:
        worker = Worker(ledger, TaskRegistry([noop]), WorkerConfig(concurrency=256))
        asyncio.get_running_loop().add_signal_handler(15, worker.stop)
        await worker.run()


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        run(work(sys.argv[2]))
    else:
        run(once(sys.argv[1], int(sys.argv[2])))
