"""Enqueue a job, run it, and read back what happened to it."""

from pathlib import Path

import anyio

from jobledger.ledger import TaskRegistry, connect, task
from jobledger.ledger.events import event_type
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


@task(queue="email", max_attempts=3, timeout_s=30)
async def send_welcome(user_id: int) -> str:
    return f"welcome mail sent to user {user_id}"


async def main() -> None:
    server = EmbeddedServer(Path(".jobledger"), port=0)
    async with server, connect(server.url) as ledger:
        worker = Worker(ledger, TaskRegistry([send_welcome]))
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            job = await ledger.enqueue(send_welcome, user_id=7)
            print(await job.result(timeout_s=10))
            for stored in await job.history():
                print(stored.stream_sequence, event_type(stored.event), stored.event.by)
            worker.stop()


if __name__ == "__main__":
    anyio.run(main)
