"""Move what is old and over out of the ledger while jobs go on, and prove the ledger together with its archive."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import anyio

from jobledger.audit.archive import Archiver, archive_deps, open_archive
from jobledger.audit.verify import verify
from jobledger.ledger import JobNotFoundError, Ledger, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import counting
from jobledger.workers import Worker


@task(queue="reports")
async def report(month: str) -> str:
    return f"report-{month}.pdf"


async def work(ledger: Ledger, *job_ids: str) -> None:
    """Run a worker until these jobs have a result."""
    worker = Worker(ledger, TaskRegistry([report]))
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        for job_id in job_ids:
            print(await (await ledger.job(job_id)).result(timeout_s=10))
        worker.stop()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "archive"
        async with EmbeddedServer(Path(folder) / "store", port=0) as server, connect(server.url) as ledger:
            await ledger.enqueue(report.options(id="january"), "2025-01")
            await work(ledger, "january")
            await ledger.enqueue(report.options(id="later", delay_s=1), "2025-02")

            # What `jobledger audit archive --before TIME --to DIR` does; a run that is cut off is finished by the next.
            # It counts what goes, so that the counters of a rebuilt projection stay what they are.
            count = counting(ledger.log, Path(folder) / "jobs.db")
            deps = archive_deps(
                ledger, by="alice", on_progress=lambda _step, _done, _total: None, count=count
            )
            done = await Archiver(ledger.log, archive, deps).run(before=datetime.now(UTC))
            print(f"{done.events} events archived, {done.jobs_carried} job carried on")
            try:
                await ledger.job("january")
            except JobNotFoundError as error:
                print(error)
            await work(ledger, "later")

            held = await verify(ledger.log)
            print(f"from stream sequence {held.from_sequence}: {held.jobs} job, sound: {held.sound}")
            whole = await verify(await open_archive(ledger.log, archive))
            print(f"from stream sequence {whole.from_sequence}: {whole.jobs} jobs, sound: {whole.sound}")


if __name__ == "__main__":
    anyio.run(main)
