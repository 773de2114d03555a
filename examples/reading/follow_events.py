"""React to what ends: read the ledger from a known sequence on, and go on from there after a stop."""

import contextlib
import tempfile
from pathlib import Path

import anyio

from jobledger.ledger import Ledger, TaskRegistry, connect, task
from jobledger.ledger.events import Completed, DeadLettered
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker


@task(queue="orders", max_attempts=1)
async def ship(order: int) -> str:
    if order % 3 == 0:
        message = f"order {order} has no address"
        raise ValueError(message)
    return f"order {order} is on its way"


async def react(ledger: Ledger, from_sequence: int, wanted: int) -> int:
    """Print `wanted` endings and return the sequence to begin at next time; a real one would store it."""
    events = ledger.events(from_sequence=from_sequence, types=["completed", "dead_lettered"])
    async with contextlib.aclosing(events):
        async for stored in events:
            match stored.event:
                case Completed(job=job, result=result):
                    print(f"{stored.stream_sequence} {job}: {bytes(result).decode()}")
                case DeadLettered(job=job, reason=reason):
                    print(f"{stored.stream_sequence} {job}: dead letter, {reason}")
                case _:
                    pass
            from_sequence = stored.stream_sequence + 1
            wanted -= 1
            if not wanted:
                break
    return from_sequence


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedServer(Path(directory), port=0) as server, connect(server.url) as ledger:
            worker = Worker(ledger, TaskRegistry([ship]))
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                for order in range(6):
                    await ledger.enqueue(ship.options(id=f"order-{order}"), order=order)
                position = await react(ledger, from_sequence=1, wanted=2)
                print(f"stopped; the next reader begins at {position}")
                await react(ledger, from_sequence=position, wanted=4)
                worker.stop()


if __name__ == "__main__":
    anyio.run(main)
