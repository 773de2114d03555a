"""`python -m tests.model.run_simulation --seed N` replays one schedule of a run; `--count N` runs many."""

from __future__ import annotations

import argparse
import os
import sys

from tests.model.run_simulation.run import run_many, run_one


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model.run_simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this schedule and show its events")
    parser.add_argument("--first", type=int, default=0, help="the first seed of many")
    parser.add_argument("--count", type=int, default=1_000, help="how many schedules")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    if options.seed is not None:
        outcome = run_one(options.seed)
        violations = [f"VIOLATION: {each}" for each in outcome.violations]
        ending = f"seed {options.seed}: the run is {outcome.state}, {outcome.events} events"
        sys.stdout.write("\n".join([*outcome.trace, ending, *violations, ""]))
        return 1 if violations else 0
    seeds = range(options.first, options.first + options.count)
    totals = run_many(seeds, processes=options.processes)
    sys.stdout.write(f"{totals.report()}\n")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
