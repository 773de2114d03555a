"""A durable subscriber: each event is acknowledged when it is dealt with, and nothing is lost by a crash."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.events import Completed, DeadLettered
from jobledger.ledger.server import EmbeddedServer
from jobledger.ledger.subscriptions.errors import SubscriptionMismatchError
from jobledger.workers import Worker

ENDINGS = ["completed", "dead_lettered"]


@task(queue="orders", max_attempts=1)
async def ship(order: int) -> str:
    if order % 2:
        raise ValueError(f"order {order} has no address")
    return f"order {order} is on its way"


class Mail:
    """Somebody else's service, down when it was to send its third mail."""

    sent = 0
    breaks_after = 2

    async def send(self, text: str) -> None:
        """Send one mail."""
        if self.sent == self.breaks_after:
            self.breaks_after = 100
            raise ConnectionError("the mail server does not answer")
        self.sent += 1
        print(f"mailed: {text}")


async def notify(ledger: Ledger, mail: Mail) -> None:
    """Handle one ending after the other; asking for the next one acknowledges the last."""
    async with ledger.events(durable="notify", types=ENDINGS, follow=False) as events:
        async for stored in events:
            match stored.event:
                case Completed(job=job, result=result):
                    await mail.send(f"{job}: {bytes(result).decode()}")
                case DeadLettered(job=job, error=error):
                    await mail.send(f"{job} failed: {error.message if error else 'no reason'}")
                case _:
                    pass


async def count(ledger: Ledger) -> None:
    """Handle several at a time, each acknowledged by itself; a hand-out that fails comes again."""
    tries: dict[str, int] = {}
    async with ledger.subscription("count", types=ENDINGS, max_in_flight=3, follow=False) as deliveries:

        async def handle_some() -> None:
            async for delivery in deliveries:
                async with delivery:  # acknowledges at its end, gives back if it raises
                    tries[delivery.event.job] = delivery.delivered

        await asyncio.gather(*(handle_some() for _ in range(3)))
    print(f"counted {len(tries)} endings, three at a time")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([ship]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                jobs = [await ledger.enqueue(ship.options(id=f"order-{n}"), n) for n in range(4)]
                for job in jobs:
                    await job.wait(timeout_s=10)
                worker.stop()
            mail = Mail()
            with contextlib.suppress(ConnectionError):
                await notify(ledger, mail)
            (left,) = await ledger.subscriptions()
            print(f"crashed at the third: {left.lag} of 4 are not acknowledged")
            await notify(ledger, mail)  # as a new process would: goes on where that one stopped
            await count(ledger)
            try:
                await anext(ledger.events(durable="notify", types=["failed"]))
            except SubscriptionMismatchError as error:
                print(error)


if __name__ == "__main__":
    anyio.run(main)
