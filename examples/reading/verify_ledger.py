"""Prove that a ledger is as it should be, keep the report, and find an event that somebody appended by hand."""

import tempfile
from pathlib import Path

import anyio
import msgspec

from jobledger.audit.verify import Expectation, Report, leftovers, verify
from jobledger.ledger import JobRef, Ledger, TaskRegistry, connect, task
from jobledger.ledger.events import Completed
from jobledger.ledger.model.chain import commit, load
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


@task(queue="email")
async def send_welcome(user_id: int) -> str:
    return f"welcome mail sent to user {user_id}"


async def prove(ledger: Ledger, jobs: list[str]) -> bytes:
    """Check the whole ledger, and that it holds these jobs and no others, all of them final."""
    left = await leftovers(ledger.inbox, ledger.names, within_s=5)
    expected = Expectation(enqueued=[("email", job) for job in jobs], all_final=True, leftovers=left)
    report = await verify(ledger.log, expected=expected)
    print(report.text())
    return msgspec.json.encode(report)


async def forge(ledger: Ledger, job: str) -> None:
    """Append a second outcome, past every rule: the server only checks the condition, and that one is met."""
    chain = await load(ledger.log, JobRef(queue="email", job_id=job))
    assert chain.job is not None
    event = Completed(
        job=job, queue="email", task=chain.job.task, at=ledger.clock.now(), by="mallory", attempt=1
    )
    await commit(ledger.log, chain, [event])


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "report.json"
        async with EmbeddedServer(Path(folder), port=0) as server, connect(server.url) as ledger:
            jobs = [await ledger.enqueue(send_welcome, number) for number in range(3)]
            worker = Worker(ledger, TaskRegistry([send_welcome]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                for job in jobs:
                    await job.result(timeout_s=10)
                kept.write_bytes(await prove(ledger, [job.id for job in jobs]))
                worker.stop()
            await forge(ledger, jobs[0].id)
            # A kept report says what the ledger was like then: what it covers must still be the same.
            report = await verify(ledger.log, before=msgspec.json.decode(kept.read_bytes(), type=Report))
            print(report.text())


if __name__ == "__main__":
    anyio.run(main)
