"""An order is charged with a wrong tariff: it is begun again from that step, and the ledger proves what was copied."""

import tempfile
from collections import Counter
from pathlib import Path

import anyio

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, Run, TaskRegistry, connect, step, workflow
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker

CALLS: Counter[str] = Counter()
TARIFF = {"cents": 9_900}  # a mistake: it should be 4,900


@step
async def reserve(order: str) -> str:
    CALLS["reserve"] += 1
    return f"reservation of {order}"


@step
async def charge(reservation: str) -> str:
    CALLS["charge"] += 1
    return f"{TARIFF['cents'] / 100:.2f} for the {reservation}"


@step
async def ship(order: str) -> str:
    CALLS["ship"] += 1
    return f"{order} is on its way"


@workflow(queue="orders")
async def order(run: Run, order: str) -> str:
    reservation = await run.step(reserve, order)
    charged = await run.step(charge, reservation)
    return f"{charged}; {await run.step(ship, order)}"


async def begin_again(ledger: Ledger) -> None:
    job = await ledger.enqueue(order.options(id="order-77"), "77")
    print(f"order-77: {await job.result(timeout_s=10)}")
    TARIFF["cents"] = 4_900
    again = await ledger.rerun("order-77", from_step="charge", task=order, id="order-77-again", by="eve")
    print(f"{again.id}: {await again.result(timeout_s=10)}")
    print(f"calls of the steps: {dict(CALLS)}")
    for key, known in (await again.snapshot()).steps.items():
        where = "executed" if known.copied is None else f"copied from sequence {known.copied.sequence}"
        print(f"{key} of {again.id}: {where}")
    report = await verify(ledger.log)
    print(f"sound: {report.sound}; copies proven: {report.copies}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([order]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                await begin_again(ledger)
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
