"""Write a ledger, archive its beginning, export the rest: run by `make.py` with the code of a release.

usage: write_ledger.py SERVER_URL FOLDER
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import release_app  # type: ignore[import-not-found] # pyright: ignore[reportMissingImports] - beside it

from jobledger.ledger import connect

URL, FOLDER = sys.argv[1], Path(sys.argv[2])
LIMIT_S = 30.0


def command(*words: str) -> None:
    """Run a command of the release."""
    subprocess.run([sys.executable, "-m", "jobledger.cli", *words, "--url", URL], check=True)


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(LIMIT_S):
        while not await check():
            await asyncio.sleep(0.1)


async def state(job: Any) -> str:
    """Return where a job is."""
    return str((await job.state()).value)


async def before(ledger: Any) -> None:
    """Make the jobs whose first events are archived."""
    done = [await ledger.enqueue(release_app.plain.options(id=f"plain{n}"), n=n) for n in range(2)]
    dead = await ledger.enqueue(release_app.flaky.options(id="dead"), n=1)
    await ledger.enqueue(
        release_app.plain.options(id="later", delay_s=timedelta(days=3650).total_seconds()), n=7
    )
    await ledger.enqueue(release_app.waiting.options(id="waiting"), n=8)
    for job in done:
        await job.wait(timeout_s=LIMIT_S)
    await until(lambda: _is(dead, "dead_lettered"))
    run = await ledger.enqueue(release_app.flow.options(id="run"), n=1)
    await until(lambda: _is(run, "paused"))
    first = await ledger.enqueue(release_app.limited.options(id="limited0"), n=0)
    await first.wait(timeout_s=LIMIT_S)


async def _is(job: Any, wanted: str) -> bool:
    return await state(job) == wanted


async def after(ledger: Any) -> None:
    """Make jobs that stay in the ledger; those with a limit are granted by what is archived."""
    jobs = [await ledger.enqueue(release_app.plain.options(id="new"), n=3)]
    jobs += [await ledger.enqueue(release_app.limited.options(id=f"limited{n}"), n=n) for n in (1, 2)]
    for job in jobs:
        await job.wait(timeout_s=LIMIT_S)


async def main() -> None:
    """Write it."""
    queues = ("plain", "limited", "runs")
    words = [sys.executable, "-m", "jobledger.cli", "worker", "--app", "release_app", "--url", URL]
    words += [f"--queue={each}" for each in queues]
    worker = await asyncio.create_subprocess_exec(*words)
    try:
        async with connect(URL) as ledger:
            await before(ledger)
            moment = datetime.now(UTC)
            await asyncio.sleep(0.2)
            await after(ledger)
            await asyncio.to_thread(
                command, "audit", "archive", "--before", moment.isoformat(), "--to", str(FOLDER / "archive")
            )
            last = await ledger.enqueue(release_app.plain.options(id="newest"), n=4)
            await last.wait(timeout_s=LIMIT_S)
    finally:
        worker.terminate()
        await worker.wait()
    await asyncio.to_thread(command, "audit", "export", str(FOLDER / "live"))


asyncio.run(main())
