"""The seeded simulation: no schedule breaks an invariant, and a seed is one schedule.

A failure names its seed; `python -m tests.model.simulation --seed N` replays it with its trace. With
JOBLEDGER_SIM_SEED only that schedule runs here; JOBLEDGER_SIM_COUNT and JOBLEDGER_SIM_FIRST choose others.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.model.simulation.patches import patched
from tests.model.simulation.run import replay, run_one, run_seeds
from tests.model.simulation.sweep import COUNT, FIRST, sweep

ROOT = Path(__file__).parents[3]
SEED = os.environ.get("JOBLEDGER_SIM_SEED")


@pytest.mark.timeout(900)
def test_no_schedule_breaks_an_invariant(
    record_property: Callable[[str, object], None],
) -> None:
    if SEED is not None:
        result, text = replay(int(SEED))
        assert result.violations == [], text
        return
    record_property("simulation", sweep(FIRST, COUNT))


def test_a_seed_is_one_schedule_step_for_step() -> None:
    with patched():
        first, again, other = run_one(5), run_one(5), run_one(6)
    assert first.trace == again.trace
    assert first.trace_hash == again.trace_hash
    assert first.trace_hash != other.trace_hash


def test_a_schedule_makes_no_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would close it, and the garbage collector would tell a later test so."""
    made: list[object] = []
    policy = asyncio.get_event_loop_policy()  # pyright: ignore[reportDeprecated]
    monkeypatch.setattr(policy, "new_event_loop", lambda: made.append(policy))
    assert run_seeds(range(20)).schedules == 20
    assert made == []


def test_a_replay_in_another_process_is_the_same_schedule() -> None:
    """Hashes of strings differ there, so nothing may depend on the order of a set."""
    result, text = replay(5)
    command = [sys.executable, "-m", "tests.model.simulation", "--seed", "5"]
    environment = {**os.environ, "PYTHONHASHSEED": "1234"}
    replayed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert replayed.stdout == f"{text}\n", replayed.stderr
    assert result.trace_hash[:16] in replayed.stdout
