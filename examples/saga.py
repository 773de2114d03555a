"""A journey is booked in three steps and the payment fails: what was booked is cancelled, the last booking first.

The worker is killed (SIGKILL) in the middle of that, and another one goes on. The program starts itself again as workers.
"""

import asyncio
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path

from jobledger.ledger import Ledger, Run, TaskRegistry, connect, step, workflow
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers import Worker, WorkerConfig

LIMIT_S = 60


def notes() -> Path:
    """Return the file of what workers did."""
    return Path(os.environ["SAGA_NOTES"])


def note(words: str) -> None:
    """Add a line that survives the process: the number of the worker and what it does."""
    with notes().open("a", encoding="utf-8") as file:
        file.write(f"worker {os.environ['SAGA_WORKER']}: {words}\n")


@step
async def book(what: str) -> str:
    note(f"books the {what}")
    return f"{what}-1"


@step(max_attempts=3)  # an undo may have tries, too; make it safe to repeat
async def cancel(booking: str) -> None:
    note(f"cancels {booking}")
    if booking == "hotel-1" and os.environ["SAGA_WORKER"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    note(f"has cancelled {booking}")


@step
async def pay(cents: int) -> None:
    note(f"asks for {cents} cents")
    message = "the card is refused"
    raise PermissionError(message)


@workflow(queue="journeys", max_attempts=1)
async def journey(run: Run, cents: int) -> None:
    for what in ("flight", "hotel", "car"):
        booking = await run.step(book, what)
        run.on_failure(cancel, booking)
    await run.step(pay, cents)


async def work(url: str) -> None:
    """Be a worker until somebody ends this process."""
    async with connect(url) as ledger:
        await Worker(ledger, TaskRegistry([journey]), WorkerConfig(ack_wait_s=1)).run()


async def start_worker(url: str, number: int) -> asyncio.subprocess.Process:
    environment = {**os.environ, "SAGA_WORKER": str(number)}
    return await asyncio.create_subprocess_exec(sys.executable, __file__, "worker", url, env=environment)


async def run_saga(ledger: Ledger, url: str) -> None:
    """Have one worker die in the middle of the undo, and another one finish it."""
    job = await ledger.enqueue(journey.options(id="journey-7"), 120_000)
    first = await start_worker(url, 1)
    async with asyncio.timeout(LIMIT_S):
        print("worker 1 ended with", await first.wait())
    print("the run is", await job.state())
    second = await start_worker(url, 2)
    try:
        ended = await job.wait(timeout_s=LIMIT_S)
    finally:
        second.kill()
        await second.wait()
    print(notes().read_text(encoding="utf-8"), end="")
    assert ended.error is not None
    print(f"the run is {ended.state}: {ended.error.message}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SAGA_NOTES"] = str(Path(directory) / "notes")
        server = EmbeddedServer(Path(directory) / "server", port=0)
        async with server, connect(server.url, lease_s=1) as ledger:  # 15 s unless a ledger is made with less
            await run_saga(ledger, server.url)


if __name__ == "__main__":
    logging.getLogger("jobledger").setLevel(logging.CRITICAL)  # that a worker is lost is what this shows
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(work(sys.argv[2]))
    else:
        asyncio.run(main())
