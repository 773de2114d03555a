"""New code for runs that are under way: a step added, one removed, two swapped, and one changed, which is found before the deploy.

`DEPLOYED` says which code this process is. `jobledger workflows check` is a process of its own, and is told in its environment.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import JobHandle, Ledger, Run, Signal, TaskRegistry, connect, step, workflow
from jobledger.ledger.model.events import event_type
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig

#: Which code this process is: "before", then "after", then "mended". A real deploy brings another file.
DEPLOYED = {"code": os.environ.get("CODE", "before")}
go = Signal("go", int)


@step
async def reserve(order: str) -> str:
    return f"reserved for {order}"


@step
async def weigh(order: str) -> int:
    return len(order)


@step
async def charge(order: str, cents: int) -> str:
    return f"{order} charged {cents}"


@workflow(queue="shop")
async def added(run: Run, order: str) -> str:
    await run.step(reserve, order)
    if DEPLOYED["code"] != "before":
        await run.step(weigh, order)
    charged = await run.step(charge, order, 100)
    await run.wait(go)
    return charged


@workflow(queue="shop")
async def removed(run: Run, order: str) -> str:
    await run.step(reserve, order)
    if DEPLOYED["code"] == "before":
        await run.step(weigh, order)
    charged = await run.step(charge, order, 100)
    await run.wait(go)
    return charged


@workflow(queue="shop")
async def swapped(run: Run, order: str) -> str:
    if DEPLOYED["code"] == "before":
        await run.step(reserve, order)
        charged = await run.step(charge, order, 100)
    else:
        charged = await run.step(charge, order, 100)
        await run.step(reserve, order)
    await run.wait(go)
    return charged


@workflow(queue="shop")
async def changed(run: Run, order: str) -> str:
    cents = 100
    if DEPLOYED["code"] == "after":
        cents = 120  # also for a run that has charged 100: it diverges
    if DEPLOYED["code"] == "mended":
        cents = 120 if await run.patched("price-120") else 100  # a run that has charged stays as it is
    charged = await run.step(charge, order, cents)
    await run.wait(go)
    return charged


WORKFLOWS = (added, removed, swapped, changed)


def deploy(code: str) -> None:
    """Let the next worker of this process be that code."""
    DEPLOYED["code"] = code


async def work(ledger: Ledger, jobs: list[JobHandle[str]], until: str) -> None:
    """Run a worker with the present code until each of the jobs has such an event behind those that it has now, or has ended."""
    seen = (await ledger.log.head()).last_sequence
    worker = Worker(ledger, TaskRegistry(WORKFLOWS), WorkerConfig(grace_s=1))
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        for job in jobs:
            async for stored in job.transitions(timeout_s=30):
                if stored.stream_sequence > seen and event_type(stored.event) == until:
                    break
        worker.stop()


async def cli(url: str, code: str, *words: str) -> str:
    """Run a command of jobledger with some code, and return what it printed and how it exited."""
    done = await anyio.run_process(
        [sys.executable, "-m", "jobledger.cli", *words, "--url", url, "--projection", "shop.db"],
        env={**os.environ, "CODE": code},
        check=False,
        stderr=subprocess.STDOUT,
    )
    return f"{done.stdout.decode()}exit code {done.returncode}"


async def main(folder: Path) -> None:
    os.chdir(folder)
    async with (
        EmbeddedServer(folder, port=0, durability="process") as server,
        connect(server.url, ledger_bytes_max=64 << 20) as ledger,
    ):
        jobs = [await ledger.enqueue(each.options(id=f"{each.name}-1"), "77") for each in WORKFLOWS]
        await work(ledger, jobs, "paused")
        check = ("workflows", "check", "--app", __file__, "--open")
        print("before the deploy of the new code:")
        print(await cli(server.url, "after", *check))

        deploy("after")
        for job in jobs:
            await ledger.signal(job, go, 1)
        await work(ledger, jobs, "completed")
        for job in jobs:
            ended = await job.snapshot()
            print(f"{job.id} is {ended.state}", ended.dead_reason or "")

        print("before the deploy of the mended code:")
        print(await cli(server.url, "mended", *check))
        deploy("mended")
        print(await cli(server.url, "mended", "dlq", "requeue", "changed-1"))
        await work(ledger, jobs[3:], "completed")
        print(f"changed-1 is {await jobs[3].state()}: {await jobs[3].result()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        anyio.run(main, Path(place))
