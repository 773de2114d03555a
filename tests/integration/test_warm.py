"""A program that starts with its imports done is like any other: the same words, folder, variables, streams and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.warm import SOURCES, start

SCRIPT = """
import atexit, os, signal, sys, threading, warnings

atexit.register(print, "at exit")
print(sys.argv, os.getcwd(), sorted(os.environ), __name__, __file__, sys.path[0], sys.modules["__main__"].__file__)
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD))
print(os.getsid(0) == os.getpid(), threading.active_count(), sys.stdin.read(), sorted(os.listdir("/dev/fd"))[:4])
print("told", file=sys.stderr)
match sys.argv[1]:
    case "warns":
        warnings.warn("old", DeprecationWarning)
    case "killed":
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    case "fails":
        raise ValueError("no luck")
    case word:
        sys.exit(int(word))
"""


@pytest.mark.parametrize("how", ["0", "3", "killed", "fails", "warns"])
def test_it_is_like_any_other(tmp_path: Path, how: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    variables.pop("PYTHONHOME", None)
    cold = subprocess.run(
        [sys.executable, "-W", "error", str(script), how],
        cwd=tmp_path,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    warm = start(str(script), how, folder=tmp_path, variables=variables, warnings="error")
    printed, errors = warm.communicate(limit_s=40)
    assert (warm.returncode, printed) == (cold.returncode, cold.stdout)
    assert errors.splitlines()[:1] == cold.stderr.splitlines()[:1] == ["told"]
    assert errors.splitlines()[-1] == cold.stderr.splitlines()[-1]


def test_it_hears_signals(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('there', flush=True)\ntime.sleep(60)\n", encoding="utf-8")
    program = start(str(script), folder=tmp_path, variables=dict(os.environ))
    assert program.stdout is not None
    assert program.stdout.readline() == "there\n"
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    program.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in program.communicate(limit_s=20)[1]
    assert program.returncode == -signal.SIGINT
