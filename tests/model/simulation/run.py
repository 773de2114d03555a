"""Running schedules: one with its trace, or many with totals."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.model.simulation.faults import KINDS
from tests.model.simulation.patches import patched
from tests.model.simulation.schedule import Result, Schedule

_COLLECT_EVERY = 40
_SHOWN_MAX = 20


class Totals:
    """What many schedules came to."""

    def __init__(self) -> None:
        self.schedules = 0
        self.simulated_s = 0.0
        self.took_s = 0.0
        self.steps = 0
        self.events = 0
        self.jobs = 0
        self.states: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.violations = 0
        self.failed: list[tuple[int, str]] = []  # seed, first violation

    def add(self, result: Result) -> None:
        self.schedules += 1
        self.simulated_s += result.simulated_s
        self.steps += result.steps
        self.events += result.events
        self.jobs += result.jobs
        self.states.update(result.states)
        self.faults.update(result.faults)
        self.violations += len(result.violations)
        if result.violations:
            self.failed.append((result.seed, result.violations[0]))

    def join(self, other: Totals) -> None:
        for name in ("schedules", "simulated_s", "steps", "events", "jobs", "violations"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.states.update(other.states)
        self.faults.update(other.faults)
        self.failed += other.failed

    def report(self) -> str:
        faults = ", ".join(f"{kind} {self.faults[kind]:,}" for kind in KINDS)
        states = ", ".join(f"{state} {count:,}" for state, count in sorted(self.states.items()))
        lines = [
            (
                f"{self.schedules:,} schedules, {self.simulated_s / 3600:,.1f} simulated hours in {self.took_s:.0f} s, "
                f"{self.steps:,} steps, {self.jobs:,} jobs ({states}), {self.events:,} events"
            ),
            f"faults: {faults}",
            f"violations: {self.violations}",
        ]
        for seed, what in self.failed[:_SHOWN_MAX]:
            lines.append(f"seed {seed}: {what}\n    replay: python -m tests.model.simulation --seed {seed}")
        return "\n".join(lines)


def run_one(seed: int, *, always: frozenset[str] = frozenset()) -> Result:
    """Run the schedule of one seed. Call within `patched`."""
    return Schedule(seed, always=always).run()


def run_seeds(
    seeds: Iterable[int], *, failures_max: int = 1 << 30, always: frozenset[str] = frozenset()
) -> Totals:
    """Run many in this process."""
    totals = Totals()
    began = time.perf_counter()
    with patched():
        gc.collect()
        gc.freeze()
        try:
            for number, seed in enumerate(seeds):
                totals.add(run_one(seed, always=always))
                if number % _COLLECT_EVERY == _COLLECT_EVERY - 1:
                    gc.collect()
                if len(totals.failed) >= failures_max:
                    break
        finally:
            gc.unfreeze()
    totals.took_s = time.perf_counter() - began
    return totals


def run_many(seeds: Sequence[int], *, processes: int = 1) -> Totals:
    """Run many in several processes."""
    if processes == 1:
        return run_seeds(seeds)
    began = time.perf_counter()
    totals = Totals()
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        for part in pool.imap_unordered(run_seeds, [seeds[start::processes] for start in range(processes)]):
            totals.join(part)
    totals.failed.sort()
    totals.took_s = time.perf_counter() - began
    return totals


def replay(seed: int) -> tuple[Result, str]:
    """Run one schedule and tell it: its trace, its faults, and what is wrong."""
    with patched():
        result = run_one(seed)
    lines = [
        f"{at:12.6f} s  {sequence:5d} {job:6s} {kind:17s} attempts {attempts}  {detail}"
        for at, sequence, job, kind, attempts, detail in result.trace
    ]
    lines += [
        f"seed {seed}: {result.simulated_s:.1f} s, {result.steps:,} steps, trace {result.trace_hash[:16]}",
        f"faults: {dict(result.faults)}",
        *(f"VIOLATION: {what}" for what in result.violations),
    ]
    return result, "\n".join(lines)
