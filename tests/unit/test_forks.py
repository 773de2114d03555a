"""Tests in several processes: each is told of once, a failure with its words, and a process that is gone as a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.conftest import pytest_addoption, pytest_runtestloop\n"
FILES = {
    "test_a.py": "import os\ndef test_one(tmp_path):\n    print('words of one')\n    assert os.getppid() == 0\ndef test_two(): ...\n",
    "test_b.py": "import os\ndef test_gone():\n    os._exit(7)\ndef test_never(): ...\n",
    "test_c.py": "import pytest\n@pytest.fixture(scope='module')\ndef held():\n    yield\n    assert not 'ends with its module'\n"
    "def test_first(held): ...\ndef test_last(held): ...\n",
    "test_d.py": "def test_passes(record_property):\n    record_property('simulation', 'all is well')\n",
}


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "3",
        "-p",
        "no:cacheprovider",
        # A folder of its own: in the one that all runs share, it would remove what another run is removing.
        "--basetemp=kept",
        "--rootdir",
        ".",
        *words,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_each_test_is_told_of_once_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:xdist\n")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    ran = _run(tmp_path, "--tb=short")
    assert ran.returncode == 1
    assert "2 failed, 4 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count("words of one") == 1
    assert "FAILED test_b.py::test_gone - the process that ran it is gone (exit code 7)" in ran.stdout
    assert "ERROR test_c.py::test_last" in ran.stdout
    assert ran.stderr == ""


def test_the_first_failure_ends_all_and_files_that_nobody_took_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:xdist\n")
    for name in ("test_a.py", "test_b.py", "test_c.py"):
        (tmp_path / name).write_text(FILES["test_b.py"])
    (tmp_path / "test_d.py").write_text(FILES["test_d.py"])
    gone = _run(tmp_path)
    assert "3 failed" in gone.stdout
    assert "files are left" in gone.stdout
    assert "1 failed" in _run(tmp_path, "-x", "-n", "2").stdout
