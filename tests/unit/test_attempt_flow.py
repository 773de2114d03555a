"""The flow of an attempt stays visible: in one place and in its order, with one place that settles."""

from __future__ import annotations

import inspect
from pathlib import Path

from jobledger.workers.attempt import attempt as attempt_module
from jobledger.workers.attempt.attempt import Attempts

WORKERS = Path(attempt_module.__file__).parents[1]
SCREEN_LINES = 120


def test_read_claim_execute_record_and_settle_stand_together_and_in_their_order() -> None:
    lines = inspect.getsource(attempt_module).splitlines()
    first = next(number for number, line in enumerate(lines) if "def take(" in line)
    shown = "\n".join(lines[first : first + SCREEN_LINES])
    steps = ["read_dispatch(", "claimer.begin(", "claimer.claim(", "._execute(", "recorder.begin("]
    steps += ["recorder.record(", "intake.settle("]
    found = [shown.find(step) for step in steps]
    assert -1 not in found
    assert found == sorted(found)


def test_one_place_settles_a_delivery_that_was_handled() -> None:
    """The worker settles those that it never handles, because it is full or stops."""
    callers = {
        path.relative_to(WORKERS).as_posix(): text.count("intake.settle(")
        for path in WORKERS.rglob("*.py")
        if "intake.settle(" in (text := path.read_text(encoding="utf-8"))
    }
    assert callers == {"attempt/attempt.py": 1, "worker.py": 1}
    assert "intake.settle(" in inspect.getsource(Attempts._settle)
