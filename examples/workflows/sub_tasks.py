"""An article is published in sub-tasks: each with its own retries, one at a time for each account, and a callback at the end.

Where a newer job of the same article waits, the older one is cancelled.
"""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

from jobledger.ledger import (
    Backoff,
    JobHandle,
    Ledger,
    Limit,
    Run,
    RunEnd,
    TaskRegistry,
    connect,
    step,
    task,
    workflow,
)
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

LIMIT_S = 30
SOON = Backoff(base_s=0.05)
CALLS: Counter[str] = Counter()  # in one process, to show what ran how often
AT_ONCE: Counter[str] = Counter()  # calls of the bank that run now, by account
PEAK: Counter[str] = Counter()
TOLD: dict[str, str] = {}  # what the callback was told, by run


@step(max_attempts=3, backoff=SOON)  # a sub-task inside the run, with tries of its own
async def resize(image: str) -> str:
    CALLS[image] += 1
    if CALLS[image] == 1:
        message = "the disk is full"
        raise OSError(message)
    return f"small {image}"


@task(  # a sub-task that is a job of its own, with its own retries and a concurrency key: one at a time for an account
    queue="bank", max_attempts=4, backoff=SOON, limits=(Limit("account", key="account", slots=1),)
)
async def charge(account: str, cents: int) -> str:
    AT_ONCE[account] += 1
    PEAK[account] = max(PEAK[account], AT_ONCE[account])
    try:
        await asyncio.sleep(0.02)
        CALLS[f"{account} {cents}"] += 1
        if cents < 0:
            message = f"{cents} cents"
            raise ValueError(message)
        if CALLS[f"{account} {cents}"] == 1:
            message = "the bank is busy"
            raise ConnectionError(message)
    finally:
        AT_ONCE[account] -= 1
    return f"{account} paid {cents} cents"


@task(queue="told")
async def on_end(end: RunEnd) -> None:
    TOLD[end.id] = f"{end.state}{': ' if end.error else ''}{end.error.partition(' (')[0]}"


@workflow(queue="articles", max_attempts=1, on_success=on_end, on_fail=on_end)
async def publish(run: Run, account: str, cents: int) -> str:
    image = await run.step(resize, f"image of {run.id}")
    paid = await run.options(on_dead_letter="fail").call(charge, account, cents)
    return f"{image}, {paid}"


@task(queue="previews", limits=(Limit("article", key="article", slots=1, mode="newest"),))
async def preview(article: str, version: int) -> str:
    """Of several that wait only the newest runs; `mode="replace"` would also end the one that runs."""
    return f"preview of {article}, version {version}"


async def publish_all(ledger: Ledger) -> None:
    """Publish three articles of one account, and one that cannot be paid."""
    jobs: list[JobHandle[str]] = []
    for number, cents in enumerate((100, 200, 300, -1)):
        jobs.append(await ledger.enqueue(publish.options(id=f"article-{number}"), "ann", cents))
    for job in jobs:
        ended = await job.wait(timeout_s=LIMIT_S)
        print(f"{job.id}: {await job.result() if ended.state == 'completed' else ended.state}")
        await (await ledger.job(f"{job.id}-end-of-articles")).wait(timeout_s=LIMIT_S)
        print(f"  its callback was told: {TOLD[job.id]}")
    paid = [await (await ledger.job(f"{job.id}-2-0-of-articles")).snapshot() for job in jobs]
    print(f"attempts of the payments: {[each.attempts_count for each in paid]}")
    print(f"payments of one account that ran at once: {PEAK['ann']}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            previews = [
                await ledger.enqueue(preview.options(id=f"preview-{version}"), "news", version)
                for version in (1, 2, 3)
            ]
            worker = Worker(ledger, TaskRegistry([publish, charge, on_end, preview]))
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.run())
                await publish_all(ledger)
                for each in previews:
                    ended = await each.wait(timeout_s=LIMIT_S)
                    print(
                        f"{each.id} is {ended.state}{': ' * bool(ended.cancel_reason)}{ended.cancel_reason}"
                    )
                worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
