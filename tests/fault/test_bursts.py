"""Queues that run empty all the time, and readers that stand still: nobody waits while there is something for him."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.fault.conftest import ConnectTo
from tests.support.figures import Recorder
from tests.support.log_entries import entry, event
from tests.support.timing import Slack, measured_slack
from tests.support.working import working

from jobledger.ledger import Ledger, task
from jobledger.ledger.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.fault, pytest.mark.timeout(300)]

SOAKS_S = {10: 80.0, 40: 20.0}  # small requests meet each other most
WAITS_S_MAX = 1.0
_SLACK_S_MAX = 3.0  # what is hunted lasts for six seconds
READER = Path(__file__).parent / "apps" / "reader.py"


@task(queue="bursts")
async def short(seconds: float) -> None:
    await asyncio.sleep(seconds)
    _Bursts.left -= 1
    _Bursts.ended_at = time.monotonic()


class _Bursts:
    """What is left of the present burst, and when a job of it ended last."""

    left = 0
    ended_at = 0.0


async def _burst(ledger: Ledger, chance: random.Random, size: int) -> float:
    """Enqueue `size` jobs, more or less at once; return the longest time in which none of them ended."""
    _Bursts.left = size
    began = _Bursts.ended_at = time.monotonic()

    async def enqueue() -> None:
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.003)))
        await ledger.enqueue(short, chance.choice((0, 0, 0.001, 0.003)))

    await asyncio.gather(*(enqueue() for _ in range(size)))
    worst_s = 0.0
    while _Bursts.left > 0:
        await asyncio.sleep(0.0005)
        worst_s = max(worst_s, time.monotonic() - _Bursts.ended_at)
        assert time.monotonic() - began < 60.0, f"{_Bursts.left} of {size} jobs never ended"
    return worst_s


@pytest.mark.parametrize("durability", ["process"])
@pytest.mark.parametrize("concurrency", SOAKS_S)
async def test_no_second_passes_without_progress_while_bursts_of_jobs_come(
    connected: ConnectTo, chance: random.Random, record: Recorder, concurrency: int
) -> None:
    """Row 33: each burst empties the requests that the worker has under way, in another order each time."""
    bursts = jobs = 0
    worst_s = 0.0
    async with (
        connected() as ledger,
        connected() as other,
        working(ledger, short, concurrency=concurrency, reactors=False) as worker,
        measured_slack(other) as slack,
    ):
        await worker.taking.wait()
        until = time.monotonic() + SOAKS_S[concurrency]
        while time.monotonic() < until:
            size = chance.randint(1, 3 * concurrency)
            waited_s = await _burst(other, chance, size)
            worst_s = max(worst_s, waited_s)
            assert waited_s < WAITS_S_MAX + _bounded(slack), f"burst {bursts} of {size} jobs stood still"
            bursts, jobs = bursts + 1, jobs + size
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.01)))
        head = await ledger.log.head()
    record(
        f"33{'a' if concurrency == 10 else 'b'}",
        f"bursts of jobs for a worker of {concurrency}: never a second without progress",
        faults=f"{bursts:,} bursts",
        jobs=jobs,
        events=head.last_sequence,
        worst_recovery=f"{worst_s * 1000:.0f} ms without progress",
        now=time.monotonic(),
    )


def _bounded(slack: Slack) -> float:
    return min(slack.worst_s, _SLACK_S_MAX)


@pytest.mark.parametrize("durability", ["process"])
@pytest.mark.parametrize("kind", ["dense", "filtered"])
async def test_a_reader_that_stood_still_goes_on_at_once(
    connected: ConnectTo, server: EmbeddedServer, environment: str, chance: random.Random, kind: str
) -> None:
    """Frozen for a moment or for longer than a request stands: what was stored meanwhile comes with the thaw."""
    async with connected() as ledger, measured_slack(ledger) as slack:
        stored = 0
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(READER),
            server.url,
            environment,
            kind,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            assert await process.stdout.readline() == b"0\n"
            longest_s = 32.0 if kind == "dense" else 3.0
            for frozen_s in (*(chance.uniform(0.1, 1.5) for _ in range(8)), longest_s):
                process.send_signal(signal.SIGSTOP)
                until = time.monotonic() + frozen_s
                while time.monotonic() < until:
                    await asyncio.gather(
                        *(
                            ledger.log.submit([entry(ledger.log, 0, event(f"of-{stored + n}"))])
                            for n in range(50)
                        )
                    )
                    stored += 50
                    await asyncio.sleep(0.02)
                process.send_signal(signal.SIGCONT)
                thawed_at = time.monotonic()
                async with asyncio.timeout(10.0):
                    while int(await process.stdout.readline()) < stored:
                        pass
                assert time.monotonic() - thawed_at < WAITS_S_MAX + frozen_s / 10 + _bounded(slack)
        finally:
            process.kill()
            await process.wait()
