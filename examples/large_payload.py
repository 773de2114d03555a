"""Pass a large input: above 64 KiB it goes to the object store by its sha256, above 8 MiB it is refused."""

import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import PayloadTooLargeError, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


@task(queue="texts")
def count_words(text: str) -> int:
    return len(text.split())


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([count_words]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                job = await ledger.enqueue(count_words, text="word " * 200_000)
                print(await job.result(timeout_s=10), "words")
                reference = (await job.snapshot()).order.input_ref
                assert reference is not None
                print(f"the event names {reference.sha256[:12]}..., {reference.size_bytes:,} bytes")
                worker.stop()
            try:
                await ledger.enqueue(count_words, text="word " * 2_000_000)
            except PayloadTooLargeError as error:
                print(error)


if __name__ == "__main__":
    anyio.run(main)
