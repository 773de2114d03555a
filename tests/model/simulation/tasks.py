"""What the simulated jobs do, and where the truth about their runs is kept: who ran which job from when to when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator

from tests.model.simulation.loop import Process, World

from jobledger.ledger import Context, TaskRegistry, task
from jobledger.ledger.backoff import Backoff
from jobledger.ledger.outcome import Cancel, Retry, Snooze

#: What a job may do: how it ends, on which attempts, and how long it takes (`seconds`).
KINDS = (
    "return",
    "sleep",
    "raise",
    "flaky",
    "retry",
    "snooze",
    "cancel",
    "hang",
    "poison",
    "poison once",
    "checkpoint",
)


Ending = str | Retry | Snooze | Cancel


class BoomError(Exception):
    """What a simulated task raises."""


class Run:
    """One execution of a task's function, by true time."""

    __slots__ = ("attempt", "began", "ended", "job", "process", "worker")

    def __init__(self, process: Process, job: str, attempt: int, worker: str, began: float) -> None:
        self.process = process
        self.job = job
        self.attempt = attempt
        self.worker = worker
        self.began = began
        self.ended: float | None = None


class Runs:
    """Every execution of one schedule."""

    def __init__(self, world: World, on_begin: Callable[[str, int, str], None]) -> None:
        self.world = world
        self.on_begin = on_begin
        self.all: list[Run] = []

    def begin(self, job: str, attempt: int, worker: str) -> Run:
        process = self.world.current
        assert process is not None
        run = Run(process, job, attempt, worker, self.world.now)
        self.all.append(run)
        self.on_begin(job, attempt, worker)
        return run

    def overlaps(self) -> list[str]:
        """Return a sentence for each two runs of one job that went on at once, frozen time left out."""
        found: list[str] = []
        by_job: dict[str, list[Run]] = {}
        for run in self.all:
            by_job.setdefault(run.job, []).append(run)
        for job, runs in by_job.items():
            for at, first in enumerate(runs):
                for second in runs[at + 1 :]:
                    shared = sum(
                        max(0.0, min(end, other_end) - max(begin, other_begin))
                        for begin, end in self._awake(first)
                        for other_begin, other_end in self._awake(second)
                    )
                    if shared > 1e-6:
                        found.append(
                            f"job {job}: attempt {first.attempt} on {first.worker} and attempt "
                            f"{second.attempt} on {second.worker} ran at once for {shared:.3f} s"
                        )
        return found

    def _awake(self, run: Run) -> list[tuple[float, float]]:
        process = run.process
        ended = run.ended if run.ended is not None else process.died_at
        spans: list[tuple[float, float]] = []
        begin, end = run.began, self.world.now if ended is None else ended
        frozen = process.frozen_spans
        if process.frozen and process.alive:
            frozen = [*frozen, (process.frozen_since, self.world.now)]
        for since, until in frozen:
            if until <= begin or since >= end:
                continue
            if since > begin:
                spans.append((begin, since))
            begin = min(max(begin, until), end)
        spans.append((begin, end))
        return spans


_runs: list[Runs] = []


@contextlib.contextmanager
def recording(runs: Runs) -> Generator[None, None, None]:
    _runs.append(runs)
    try:
        yield
    finally:
        _runs.pop()


@task(queue="sim", max_attempts=3, backoff=Backoff(base_s=0.2, cap_s=2.0))
async def act(context: Context, kind: str, seconds: float) -> Ending:
    """Do what a simulated job is told to do."""
    runs = _runs[-1]
    run = runs.begin(context.job_id, context.attempt, context.worker)
    try:
        return await _act(context, kind, seconds, run)
    finally:
        if run.process.alive:
            run.ended = runs.world.now


async def _act(context: Context, kind: str, seconds: float, run: Run) -> Ending:
    first = context.attempt == 1
    if kind == "poison" or (kind == "poison once" and first):
        await asyncio.sleep(seconds / 10)
        run.process.kill()
        await asyncio.sleep(0)
    elif kind == "checkpoint":
        await context.checkpoint(context.attempt)
        await asyncio.sleep(seconds / 4)
    elif kind != "return":
        await asyncio.sleep(seconds)
    if kind == "raise" or (kind == "flaky" and first):
        raise BoomError(context.job_id)
    if kind == "retry" and context.attempt < 3:
        return Retry(delay_s=min(seconds, 1.5) if first else 0.0)
    if kind == "snooze" and context.attempt < 3:
        return Snooze(min(seconds, 1.5))
    if kind == "cancel":
        return Cancel("enough")
    return "done"


registry = TaskRegistry([act])
