"""Ask what happened to a job: its state now, its attempts, every event, and how it was at an earlier moment."""

import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import Context, JobHandle, TaskRegistry, connect, task
from jobledger.ledger.events import event_type
from jobledger.ledger.model.chain import fold
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


@task(queue="reports", max_attempts=3)
async def build_report(context: Context, month: str) -> str:
    if context.attempt == 1:
        message = f"the figures of {month} are not there yet"
        raise LookupError(message)
    return f"report-{month}.pdf"


async def show(job: JobHandle[str]) -> None:
    now = await job.snapshot()
    print(f"{now.id} is {now.state} after {len(now.attempts)} attempts")
    for attempt in now.attempts:
        why = f": {attempt.error.type}: {attempt.error.message}" if attempt.error else ""
        print(f"  attempt {attempt.number} {attempt.state} on {attempt.worker}{why}")
    history = await job.history()
    for stored in history:
        print(f"  {stored.stream_sequence} {stored.stored_at:%H:%M:%S.%f} {event_type(stored.event)}")
    # The same fold, stopped early: the job as it was after its second event.
    then = fold(history[:2]).job
    assert then is not None
    print(f"after stream sequence {history[1].stream_sequence} it was {then.state}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([build_report]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                job = await ledger.enqueue(build_report.options(id="report-2025-01"), month="2025-01")
                print(await job.result(timeout_s=10))
                await show(job)
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
