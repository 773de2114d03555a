"""One process that `instructions.py` counts: it does one thing for N jobs, and ends.

    python benchmarks/counted_process.py PART URL N [--calls]

It uses nothing that is younger than workers and `enqueue_many`, so that the packages of an older commit can be counted.
With `--calls` it prints how many Python functions were called, and where its packages are, as one JSON object.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvloop

import jobledger.ledger
from jobledger.ledger import Backoff, Context, Ledger, TaskRegistry, connect, task
from jobledger.projections import Projector
from jobledger.workers import Worker, WorkerConfig

try:
    from jobledger.workers.process import tune_collector
except ImportError:  # as it was called before
    from jobledger.workers.process import settle as tune_collector  # type: ignore[no-redef, attr-defined]

LEDGER_BYTES: Final = 1 << 30
CONCURRENCY: Final = 100
PADDING: Final = "x" * 60  # brings an input to about 100 bytes
#: What runs once a packet and not once a job, so that it depends on how fast the machine is.
PER_PACKET: Final = ("/asyncio/", "/anyio/", "/site-packages/nats/", "/uvloop/", "/selectors.py")


class Countdown:
    """How many jobs are left, and what is to be done after the last one."""

    left = 0
    at_end: Callable[[], None]

    def __call__(self) -> None:
        """Count one job."""
        self.left -= 1
        if not self.left:
            self.at_end()


ended: Final = Countdown()


@task(queue="bench")
async def noop(number: int, padding: str) -> int:  # noqa: ARG001 - the input is part of the cost
    """Do nothing."""
    ended()
    return number


@task(queue="bench", backoff=Backoff(base_s=0.0))
async def flaky(context: Context, number: int, padding: str) -> int:  # noqa: ARG001 - as above
    """Fail in the first attempt."""
    if context.attempt == 1:
        raise ValueError("once")
    ended()
    return number


def inputs(count: int) -> Iterator[dict[str, Any]]:
    """Yield inputs, all of one length."""
    return ({"number": 1_000_000 + number, "padding": PADDING} for number in range(count))


async def add_many(ledger: Ledger, jobs: int) -> None:
    """Enqueue as a stream."""
    await ledger.enqueue_many(noop, inputs(jobs))


async def add_each(ledger: Ledger, jobs: int) -> None:
    """Enqueue one by one."""
    for values in inputs(jobs):
        await ledger.enqueue(noop, **values)


async def add_named(ledger: Ledger, jobs: int) -> None:
    """Enqueue one by one, each with an id of its own."""
    for values in inputs(jobs):
        await ledger.enqueue(noop.options(id=f"job-{values['number']}"), **values)


async def work(ledger: Ledger, jobs: int) -> None:
    """Run as many jobs as are there, with all that a worker hosts by itself."""
    worker = Worker(ledger, TaskRegistry([noop, flaky]), WorkerConfig(concurrency=CONCURRENCY))
    ended.left, ended.at_end = jobs, worker.stop  # those that run now get their outcome
    await worker.run()


async def project(ledger: Ledger, _: int) -> None:
    """Bring a new projection up to date."""
    with (
        tempfile.TemporaryDirectory(prefix="jobledger-bench-") as folder,
        Projector(ledger.log, Path(folder) / "rows.db") as projector,
    ):
        await projector.catch_up()


PARTS: Final[Mapping[str, Callable[[Ledger, int], Awaitable[None]]]] = {
    "bulk": add_many,
    "single": add_each,
    "named": add_named,
    "drain": work,
    "retried": work,
    "project": project,
}


class Calls:
    """Counts the functions of Python that are called, and each time that a coroutine goes on."""

    def __init__(self) -> None:
        self.count = 0
        self._counts: dict[str, bool] = {}  # by file

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Take note of an event of `sys.setprofile`."""
        if event != "call":
            return
        file = frame.f_code.co_filename
        counts = self._counts.get(file)
        if counts is None:
            counts = self._counts[file] = not any(part in file for part in PER_PACKET)
        self.count += counts


async def once(part: str, url: str, jobs: int, calls: Calls | None) -> None:
    """Do one of `PARTS` for `jobs` jobs."""
    tune_collector()
    async with connect(url, ledger_bytes_max=LEDGER_BYTES) as ledger:
        if calls is not None:
            sys.setprofile(calls)
        try:
            await PARTS[part](ledger, jobs)
        finally:
            sys.setprofile(None)


def main() -> None:
    """Do it, and print what was counted here."""
    part, url, jobs, *more = sys.argv[1:]
    calls = Calls() if more else None
    uvloop.run(once(part, url, int(jobs), calls))
    if calls is not None:
        print(json.dumps({"calls": calls.count, "packages": jobledger.ledger.__file__}))


if __name__ == "__main__":
    main()
