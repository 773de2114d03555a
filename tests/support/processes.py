"""Real worker processes in tests: what they said, what they left behind, and whether they are gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import limits

LIMIT_S = limits.LIMIT_S
until = limits.until


def lines(trace: Path) -> list[list[str]]:
    """What runs of the tasks in integration/apps/work.py left behind: word, job, attempt, pid."""
    if not trace.exists():
        return []
    return [line.split() for line in trace.read_text(encoding="utf-8").splitlines()]


def exists(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped by somebody else has ended."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return False
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() != "" and not found.stdout.startswith("Z")
