"""What looking after a finished job costs: `python benchmarks/reconciler.py [JOBS]`.

Drains jobs with one worker, then lets a reconciler walk over them. Prints jobs a second and the CPU time of
client and server a job. Run it alone: these figures drift with whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from shared import run

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig
from jobledger.workers.reactors.reconciler import Reconciler

GRACE_S = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


@task(queue="post")
async def send(n: int) -> int:
    """Do nothing."""
    return n


def server_cpu_s() -> float:
    """Return the CPU time of the children of this process: the server is the only one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    total = 0
    for child in children:
        fields = Path(f"/proc/{child}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def own_cpu_s() -> float:
    """Return the CPU time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def drain(ledger: Ledger, count: int) -> None:
    """Enqueue jobs and run them all."""
    await ledger.enqueue_many(send, ({"n": n} for n in range(count)))
    worker = Worker(ledger, TaskRegistry([send]), WorkerConfig(reactors=False))
    running = asyncio.create_task(worker.run())
    # The worker is as it is in life and sets no event for us; nor does the reconciler below.
    while (await ledger.log.head()).last_sequence < 3 * count:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    worker.stop()
    await running


async def main(count: int) -> None:
    """Measure once."""
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(Path(folder), port=0, durability="process")
        async with server, connect(server.url) as ledger:
            await drain(ledger, count)
            await asyncio.sleep(GRACE_S)
            reconciler = Reconciler(ledger, grace_s=GRACE_S)
            began_at, own, served = time.perf_counter(), own_cpu_s(), server_cpu_s()
            walking = asyncio.create_task(reconciler.run())
            while not all(lane.is_quiet for lane in await reconciler.lanes()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            took_s = time.perf_counter() - began_at
            walking.cancel()
            own, served = own_cpu_s() - own, server_cpu_s() - served
    print(f"{count:,} jobs: {count / took_s:,.0f} jobs/s, ", end="")
    print(f"client {own / count * 1e6:.1f} us, server {served / count * 1e6:.1f} us a job")


if __name__ == "__main__":
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000
    run(main(jobs))
