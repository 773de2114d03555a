"""`make bench-peers`: the runner works with jobledger alone, and tells of a peer that this machine cannot run."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RATES = ("bulk/s", "single/s", "drain 10/s", "drain 100/s", "drain 400/s", "two workers/s")
OTHERS = (
    "bulk client us",
    "drain 100 worker us",
    "drain 100 server us",
    "rest p50 ms",
    "half p99 ms",
    "disk B",
)


def _children_of(folder: Path) -> list[str]:
    """Return the command lines of processes that name a folder."""
    found: list[str] = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [words] * (str(folder) in words)
    return found


@pytest.mark.timeout(60)
def test_a_round_of_jobledger_has_figures_and_a_peer_that_cannot_run_is_told(tmp_path: Path) -> None:
    folder, temporary = tmp_path / "results", tmp_path / "temporary"
    temporary.mkdir()
    ran = subprocess.run(
        [
            *(sys.executable, str(ROOT / "benchmarks" / "bench_peers.py"), "--only", "jobledger"),
            *("--only", "bullmq", "--part", "rounds", "--rounds", "1", "--share", "0.01"),
            *("--setting", "plain", "--into", str(folder)),
        ],
        # Without Node.js.
        env={**os.environ, "PATH": str(tmp_path), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    (file,) = folder.iterdir()
    found = json.loads(file.read_text(encoding="utf-8"))
    (figures,) = (each["jobledger"]["plain"] for each in found["rounds"])
    assert all(figures[name] > 0 for name in RATES), figures
    assert all(figures[name] >= 0 for name in OTHERS), (
        figures
    )  # so few jobs may be done before a process is looked at
    assert figures["rest p50 ms"] <= figures["rest p99 ms"]
    assert "BullMQ" in ran.stderr
    assert {*found["missing"], *found["failed"]} & {"bullmq", "bullmq, plain"}
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert list(temporary.iterdir()) == []
    assert _children_of(temporary) == []


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return what imports a module of the runner."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def module(name: str) -> Any:
        return importlib.import_module(f"peers.{name}")

    return module


def test_the_tables_of_the_kept_figures_fit_a_terminal_and_name_each_system(
    peers: Callable[[str], Any],
) -> None:
    report, run = peers("report"), json.loads((ROOT / "benchmarks/peers/figures.json").read_text("utf-8"))
    tables = report.tables(run)
    lines = [line for table in tables for line in report.text_of(table).splitlines()]
    assert max(map(len, lines)) <= 80
    named = {row[0] for table in tables for row in table.rows}
    systems = peers("systems").SYSTEMS
    assert {systems[name].title for name in systems if name not in run["missing"]} <= named


def test_a_ratio_is_the_median_of_the_rounds_that_have_both(peers: Callable[[str], Any]) -> None:
    rounds = [
        {"jobledger": {"plain": {"bulk/s": ours}}, "rq": {"plain": {"bulk/s": theirs} if theirs else {}}}
        for ours, theirs in ((100.0, 50.0), (100.0, 400.0), (90.0, 0.0), (60.0, 20.0))
    ]
    assert peers("report").times_ours({"rounds": rounds}, "rq", "plain", "bulk/s") == [2.0, 0.25, 3.0]


def test_the_rate_of_two_workers_counts_from_the_first_job_of_the_later_one(
    peers: Callable[[str], Any],
) -> None:
    rig = peers("rig")
    alone = [rig.Start(number, 0, number * 1_000_000, 1) for number in range(500)]
    both = [
        rig.Start(number, 0, 500_000_000 + (number - 500) * 100_000, 1 + number % 2)
        for number in range(500, 1000)
    ]
    assert rig.drain_rate(alone + both, 2) == pytest.approx(10_000, rel=0.01)
    assert rig.drain_rate(alone, 1) == pytest.approx(1_000, rel=0.01)
    late = rig.Start(500, 0, 500_000_000, 2)
    with pytest.raises(rig.FailedError, match="before the last worker had one"):
        rig.drain_rate([*alone, late], 2)
