"""What really ran, from the lines that executions leave behind: see tests/fault/apps/chaos.py."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

_NS: Final = 1e-9


class Execution(NamedTuple):
    """One run of a task, from its own first line to its last; `ended` is None for one that was cut off."""

    job: str
    attempt: int
    pid: int
    parent: int
    began: float
    ended: float | None


class Freeze(NamedTuple):
    """A process that stood still, by the monotonic clock."""

    pid: int
    began: float
    ended: float


class Faults(msgspec.Struct):
    """What was done to workers, as far as it matters for when their executions were over."""

    deaths: dict[int, float] = {}  #: pid -> when
    freezes: list[Freeze] = []  #: only those after which the holder's lease was over


class Judged(NamedTuple):
    """What the traces say."""

    executions: int
    overlaps: list[str]  #: a sentence each
    repeated: list[str]  #: attempts that ran twice
    rerun_s: list[
        float
    ]  #: from the death of an execution's process to the next attempt, where that got as far as running
    first_rerun_s: list[float]  #: those of first attempts among them
    slowest: str  #: the job of the longest of them
    zombie_s: list[float]  #: how long executions went on after a freeze that cost them their job


def read(path: Path) -> tuple[list[Execution], dict[int, float]]:
    """Return executions in the order of their start, and the processes that ended themselves."""
    open_ones: dict[tuple[str, str, str], list[tuple[int, float]]] = defaultdict(list)
    found: list[Execution] = []
    deaths: dict[int, float] = {}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.splitlines():
        word, job, attempt, pid, parent, nanoseconds = line.split()
        at = int(nanoseconds) * _NS
        key = (job, attempt, pid)
        if word == "start":
            open_ones[key].append((int(parent), at))
        elif word == "exit":
            deaths[int(pid)] = at
        elif open_ones[key]:
            whose, began = open_ones[key].pop()
            found.append(Execution(job, int(attempt), int(pid), whose, began, at))
    for (job, attempt, pid), rest in open_ones.items():
        found += [Execution(job, int(attempt), int(pid), whose, began, None) for whose, began in rest]
    return sorted(found, key=lambda each: each.began), deaths


def judge(path: Path, faults: Faults | None = None) -> Judged:
    """Compare the executions of each job with each other."""
    faults = faults or Faults()
    executions, own_deaths = read(path)
    deaths = {**faults.deaths, **own_deaths}
    by_job: dict[str, list[Execution]] = defaultdict(list)
    for each in executions:
        by_job[each.job].append(each)
    overlaps: list[str] = []
    rerun: list[tuple[float, str]] = []
    first_rerun_s: list[float] = []
    zombie_s: list[float] = []
    for job, runs in by_job.items():
        for one, other in pairwise(runs):
            over_at = _over_at(one, deaths, faults.freezes)
            if over_at is None:
                continue
            if other.began < over_at:
                overlaps.append(
                    f"{job}: attempt {other.attempt} began {over_at - other.began:.3f} s before {one.attempt} was over, "
                    f"which ran for {over_at - one.began:.3f} s in process {one.pid} of {one.parent}"
                )
            if one.ended is None and other.attempt == one.attempt + 1:
                rerun.append((other.began - over_at, job))
                if one.attempt == 1:
                    first_rerun_s.append(other.began - over_at)
            elif one.ended is not None and over_at < one.ended:
                zombie_s += [one.ended - each.ended for each in _around(one, faults.freezes)]
    times = Counter((each.job, each.attempt) for each in executions)
    repeated = [
        f"{job}: attempt {attempt} ran {count} times" for (job, attempt), count in times.items() if count > 1
    ]
    rerun_s = [seconds for seconds, _ in rerun]
    slowest = max(rerun)[1] if rerun else ""
    return Judged(len(executions), overlaps, repeated, rerun_s, first_rerun_s, slowest, zombie_s)


def _over_at(run: Execution, deaths: dict[int, float], freezes: list[Freeze]) -> float | None:
    """Return when an execution was over in its holder's view; None where nobody can tell."""
    ends = [run.ended, deaths.get(run.pid), deaths.get(run.parent)]
    known = [at for at in ends if at is not None and at >= run.began]
    known += [each.began for each in _around(run, freezes)]
    return min(known, default=None)


def _around(run: Execution, freezes: Iterable[Freeze]) -> list[Freeze]:
    return [
        each
        for each in freezes
        if each.pid == run.pid and run.began <= each.began and (run.ended is None or run.ended >= each.ended)
    ]
