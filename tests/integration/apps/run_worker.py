"""Run one worker process: `run_worker.py URL ENVIRONMENT OPTIONS`, the options of WorkerConfig as JSON.

Prints `ready` once it takes work, `stopping` at each signal to stop, and `stopped` after a stop in good order. SIGTERM
stops it, twice at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import msgspec

from jobledger.ledger import TaskRegistry, connect
from jobledger.workers import Worker, WorkerConfig


async def main(url: str, environment: str, options: str) -> None:
    """Work until stopped."""
    tasks = TaskRegistry.load([str(Path(__file__).with_name("work.py"))])
    config = msgspec.json.decode(options, type=WorkerConfig)
    async with connect(url, environment=environment) as ledger:
        worker = Worker(ledger, tasks, config)

        def stop() -> None:
            worker.stop()
            _say("stopping")

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        running = asyncio.create_task(worker.run())
        while not await ledger.leases.find(worker.identity) and not running.done():
            await asyncio.sleep(0.01)
        _say("ready")
        await running
    _say("stopped")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s"
    )
    asyncio.run(main(*sys.argv[1:]))
