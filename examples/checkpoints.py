"""A long job that shows its progress and, when an attempt fails, goes on where the last one was."""

import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import Backoff, Context, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

PAGES = 40


@task(queue="imports", max_attempts=3, backoff=Backoff(base_s=0.1), heartbeat_s=30)
async def import_pages(context: Context) -> str:
    first = context.checkpoint_value or 0
    print(f"attempt {context.attempt} begins at page {first}")
    for page in range(first, PAGES):
        context.progress(page, PAGES, "pages")  # as often as one likes
        if page == 25 and context.attempt == 1:  # noqa: PLR2004 - where the line breaks
            message = "the line broke"
            raise ConnectionError(message)
        if page % 10 == 9:  # noqa: PLR2004 - every ten pages
            await context.checkpoint(page + 1)
        await anyio.sleep(0.01)
    return f"{PAGES} pages"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([import_pages]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                heard: list[bytes] = []
                job = await ledger.enqueue(import_pages)
                async with ledger.hints.watch_progress(job.ref, heard.append):
                    print(await job.result(timeout_s=10))
                print("heard of its progress while it ran:", bool(heard))
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
