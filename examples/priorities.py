"""Three priorities, strictly in order, and two queues that share a worker by their weights."""

import tempfile
from collections import Counter
from pathlib import Path

import anyio

from jobledger.ledger import TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig

ORDER: list[str] = []
DONE: Counter[str] = Counter()


@task(queue="mail")
async def mail(name: str) -> None:
    ORDER.append(name)


@task(queue="fast")
async def fast(number: int) -> None:  # noqa: ARG001 - what matters is whose turn it is
    DONE["fast"] += 1
    await anyio.sleep(0.001)


@task(queue="slow")
async def slow(number: int) -> None:  # noqa: ARG001 - what matters is whose turn it is
    DONE["slow"] += 1
    await anyio.sleep(0.001)


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            for priority in ("low", "normal", "high"):
                await ledger.enqueue(mail.options(priority=priority), name=priority)
            for each in (fast, slow):
                await ledger.enqueue_many(each, ({"number": number} for number in range(400)))

            one_by_one = Worker(ledger, TaskRegistry([mail]), WorkerConfig(concurrency=1))
            async with anyio.create_task_group() as group:
                group.start_soon(one_by_one.run)
                while len(ORDER) < 3:  # noqa: ASYNC110, PLR2004 - as many as were enqueued
                    await anyio.sleep(0.01)
                one_by_one.stop()
            print("taken in the order", ", ".join(ORDER))

            config = WorkerConfig(queues=("fast", "slow"), weights={"fast": 3}, concurrency=8)
            shared = Worker(ledger, TaskRegistry([fast, slow]), config)
            async with anyio.create_task_group() as group:
                group.start_soon(shared.run)
                while DONE.total() < 400:  # noqa: ASYNC110, PLR2004 - half of them
                    await anyio.sleep(0.01)
                share = DONE["fast"] / DONE.total()
                print("three in four are of the queue with weight 3:", 0.6 < share < 0.9)  # noqa: PLR2004
                shared.stop()


if __name__ == "__main__":
    anyio.run(main)
