"""What limits, schedules, unique jobs and paused queues cost, and what they are to cost at the most: one table.

    python benchmarks/limits.py [--against COMMIT] [--big] [--only PART ...] [--pairs N] [--rounds N] [--quick] [--json]

Each figure is a median with the middle half of what was measured behind it. What is compared takes turns within one
run, `--pairs` times; the rest is measured `--rounds` times on fresh servers. `--against` adds the drain of jobs without
limits with the packages of that commit; `--big` adds a million jobs that wait and a ledger of ten million events (about
20 minutes, 6 GB of disk, 8 GB of memory). `--quick` measures next to nothing: it is a test of this program. Figures drift
with the machine, so let nothing else run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

import against
import limited
import queues
import schedules
import unique
from limited import Figures
from shared import run
from targets import ROWS, Row, Spread

from jobledger.workers.process import tune_collector


class Sizes(NamedTuple):
    """How much each part measures; the targets hold for the defaults."""

    pairs: int = 9
    rounds: int = 3
    plain: int = 20_000  #: jobs without limits of each drain
    three: int = 50_000  #: jobs under three limits each
    fsynced: int = 10_000
    latency: int = 500  #: jobs one by one, of each kind and pair
    held: int = 300_000
    big: int = 1_000_000
    events: int = 10_000_000
    takeover: int = 20_000
    lease_s: float = limited.LEASE_S
    load: schedules.Load = schedules.Load()
    enqueues: int = 300  #: unique ones of each kind and round


QUICK: Final = Sizes(
    pairs=1,
    rounds=1,
    plain=200,
    three=400,
    fsynced=100,
    latency=10,
    held=200,
    big=200,
    events=400,
    takeover=1_500,
    lease_s=2.0,
    load=schedules.Load(schedules=5, workers=1, seconds=2.0, warm_s=0.5),
    enqueues=5,
)


async def ticks(rounds: int, load: schedules.Load) -> Figures:
    """Let schedules tick some rounds."""
    found = [await schedules.measure(load) for _ in range(rounds)]
    return {name: [each[name] for each in found] for name in ROWS["ticks"]}


async def pauses(rounds: int) -> Figures:
    """Pause and resume some rounds."""
    late, _, first = zip(*await queues.measure(rounds), strict=True)
    return {"paused": list(late), "resumed": list(first)}


def measured(part: str, sizes: Sizes, commit: str) -> Coroutine[Any, Any, Figures]:
    """Return the measurement of a part, ready to run."""
    pairs, rounds = sizes.pairs, sizes.rounds
    return {
        "against": partial(against.compare, commit, pairs, sizes.plain),
        "drain": partial(limited.drains, pairs, sizes.plain),
        "latency": partial(limited.latencies, pairs, sizes.latency),
        "limited": partial(limited.limited_drains, rounds, sizes.three, "process"),
        "fsynced": partial(limited.fsynced_drains, rounds, sizes.fsynced),
        "restart": partial(limited.restarts, rounds, sizes.held),
        "big": partial(limited.large_restarts, sizes.big, sizes.events),
        "takeover": partial(limited.takeovers, rounds, sizes.takeover, sizes.lease_s),
        "ticks": partial(ticks, rounds, sizes.load),
        "unique": partial(unique.measure, pairs, sizes.enqueues),
        "pause": partial(pauses, pairs),
    }[part]()


def line(row: Row, found: Spread | None, sizes: Sizes, commit: str) -> str:
    """Return a line of the table."""
    values = {**sizes._asdict(), "schedules": sizes.load.schedules, "commit": commit[:7] or "a commit"}
    head = f"{row.what.format_map(values):<50}{row.target:>15}"
    if found is None:
        return f"{head}{'not measured':>16}"
    figure, low, high = (f"{each:,.{row.digits}f}" for each in found[:3])
    spread = f"{low} .. {high}" if found.times > 1 else "once"
    return f"{head}{figure + ' ' + row.unit:>16}{spread:>20}  {row.verdict(found)}".rstrip()


def skipped(part: str, options: argparse.Namespace) -> bool:
    """Return whether a part was not asked for."""
    if options.only:
        return part not in options.only
    return (part == "against" and not options.against) or (part == "big" and not options.big)


def chosen() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="COMMIT", default="")
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--only", metavar="PART", action="append", choices=[*ROWS], help=", ".join(ROWS))
    parser.add_argument("--pairs", type=int, metavar="N", help=f"{Sizes().pairs} unless given")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"{Sizes().rounds} unless given")
    parser.add_argument("--quick", action="store_true", help="next to nothing of everything")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if "against" in (options.only or ()) and not options.against:
        parser.error("--only against needs a commit: --against COMMIT")
    if min(1 if each is None else each for each in (options.pairs, options.rounds)) < 1:
        parser.error("--pairs and --rounds are at least 1")
    return options


def main() -> None:
    """Measure part by part; print the lines of each as soon as they are known."""
    options = chosen()
    commit = against.commit_named(options.against) if options.against else ""
    given = {name: value for name in ("pairs", "rounds") if (value := getattr(options, name)) is not None}
    sizes = (QUICK if options.quick else Sizes())._replace(**given)
    tune_collector()
    found: dict[str, dict[str, Any]] = {}
    if not options.json:
        print(f"{'':<50}{'target':>15}{'median':>16}{'middle half':>20}")
    for part, rows in ROWS.items():
        figures: Figures = {}
        if not skipped(part, options):
            began = time.monotonic()
            print(f"{part} ...", end="", file=sys.stderr, flush=True)
            figures = run(measured(part, sizes, commit))
            print(f" {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        for name, row in rows.items():
            spread = Spread.of(figures[name]) if figures else None
            if options.json:
                found[f"{part}: {name}"] = (
                    {**spread._asdict(), "unit": row.unit, "verdict": row.verdict(spread)} if spread else {}
                )
            else:
                print(line(row, spread, sizes, commit), flush=True)
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
