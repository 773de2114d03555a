"""What a job costs whoever enqueues it, counted in function calls, as `benchmarks/instructions.py` counts and keeps them.

`make instructions` counts the same and more, by processes of their own; this is the part of it that takes a moment.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from tests.support.full_ledgers import unthrottled
from tests.support.working import Connect

pytestmark = pytest.mark.anyio

BENCHMARKS: Final = Path(__file__).parents[2] / "benchmarks"
JOBS: Final = 300
#: In percent; they do not depend on the machine, but what comes once a call of `enqueue_many` counts, too.
MARGIN: Final = 2.0
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
KEPT: Final[dict[str, float]] = json.loads((BENCHMARKS / "instructions.json").read_text())["calls"].get(
    VERSION, {}
)


def program(name: str) -> ModuleType:
    """Load a program of the benchmarks without running it."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.skipif(not KEPT, reason=f"no counts are kept for Python {VERSION}: make instructions KEEP=1")
@pytest.mark.parametrize("part", ["bulk", "single", "named"])
async def test_an_enqueue_costs_no_more_calls_than_is_known(connected: Connect, part: str) -> None:
    counted: Any = program("counted_process")
    calls = counted.Calls()
    # One by one, since how many go in a group depends on how fast the machine is.
    async with connected(commit="pipeline") as ledger:
        unthrottled(ledger)  # how often it looks at the server depends on the ledger's size and on the time
        await counted.add_each(ledger, 10)  # what only the first calls need
        sys.setprofile(calls)
        try:
            await counted.PARTS[part](ledger, JOBS)
        finally:
            sys.setprofile(None)
    found = calls.count / JOBS
    most = KEPT[part] * (1 + MARGIN / 100)
    assert found <= most, (
        f"{found:.1f} calls a job, and {KEPT[part]:.1f} are known: see what calls more, or where it must be so, "
        "`make instructions KEEP=1`"
    )
    assert found > KEPT[part] * 0.9, f"only {found:.1f} calls a job: make instructions KEEP=1"


def test_a_count_that_rose_is_told_and_smaller_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    refusals: Any = program("instructions").refusals
    known = {"instructions": {"bulk": 100_000.0, "single": 200_000.0, "drain": 400_000.0}}
    found = {"instructions": {"bulk": 106_000.0, "single": 209_000.0, "drain": 1.0, "retried": 9e9}}
    assert refusals(found, known) == [
        "enqueue_many, a job: 106,000.0 instructions, 6.0 % above 100,000.0; 5 % are allowed"
    ]
