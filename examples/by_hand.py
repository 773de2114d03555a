"""What an operator does with one job: ask why it waits, do not let it wait, run it here and now."""

import tempfile
from pathlib import Path

import anyio

from jobledger.audit.why import explain, find_facts
from jobledger.ledger import JobHandle, Ledger, Retry, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers.single import run_one


@task(queue="reports", max_attempts=3)
async def build(month: str, *, ready: bool) -> str | Retry:
    return f"report-{month}.pdf" if ready else Retry(3_600, "the figures are not there yet")


async def why(ledger: Ledger, job: JobHandle[str | Retry]) -> None:
    now = await job.snapshot()
    print(f"{now.state}: {explain(now, await find_facts(ledger, now)).sentence}")


async def main() -> None:
    tasks = TaskRegistry([build])
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            job = await ledger.enqueue(build, month="2025-01", ready=False)
            await why(ledger, job)
            # Past the queue, but through the same claim as in any worker.
            await run_one(ledger, tasks, job.ref, by="ada")
            await why(ledger, job)
            queued = await ledger.retry(job.ref, reason="the figures came early", by="ada")
            print(f"{queued.state} with {queued.attempts_left} attempts left")
            other = await ledger.enqueue(build.options(delay_s=600), month="2025-02", ready=True)
            done = await run_one(ledger, tasks, other.ref, by="ada")
            print(f"{done.state}: {bytes(done.result).decode()}")


if __name__ == "__main__":
    anyio.run(main)
