"""Child processes step back by everything that the kernel weighs, and by no more than they should."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.limits import LIMIT_S

PROGRAM = """
import json, os, pathlib
from jobledger.gateway.process.low_priority import step_back
os.nice(2)
step_back(5)
def text(name):
    path = pathlib.Path("/proc/self") / name
    return path.read_text() if path.exists() else ""
print(json.dumps({"nice": os.nice(0), "autogroup": text("autogroup"), "sched": text("sched")}))
"""

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="other kernels have only nice")


def stepped_back(*, own_session: bool) -> dict[str, Any]:
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        words, capture_output=True, check=True, timeout=LIMIT_S, start_new_session=own_session
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def is_later(*version: int) -> bool:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return found is not None and (int(found[1]), int(found[2])) >= version


def test_what_is_nice_already_becomes_nicer() -> None:
    assert stepped_back(own_session=True)["nice"] == os.nice(0) + 7


def test_a_session_of_its_own_steps_back_as_a_whole_and_that_of_others_stays() -> None:
    before = Path("/proc/self/autogroup").read_text() if Path("/proc/self/autogroup").exists() else ""
    found = stepped_back(own_session=True)["autogroup"]
    if not found:
        pytest.skip("this kernel has no autogroups")
    assert found.endswith(f" nice {os.nice(0) + 7}\n")
    assert stepped_back(own_session=False)["autogroup"] == before


def test_its_turns_are_long_ones_which_shorter_ones_end() -> None:
    slices = re.findall(r"se\.slice\s*:\s*(\d+)", stepped_back(own_session=True)["sched"])
    if not slices or not is_later(6, 12):
        pytest.skip("this kernel does not say how long turns are")
    assert slices == ["100000000"]
