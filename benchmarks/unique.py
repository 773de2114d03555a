"""What a unique enqueue costs beside a plain one, each awaited before the next; the kinds take turns.

    python benchmarks/unique.py [--rounds N] [--each N] [--durability power|process] [--json]

A fresh embedded server. Each round enqueues `--each` jobs of every kind, one after the other, by a client of this
process: plain; unique with a free key; the same again, so that the key is taken; one in a period, by its id; the same
again; debounced, moved again. Times are the median of the rounds' means, in milliseconds a call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shared import run

from jobledger.ledger import Ledger, Unique, connect, task
from jobledger.ledger.server import EmbeddedServer
from jobledger.workers.process import tune_collector


@task(queue="bench")
async def plain(number: int) -> None:
    """Do nothing."""


UNTIL = plain.options(unique=Unique())
PERIOD = plain.options(unique=Unique(for_s=86_400 * 300))
DEBOUNCED = plain.options(unique=Unique(args=()), debounce_s=3600)

#: In the order of a round. Every kind enqueues the same numbers, so a kind with the options of the one before it
#: ("key taken", "again") finds each of its keys taken.
KINDS: dict[str, Any] = {
    "plain": plain,
    "unique, key free": UNTIL,
    "unique, key taken": UNTIL,
    "period, first": PERIOD,
    "period, again": PERIOD,
    "debounced, moved": DEBOUNCED,
}


async def mean_ms(ledger: Ledger, kind: str, base: int, each: int) -> float:
    """Return the mean time of one enqueue, in milliseconds."""
    chosen = KINDS[kind]
    began = time.perf_counter()
    for n in range(each):
        await ledger.enqueue(chosen, base + n)
    return 1e3 * (time.perf_counter() - began) / each


async def measure(rounds: int, each: int, durability: Any = "process") -> dict[str, list[float]]:
    """Return the mean time of one enqueue in each round by kind, in milliseconds."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        async with (
            EmbeddedServer(Path(folder), port=0, durability=durability) as server,
            connect(server.url, ledger_bytes_max=1 << 30) as ledger,
        ):
            for kind in KINDS:
                await mean_ms(ledger, kind, -each, each)  # warm
            for number in range(rounds):
                for kind, found in times.items():
                    found.append(await mean_ms(ledger, kind, number * each, each))
    return times


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--each", type=int, default=300)
    parser.add_argument("--durability", choices=("power", "process"), default="process")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tune_collector()
    times = run(measure(given.rounds, given.each, given.durability))
    found = {kind: round(statistics.median(each), 3) for kind, each in times.items()}
    if given.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        sys.stdout.write("".join(f"{kind:<20} {found[kind]:.3f} ms\n" for kind in KINDS))


if __name__ == "__main__":
    main()
