"""Be told what becomes of attempts: hooks of one task. One that fails is reported and changes nothing."""

import logging
import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import Backoff, Hooks, Notice, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


async def note_failure(notice: Notice) -> None:
    assert notice.error is not None
    again = "again soon" if notice.will_retry else "no more"
    print(f"attempt {notice.attempt} of {notice.job_id}: {notice.error.message}, {again}")


def page_someone(notice: Notice) -> None:
    print(f"{notice.job_id} is a dead letter: {notice.reason}")


def broken(_notice: Notice) -> None:
    message = "this hook is broken"
    raise RuntimeError(message)


@task(
    max_attempts=2,
    backoff=Backoff(base_s=0.1),
    hooks=Hooks(on_success=broken, on_failure=note_failure, on_dead_letter=page_someone),
)
async def charge(cents: int) -> str:
    if cents <= 0:
        message = f"cannot charge {cents} cents"
        raise ValueError(message)
    return f"charged {cents} cents"


async def main() -> None:
    logging.disable(logging.ERROR)  # the broken hook's traceback is not what this shows
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([charge]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                print(await (await ledger.enqueue(charge, cents=100)).result(timeout_s=10))
                job = await ledger.enqueue(charge.options(id="charge-7"), cents=0)
                await job.wait(timeout_s=10)
                worker.stop()  # hooks that run get a moment to end


if __name__ == "__main__":
    anyio.run(main)
