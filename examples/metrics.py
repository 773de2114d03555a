"""Let Prometheus see a fleet: the exporter tells of all jobs, a worker's own page of that process alone."""

import asyncio
import contextlib
import tempfile
import urllib.request
from pathlib import Path

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.metrics.server import MetricsServer
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections.metrics.exporter import Exporter
from jobledger.workers import Worker
from jobledger.workers.metrics import measured


@task(queue="email", max_attempts=1)
async def send(address: str) -> str:
    if "@" not in address:
        raise ValueError("no such address")
    return f"mail to {address} sent"


def show(url: str, *names: str) -> None:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own
        lines = answer.read().decode().splitlines()
    for name in names:
        print(*(line for line in lines if line.startswith(name) and not line.endswith(" 0.0")), sep="\n")


async def export(ledger: Ledger, file: Path) -> None:
    exporter = Exporter(ledger, file)
    following = asyncio.create_task(exporter.run())
    with MetricsServer(exporter, exporter.health) as server:  # beside the event loop: in threads of its own
        while reason := await asyncio.to_thread(exporter.health):
            print(reason)
            await asyncio.sleep(0.2)
        await asyncio.to_thread(
            show,
            server.url,
            "jobledger_up",
            "jobledger_queue_jobs{",
            "jobledger_jobs_completed_total",
            "jobledger_task_failures_total",
        )
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await run(Path(folder))


async def run(folder: Path) -> None:
    async with EmbeddedServer(folder / "store", port=0) as server, connect(server.url) as ledger:
        worker = Worker(ledger, TaskRegistry([send]))
        async with measured(ledger, worker) as collector:
            working = asyncio.create_task(worker.run())
            addresses = ["ada@example.org", "grace@example.org", "nobody", "mary@example.org"]
            for job in [await ledger.enqueue(send, address=each) for each in addresses]:
                await job.wait(timeout_s=10)
            with MetricsServer(collector, collector.health) as page:
                await asyncio.to_thread(show, page.url, "jobledger_worker_deliveries_total")
            worker.stop()
            await working
        await export(ledger, folder / "metrics.db")


if __name__ == "__main__":
    asyncio.run(main())
