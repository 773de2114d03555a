"""How well the workers of a queue follow its load, from none to none.

    python benchmarks/autoscale.py [--jobs 1500] [--target 10] [--json]

A server, a gateway that hosts the reactors, and no worker. A burst of jobs that take 0.3 s comes, and when it is gone ten
jobs a second for 20 s. Each second a loop asks `GET /v1/queues/auto/wanted`, and starts the workers that are missing, as a
scaler of containers does; they end by themselves (`worker --until-idle`). Ends with 1 where the burst takes longer than
1.5 times the target, the trickle is not served by one worker in the end, or a worker is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gateway_reads import caught_up
from http_load import Connection
from served import fresh, gateway
from shared import run

from jobledger.ledger import Ledger, task

TASK_S: Final = 0.3
CONCURRENCY: Final = 10
WORKERS_MAX: Final = 6
TRICKLE: Final = 200
TRICKLE_S: Final = 0.1
LATE: Final = 1.5
ZERO_WITHIN_S: Final = 150.0  #: the minutes in which jobs came are over
APP: Final = """
import asyncio
from jobledger.ledger import task

@task(queue="auto")
async def work(number: int) -> None:
    await asyncio.sleep({seconds})
"""


@task(name="work", queue="auto")
async def work(number: int) -> None:
    """Be enqueued; the workers have their own."""


class Scaler:
    """Starts the workers that a queue needs, each second."""

    def __init__(
        self, ask: Connection, begin: Callable[[], subprocess.Popen[bytes]], target_s: float
    ) -> None:
        """`ask`: a gateway; `begin` starts a worker."""
        self._ask = ask
        self._begin = begin
        self._path = f"/v1/queues/auto/wanted?concurrency={CONCURRENCY}&target_s={target_s:g}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.most = 0

    async def look(self) -> dict[str, Any]:
        """Ask once, start what is missing, and return what the answer said."""
        answer = await self._ask.ask("GET", self._path)
        said: dict[str, Any] = json.loads(answer.body)
        self.workers = [each for each in self.workers if each.poll() is None]
        for _ in range(min(said["workers"], WORKERS_MAX) - len(self.workers)):
            self.workers.append(self._begin())
        self.most = max(self.most, len(self.workers))
        return said

    async def until(self, holds: Callable[[dict[str, Any]], bool], limit_s: float) -> float:
        """Look each second until something holds of the answer; return after how many seconds it did."""
        began = time.monotonic()
        async with asyncio.timeout(limit_s):
            while True:
                said = await self.look()
                sys.stderr.write(
                    f"{time.monotonic() - began:5.0f} s  waiting {said['waiting']:5}  running {said['running']:3}  "
                    f"wanted {said['workers']}  workers {len(self.workers)}\n"
                )
                if holds(said):
                    return time.monotonic() - began
                await asyncio.sleep(1.0)


async def trickle(ledger: Ledger) -> None:
    """Enqueue jobs, one after the other."""
    for number in range(TRICKLE):
        await ledger.enqueue(work, number)
        await asyncio.sleep(TRICKLE_S)


async def measure(jobs: int, target_s: float) -> dict[str, Any]:
    """Return how long the burst took, and how many workers there were."""
    async with fresh() as (server, ledger, folder):
        app = folder / "auto_app.py"
        app.write_text(APP.format(seconds=TASK_S), encoding="utf-8")
        words = (
            "worker",
            "--app",
            str(app),
            "--concurrency",
            str(CONCURRENCY),
            "--until-idle",
            "--no-reactors",
        )

        def begin() -> subprocess.Popen[bytes]:
            return subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", "jobledger.cli", *words, "--url", server.url],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=Path(folder),
            )

        async with gateway(server, folder) as front, Connection(front.url) as connection:
            scaler = Scaler(connection, begin, target_s)
            try:
                made = await ledger.enqueue_many(work, [{"number": number} for number in range(jobs)])
                await caught_up(front, made.last_sequence)
                burst_s = await scaler.until(lambda said: said["waiting"] == 0, 20 * target_s)
                most, scaler.most = scaler.most, 0
                await scaler.until(lambda said: not said["running"] and not scaler.workers, ZERO_WITHIN_S)
                feeding = asyncio.create_task(trickle(ledger))
                await scaler.until(lambda _: feeding.done(), 10 * TRICKLE * TRICKLE_S)
                serving = len(scaler.workers)
                await scaler.until(lambda said: not said["workers"] and not scaler.workers, ZERO_WITHIN_S)
            finally:
                for each in scaler.workers:
                    each.terminate()
                    each.wait()
            return {
                "jobs": jobs,
                "target_s": target_s,
                "burst_s": round(burst_s, 1),
                "workers_at_most": most,
                "workers_of_trickle": serving,
                "workers_left": len(scaler.workers),
            }


def main() -> int:
    """Measure, and return 1 where the workers did not follow."""
    reader = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reader.add_argument("--jobs", type=int, default=1_500)
    reader.add_argument("--target", type=float, default=10.0, metavar="SECONDS")
    reader.add_argument("--json", action="store_true")
    given = reader.parse_args()
    found = run(measure(given.jobs, given.target))
    follows = found["burst_s"] <= LATE * given.target and found["workers_of_trickle"] == 1
    sys.stdout.write(
        f"{json.dumps(found)}\n"
        if given.json
        else f"{found['jobs']:,} jobs were taken in {found['burst_s']} s (target {given.target:g} s) by at most "
        f"{found['workers_at_most']} workers; the trickle had {found['workers_of_trickle']}, the end "
        f"{found['workers_left']}\n"
    )
    return 0 if follows and not found["workers_left"] else 1


if __name__ == "__main__":
    sys.exit(main())
