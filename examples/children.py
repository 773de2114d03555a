"""A job that makes others: they are made once, however many attempts it needs, and belong to it."""

import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import Backoff, Context, TaskRegistry, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


@task(queue="pages")
async def render(page: int) -> str:
    return f"page {page}"


@task(queue="books", backoff=Backoff(base_s=0.1))
async def print_book(context: Context, pages: int) -> list[str]:
    made = [await context.ledger.enqueue(render, page) for page in range(1, pages + 1)]
    print(f"attempt {context.attempt}: {sum(job.created for job in made)} jobs made")
    if context.attempt == 1:
        raise ConnectionError("the printer is away")
    return [await job.result(timeout_s=10) for job in made]


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([render, print_book]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                book = await ledger.enqueue(print_book.options(id="book-7"), pages=3)
                print(await book.result(timeout_s=15))
                page = await ledger.job("book-7-render-2", task=render)
                first = (await page.history())[0].event
                print(f"{page.id} was made by {first.causation}: {await page.result()}")
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
