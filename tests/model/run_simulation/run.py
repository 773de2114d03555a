"""Running schedules: one with its trace, or many."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence

import msgspec
from tests.model.run_simulation.schedule import Outcome, Schedule

#: `make test` runs this many schedules; `make simulate` goes on behind them.
COUNT = 300
_COLLECT_EVERY = 50
_SHOWN_MAX = 20


class Totals(msgspec.Struct):
    """What many schedules came to."""

    schedules: int = 0
    events: int = 0
    cpu_s: float = 0.0
    states: Counter[str] = msgspec.field(default_factory=Counter[str])
    failed: list[tuple[int, str]] = []  #: seed, first violation

    def add(self, other: Totals) -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.cpu_s += other.cpu_s
        self.states.update(other.states)
        self.failed = sorted(self.failed + other.failed)

    def report(self) -> str:
        states = ", ".join(f"{state} {count:,}" for state, count in sorted(self.states.items()))
        lines = [
            (
                f"{self.schedules:,} schedules of runs ({states}), {self.events:,} events, "
                f"{self.cpu_s:.1f} s of CPU, violations: {len(self.failed)}"
            )
        ]
        for seed, what in self.failed[:_SHOWN_MAX]:
            lines.append(
                f"seed {seed}: {what}\n    replay: python -m tests.model.run_simulation --seed {seed}"
            )
        return "\n".join(lines)


def run_one(seed: int) -> Outcome:
    """Run the schedule of one seed."""
    return Schedule(seed).run()


def run_seeds(seeds: Sequence[int], *, failures_max: int = 1 << 30) -> Totals:
    """Run many in this process."""
    totals, began, collecting = Totals(), time.process_time(), gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()  # a collection looks at what the schedules left behind, and not at all that the tests imported
    try:
        for number, seed in enumerate(seeds):
            outcome = run_one(seed)
            failed = [(seed, outcome.violations[0])] if outcome.violations else []
            totals.add(Totals(1, outcome.events, 0.0, Counter((outcome.state,)), failed))
            if number % _COLLECT_EVERY == _COLLECT_EVERY - 1:
                gc.collect()
            if len(totals.failed) >= failures_max:
                break
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
    totals.cpu_s = time.process_time() - began
    return totals


def run_many(seeds: Sequence[int], *, processes: int) -> Totals:
    """Run many in several processes."""
    if processes == 1:
        return run_seeds(seeds)
    totals = Totals()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for part in pool.imap_unordered(run_seeds, [seeds[start::processes] for start in range(processes)]):
            totals.add(part)
    return totals
