"""Types as users see them: what must be accepted is, and each line that must not be is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy(path: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--no-error-summary",
    ]
    run = subprocess.run([*command, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    return run.stdout


@pytest.mark.timeout(120)
def test_what_is_right_is_accepted() -> None:
    assert mypy(HERE / "accepted.py") == ""


@pytest.mark.timeout(120)
def test_what_is_wrong_is_refused_line_by_line(tmp_path: Path) -> None:
    """The file is no .py, so that the checkers of the project itself do not stumble over it."""
    source = (HERE / "refused.py.txt").read_text(encoding="utf-8")
    copy = tmp_path / "refused.py"
    copy.write_text(source, encoding="utf-8")
    found = {int(number) for number in re.findall(r"refused\.py:(\d+): error:", mypy(copy))}
    expected = {number for number, line in enumerate(source.splitlines(), start=1) if "# error:" in line}
    assert found == expected
