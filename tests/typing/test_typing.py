"""Types as users see them: what must be accepted is, and each line that must not be is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ACCEPTED = ("accepted", "runs", "graphs", "tables")
REFUSED = ("refused", "runs_refused", "graphs_refused", "tables_refused")
#: By the name of a file, and in it by the number of a line, what a checker says.
Said = Mapping[str, Mapping[int, str]]

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All files at once: a checker takes longer to start than to read one of them.

    Those that are refused are no .py in the tree, so that the checkers of the project itself do not stumble over them.
    """
    folder = tmp_path_factory.mktemp("refused")
    for name in REFUSED:
        (folder / f"{name}.py").write_text(_source(name), encoding="utf-8")
    return [
        *(str(HERE / f"{name}.py") for name in ACCEPTED),
        *(str(folder / f"{name}.py") for name in REFUSED),
    ]


@pytest.fixture(scope="module")
def mypy(paths: list[str]) -> Said:
    config = str(ROOT / "pyproject.toml")
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--no-error-summary", *paths]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    said: dict[str, dict[int, str]] = {}
    for line in run.stdout.splitlines():
        found = re.fullmatch(r"(.+\.py):(\d+): (.*)", line)
        assert found is not None, run.stdout
        name = Path(found[1]).stem
        if name not in REFUSED or not found[3].startswith("note: "):
            said.setdefault(name, {})[int(found[2])] = found[3]
    return said


@pytest.fixture(scope="module")
def pyright(paths: list[str]) -> Said:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *paths]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    answer = json.loads(run.stdout)
    assert answer["summary"]["filesAnalyzed"] == len(paths)
    said: dict[str, dict[int, str]] = {}
    for each in answer["generalDiagnostics"]:
        said.setdefault(Path(each["file"]).stem, {})[each["range"]["start"]["line"] + 1] = each["message"]
    return said


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def said(request: pytest.FixtureRequest) -> Said:
    found: Said = request.getfixturevalue(request.param)
    assert found.keys() <= {*ACCEPTED, *REFUSED}
    return found


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_right_is_accepted(said: Said, name: str) -> None:
    assert said.get(name, {}) == {}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_line_by_line(said: Said, name: str) -> None:
    lines = enumerate(_source(name).splitlines(), start=1)
    assert said[name].keys() == {number for number, line in lines if "# error:" in line}


def _source(name: str) -> str:
    return (HERE / f"{name}.py.txt").read_text(encoding="utf-8")
