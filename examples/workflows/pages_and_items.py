"""An import of pages and their items that a person pauses and resumes, that survives a deploy, and one that is cancelled.

What is done is recorded at three levels: a step, a page, and the items of a page, five to an event. So the run goes on
behind the last five items, not at the beginning.
"""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

from jobledger.admin.verbs.jobs import PauseJob, ResumeJob
from jobledger.ledger import Backoff, JobHandle, Ledger, Run, TaskRegistry, connect, step, workflow
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig

PAGES, ITEMS = 4, 25
LIMIT_S = 30
STORED: Counter[str] = Counter()  # in one process, to show what ran how often
BRAKE = [30]  # how many items the import stores before it waits, so that this program can choose its moments


@step(max_attempts=3, backoff=Backoff(base_s=0.05))
async def read_page(page: int) -> list[str]:
    return [f"{page}.{item}" for item in range(ITEMS)]


@step
async def store(item: str) -> str:
    while STORED.total() >= BRAKE[0]:  # noqa: ASYNC110 - a look at it
        await asyncio.sleep(0.005)
    STORED[item] += 1
    return item


@step
async def publish(items: int) -> str:
    return f"{items} items are published"


@step
async def remove(page: int) -> None:
    print(f"page {page} is removed again")


@workflow(queue="imports")
async def import_pages(run: Run, pages: int) -> str:
    items = 0
    for page in range(pages):
        found = await run.step(read_page, page)
        run.on_failure(remove, page)
        items += len(await run.each(store, found, chunk=5, limit=2))
    return await run.step(publish, items)


@contextlib.asynccontextmanager
async def working(url: str) -> AsyncGenerator[None]:
    """Have a worker for the length of the block; it stops as in a deploy."""
    async with connect(url) as ledger, asyncio.TaskGroup() as group:
        worker = Worker(ledger, TaskRegistry([import_pages]), WorkerConfig(grace_s=0))
        group.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()


async def until_stored(items: int) -> None:
    """Wait until that many items were stored."""
    async with asyncio.timeout(LIMIT_S):
        while STORED.total() < items:  # noqa: ASYNC110 - a look at it
            await asyncio.sleep(0.005)


async def until_state(job: JobHandle[str], state: str) -> None:
    """Wait until a job is in a state."""
    async with asyncio.timeout(LIMIT_S):
        while await job.state() != state:  # noqa: ASYNC110 - a look at it
            await asyncio.sleep(0.01)


async def progress(job: JobHandle[str]) -> str:
    """Return which pages were read and how many chunks of items are recorded."""
    ended = [step.target for step in (await job.snapshot()).steps.values() if step.state == "completed"]
    found = Counter(ended)
    return f"{found['read_page']} pages are read, {5 * found['store']} items are recorded"


async def pause_and_go_on(ledger: Ledger, url: str) -> None:
    """Pause a run, resume it, have its worker replaced, and wait for its end."""
    job = await ledger.enqueue(import_pages.options(id="import-1"), PAGES)
    async with working(url):
        await until_stored(BRAKE[0])
        # As a person does with `jobledger jobs pause import-1` and `jobs resume import-1`.
        await ledger.do(PauseJob(id=job.id, queue=job.queue, reason="the shop is busy"), by="ann")
        BRAKE[0] = 60  # what it does at this moment it does to its end
        await until_state(job, "paused")
        print(f"import-1 is paused: {await progress(job)}")
        await ledger.do(ResumeJob(id=job.id, queue=job.queue), by="ann")
        await until_stored(BRAKE[0])
    print(f"the worker was replaced; import-1 is {await job.state()}: {await progress(job)}")
    BRAKE[0] = 1_000
    async with working(url):
        print(f"import-1: {await job.result(timeout_s=LIMIT_S)}")
    print(f"{len(STORED)} items were stored, none more than twice: {max(STORED.values()) <= 2}")  # noqa: PLR2004


async def cancel(ledger: Ledger, url: str) -> None:
    """Cancel a run in the middle: what it did is undone, the last page first."""
    STORED.clear()
    BRAKE[0] = 30
    job = await ledger.enqueue(import_pages.options(id="import-2"), PAGES)
    async with working(url):
        await until_stored(BRAKE[0])
        await job.cancel(reason="the wrong file")
        ended = await job.wait(timeout_s=LIMIT_S)
    print(f"import-2 is {ended.state}: {ended.cancel_reason}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            await pause_and_go_on(ledger, server.url)
            await cancel(ledger, server.url)


if __name__ == "__main__":
    asyncio.run(main())
