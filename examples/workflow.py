"""An order of four steps: its worker is stopped in the middle, another one goes on, and a person says yes."""

import tempfile
from collections import Counter
from pathlib import Path

import anyio
import msgspec

from jobledger.ledger import Fail, Ledger, Run, Signal, TaskRegistry, connect, step, workflow
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig

CALLS: Counter[str] = Counter()  # in one process, to show what ran how often


class Approval(msgspec.Struct):
    """What the signal says."""

    by: str
    yes: bool


approved = Signal("approved", Approval)


@step
async def reserve(order: str) -> str:
    CALLS["reserve"] += 1
    return f"reserved for {order}"


@step(max_attempts=3)
def charge(order: str, cents: int) -> str:
    CALLS["charge"] += 1
    return f"charge-{order}-{cents}"


@step
async def refund(charge_id: str) -> None:
    CALLS[f"refund of {charge_id}"] += 1


@workflow(queue="orders")
async def order(run: Run, order: str, cents: int) -> str | Fail:
    await run.step(reserve, order)
    charge_id = await run.step(charge, order, cents)
    run.on_failure(refund, charge_id)
    answer = await run.wait(approved, timeout_s=3 * 86_400)  # no worker is busy with it meanwhile
    if not answer.yes:
        return Fail(f"{answer.by} said no")  # the charge is refunded now, and the run is a dead letter
    await run.sleep(0.05)
    return f"{charge_id}, approved by {answer.by}"


async def work(ledger: Ledger) -> None:
    """Run what is there, then stop: as a deploy does."""
    worker = Worker(ledger, TaskRegistry([order]), WorkerConfig(grace_s=1))
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        job = await ledger.job("order-77")
        while (await job.state()) not in {"waiting", "completed"}:  # noqa: ASYNC110 - a look at it
            await anyio.sleep(0.01)
        print(f"order-77 is {await job.state()}, its steps: {', '.join((await job.snapshot()).steps)}")
        worker.stop()


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            job = await ledger.enqueue(order.options(id="order-77"), "77", cents=150_000)
            await work(ledger)
            told = await ledger.signal("order-77", approved, Approval(by="eve", yes=True), id="click-1")
            again = await ledger.signal("order-77", approved, Approval(by="eve", yes=True), id="click-1")
            print(f"the first click was recorded: {told}; the second one: {again}")
            await work(ledger)
            print(await job.result(timeout_s=10))
            print(f"calls of the steps: {dict(CALLS)}")


if __name__ == "__main__":
    anyio.run(main)
