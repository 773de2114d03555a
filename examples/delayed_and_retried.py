"""Jobs that wait for a moment: enqueued for later, tried again with growing pauses, snoozed until there is news."""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from jobledger.ledger import (
    Backoff,
    Context,
    JobHandle,
    Ledger,
    Retry,
    Snooze,
    TaskRegistry,
    connect,
    task,
)
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


@task(queue="mail")
async def remind(user: str) -> str:
    return f"reminded {user}"


@task(queue="mail", max_attempts=3, backoff=Backoff(base_s=0.2, jitter=0))
async def send(context: Context, user: str) -> str:
    if context.attempt in (1, 2):
        message = f"the mail server is busy (attempt {context.attempt})"
        raise ConnectionError(message)
    return f"sent to {user} at attempt {context.attempt}"


@task(queue="mail")
async def wait_for_reply(context: Context, user: str) -> Any:
    match context.attempt:
        case 1:
            return Snooze(0.5)  # no attempt is spent
        case 2:
            return Retry(0.3, "an odd reply, look again before the others", priority="high")
        case _:
            return f"{user} replied"


async def show(job: JobHandle[Any]) -> None:
    """Print the result, and what the ledger says of the way to it."""
    result = await job.result(timeout_s=10)
    events = [stored.event for stored in await job.history()]
    steps = [type(event).__name__.lower() for event in events]
    print(f"{result}: {' '.join(steps)}")


async def run(ledger: Ledger) -> None:
    in_a_moment = await ledger.enqueue(remind.options(delay_s=0.5), "ada")
    at = datetime.now(UTC) + timedelta(seconds=1)
    at_a_time = await ledger.enqueue(remind.options(run_at=at), "grace")
    retried = await ledger.enqueue(send, "ada")
    snoozed = await ledger.enqueue(wait_for_reply, "grace")
    print(f"while it waits it is {(await at_a_time.snapshot()).state}")
    for job in (in_a_moment, at_a_time, retried, snoozed):
        await show(job)
    dispatched = (await at_a_time.history())[1].event.at
    print(f"dispatched before its time: {dispatched < at}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedServer(Path(folder), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([remind, send, wait_for_reply]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                await run(ledger)
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
