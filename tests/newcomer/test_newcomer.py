"""A new user's way, as a row of `make faults`: it says what it does, step by step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]  # four times that where the machine is slow

JOURNEY = Path(__file__).with_name("journey.py")
LIMIT_S = 480.0
NO_INDEX = 77


def test_a_newcomer_gets_from_an_empty_folder_to_queries_over_the_ledger(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with capfd.disabled():
        sys.stdout.write("\n")
        sys.stdout.flush()
        journey = subprocess.Popen([sys.executable, JOURNEY])
        try:
            code = journey.wait(LIMIT_S)
        finally:
            journey.terminate()  # it ends what it started
            journey.wait(60)
    if code == NO_INDEX:
        pytest.skip("no package index can be reached: nothing can be installed")
    assert code == 0, "its last lines say at which step"
