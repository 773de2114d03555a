"""`python -m tests.model.simulation --seed N` replays one schedule; `--count N` runs many."""

from __future__ import annotations

import argparse
import os
import sys

from tests.model.simulation.run import replay, run_many


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this schedule and show its trace")
    parser.add_argument("--first", type=int, default=0, help="the first seed of many")
    parser.add_argument("--count", type=int, default=1_000, help="how many schedules")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    if options.seed is not None:
        result, text = replay(options.seed)
        sys.stdout.write(f"{text}\n")
        return 1 if result.violations else 0
    seeds = range(options.first, options.first + options.count)
    totals = run_many(seeds, processes=options.processes)
    sys.stdout.write(f"{totals.report()}\n")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    # What is left of the last schedules is not worth being taken apart.
    code = main()
    sys.stdout.flush()
    os._exit(code)
