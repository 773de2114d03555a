"""Types as users see them: what must be accepted is, and each line that must not be is refused."""

from __future__ import annotations

import json
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


def pyright(path: Path) -> set[int]:
    """Return the numbers of the lines that it refuses."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    answer = json.loads(run.stdout)
    assert answer["summary"]["filesAnalyzed"] == 1
    return {each["range"]["start"]["line"] + 1 for each in answer["generalDiagnostics"]}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["accepted", "runs", "graphs"])
def test_what_is_right_is_accepted(name: str) -> None:
    assert mypy(HERE / f"{name}.py") == ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["refused", "runs_refused", "graphs_refused"])
def test_what_is_wrong_is_refused_line_by_line(tmp_path: Path, name: str) -> None:
    """The file is no .py, so that the checkers of the project itself do not stumble over it."""
    copy, expected = _refused(tmp_path, name)
    found = {int(number) for number in re.findall(rf"{name}\.py:(\d+): error:", mypy(copy))}
    assert found == expected


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("right", "wrong"), [("accepted", "refused"), ("runs", "runs_refused"), ("graphs", "graphs_refused")]
)
def test_the_other_checker_accepts_and_refuses_the_same(tmp_path: Path, right: str, wrong: str) -> None:
    copy, expected = _refused(tmp_path, wrong)
    assert pyright(HERE / f"{right}.py") == set()
    assert pyright(copy) == expected


def _refused(folder: Path, name: str) -> tuple[Path, set[int]]:
    """Return a copy with a name that checkers read, and the lines that they must refuse."""
    source = (HERE / f"{name}.py.txt").read_text(encoding="utf-8")
    copy = folder / f"{name}.py"
    copy.write_text(source, encoding="utf-8")
    return copy, {number for number, line in enumerate(source.splitlines(), start=1) if "# error:" in line}
