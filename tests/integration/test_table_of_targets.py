"""`make bench-limits`, `bench-workflows` and `bench-gateway`: tables with a line for each target. With next to nothing no figure counts."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.tables import each_row

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
#: What begins a line, and the target in it; each once.
TARGETS = {
    "jobs without limits: drain, above": ">= -2 %",
    "jobs without limits: drain beside": ">= -2 %",
    "limited job with room: start, above plain, p50": "<= 1.5 ms",
    "p99": "<= 4 ms",
    "400 held, 1,000 keys, 3 limits, global 100": ">= 6,000 jobs/s",
    "every append fsynced": ">= 2,500 jobs/s",
    "reactor's CPU a job": "<= 75 us",
    "server's CPU a job": "<= 110 us",
    "reactor's memory": "<= 150 MB",
    "restart with 200 held: first grant": "<= 3 s",
    "restart with 100 held of 400 events": "<= 1 s",
    "one of two hosts killed": "<= 2 s",
    "both killed at once": "<= 2 s",
    "server, of a core": "<= 3 %",
    "late, p99": "<= 50 ms",
    "unique enqueue, key free": "<= 0.3 ms",
    "queue paused": "<= 50 ms",
    "queue resumed": "<= 50 ms",
}
#: The same of workflows.
OF_WORKFLOWS = {
    "step in the run's own process": "<= 0.25 ms",
    "worker's CPU a step": "<= 150 us",
    "every append fsynced": "<= 0.6 ms",
    "step, 50 branches side by side": "<= 0.12 ms",
    "map of 20, limit 50, on two workers": "<= 0.8 s",
    "mapped, every append fsynced": "<= 2 s",
    "map of 40, limit 200, on two workers": "<= 8 s",
    "events of the run": "<= 600",
    "bytes of the run's chain": "<= 0.5 MB",
    "signal to the function that goes on, p50": "<= 2 ms",
    "p99": "<= 6 ms",
    "resumed run of 15 events: server's CPU": "<= 0.5 ms",
    "20 parked runs: slots": "<= 0",
    "memory of the worker": "<= 100 MB",
    "ordinary jobs: drain, above": ">= -3 %",
    "times ahead of the faster one": ">= 5 x",
    "fsynced, times ahead of PostgreSQL": ">= 5 x",
}
#: The same of the gateway.
OF_GATEWAY = {
    "POST /v1/jobs: CPU, of a handwritten": "<= 2 x",
    "GET of a job: CPU, of a handwritten": "<= 2 x",
    "200 jobs as lines: jobs a second": ">= 30,000 jobs/s",
    "POST to its event in a stream: p50": "<= 5 ms",
    "stop with 3 open streams": "<= 1 s",
    "overview: CPU a rendering": "<= 20 ms",
    "with 2 readers, of that with one": "<= 1.5 x",
    "a job as it was, beside 200 others": "<= 50 ms",
    "the fleet's levels, each minute of three days": "<= 50 ms",
    "a list as it was anywhere among 200 jobs": "<= 2,000 ms",
    "p99 of GET of a job meanwhile": "<= 2 x",
    "2,000 jobs: the slowest filter": "<= 100 ms",
    "its counts": "<= 100 ms",
    "the page /jobs with it": "<= 100 ms",
    "levels of their minutes": "<= 50 ms",
    "an overview of them: CPU a rendering": "<= 20 ms",
}


def _table(
    *words: str, timeout_s: float, script: str = "limits.py", targets: Mapping[str, str] = TARGETS
) -> dict[str, str]:
    """Return what the table says behind each target."""
    ran = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--quick", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line.strip() for line in ran.stdout.splitlines()]
    found: dict[str, str] = {}
    for name, target in targets.items():
        (line,) = (each for each in lines if each.startswith(name) and f" {target} " in each)
        found[name] = line.rpartition(f" {target} ")[2].strip()
    return found


def test_each_target_has_a_line_also_where_it_was_not_measured() -> None:
    found = _table("--only", "unique", timeout_s=50)
    figure = found.pop("unique enqueue, key free")
    assert figure.split()[1:] in (["ms", "once", "met"], ["ms", "once", "MISSED"]), figure
    assert set(found.values()) == {"not measured"}


@pytest.mark.fault
@pytest.mark.timeout(240)
def test_everything_in_the_table_can_be_measured() -> None:
    """Beside the commit of this checkout too."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the sources of a commit are only in a checkout")
    found = _table("--big", "--against", "HEAD", timeout_s=220)
    verdicts = {name: words.partition("once")[2].split(":")[0].strip() for name, words in found.items()}
    assert set(verdicts.values()) <= {"met", "MISSED"}, verdicts


def test_each_target_of_workflows_has_a_line() -> None:
    found = _table("--only", "branches", timeout_s=50, script="workflows.py", targets=OF_WORKFLOWS)
    figure = found.pop("step, 50 branches side by side")
    assert figure.split()[1:] in (["ms", "once", "met"], ["ms", "once", "MISSED"]), figure
    assert set(found.values()) == {"not measured"}


@pytest.mark.fault
@pytest.mark.timeout(240)
def test_everything_in_the_table_of_workflows_can_be_measured() -> None:
    """But DBOS, which has to be downloaded, and another commit."""
    found = _table(timeout_s=220, script="workflows.py", targets=OF_WORKFLOWS)
    left_out = {name for name, words in found.items() if words == "not measured"}
    assert left_out == {
        "ordinary jobs: drain, above",
        "times ahead of the faster one",
        "fsynced, times ahead of PostgreSQL",
    }
    verdicts = {words.partition("once")[2].strip() for name, words in found.items() if name not in left_out}
    assert verdicts <= {"met", "MISSED"}, found


@pytest.mark.fault
@pytest.mark.timeout(240)
def test_everything_in_the_table_of_the_gateway_can_be_measured() -> None:
    found = _table("--big", timeout_s=220, script="gateway.py", targets=OF_GATEWAY)
    verdicts = {words.partition("once")[2].strip() for words in found.values()}
    assert verdicts <= {"met", "MISSED"}, found


_ROW, _SPREAD = (runpy.run_path(str(BENCHMARKS / "targets.py"))[name] for name in ("Row", "Spread"))
#: Target, what was measured, the verdict.
VERDICTS: tuple[tuple[dict[str, Any], list[float], str], ...] = (
    ({"most": 3}, [3.04, 3.0, 2.0], "met"),
    ({"most": 3}, [3.06, 3.06, 3.06], "MISSED"),
    ({"least": -2}, [-1.9], "met"),
    ({"least": -2}, [-2.1, -5.0, 5.0], "MISSED"),
    ({"least": -2, "or_noise": True}, [-3.0, -9.0, 9.0], "met: less than the spread"),
    ({"least": -2, "or_noise": True}, [-3.0, -2.0, -4.0], "MISSED"),
    ({"least": -2, "or_noise": True}, [-3.0], "MISSED"),
    ({}, [1.0], ""),
)


@each_row("target,found,verdict", VERDICTS)
def test_a_verdict_follows_from_median_and_spread(
    target: dict[str, float], found: list[float], verdict: str
) -> None:
    assert _ROW("something", "s", **target).verdict(_SPREAD.of(found)) == verdict
