"""`make bench-peers`: the runner works with jobledger alone, and tells of a peer that this machine cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
    assert all(figures[name] > 0 for name in (*RATES, *OTHERS)), figures
    assert figures["rest p50 ms"] <= figures["rest p99 ms"]
    assert "BullMQ" in ran.stderr
    assert {*found["missing"], *found["failed"]} & {"bullmq", "bullmq, plain"}
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert list(temporary.iterdir()) == []
    assert _children_of(temporary) == []
