"""`make` on a fresh machine: what is missing is said in one sentence, before anything is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A Python that cannot import some modules, as Debian's without python3-venv; and an old one.
FAKE = """#!{real}
import sys
if sys.argv[1:2] == ["-c"]:
    sys.modules.update(dict.fromkeys({missing!r}))
    sys.version_info = {version!r}
    exec(sys.argv[2])
else:
    sys.exit("it was called with " + " ".join(sys.argv[1:]))
"""


def _fake(folder: Path, *missing: str, version: tuple[int, ...] = (3, 11, 0)) -> str:
    program = folder / "fake-python"
    program.write_text(FAKE.format(real=sys.executable, missing=missing, version=version), encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def _made(folder: Path, python: str) -> tuple[int, str, list[str]]:
    """Return exit code, stdout, and what is on stderr besides make's own last line."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    ran = subprocess.run(
        ["make", "--no-print-directory", "demo", f"PYTHON={python}"],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not (folder / ".venv").exists()
    said = [line for line in ran.stderr.splitlines() if not line.startswith("make: *** ")]
    return ran.returncode, ran.stdout, said


@pytest.mark.parametrize("missing", ["ensurepip", "venv"])
def test_a_python_without_venv_or_pip_is_told_what_to_install(tmp_path: Path, missing: str) -> None:
    python = _fake(tmp_path, missing)
    sentence = (
        f"{python} comes without venv or pip: install them (Debian, Ubuntu: apt install python3-venv), "
        "or name another one: make PYTHON=python3.12 ..."
    )
    assert _made(tmp_path, python) == (2, "", [sentence])


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    python = _fake(tmp_path, version=(3, 10, 9))
    code, said, (sentence,) = _made(tmp_path, python)
    assert (code, said) == (2, "")
    assert sentence.startswith(f"jobledger needs Python 3.11 or newer as {python}; choose one: ")


def test_a_missing_python_is_told(tmp_path: Path) -> None:
    code, said, (sentence,) = _made(tmp_path, "python3.99")
    assert (code, said) == (2, "")
    assert sentence.startswith("there is no python3.99 here: install Python 3.11 or newer, or name one: ")


def test_a_python_that_has_all_is_used(tmp_path: Path) -> None:
    """That the checks above let a good one pass: it goes on to make the environment, which this one refuses."""
    code, said, errors = _made(tmp_path, _fake(tmp_path))
    assert (code, errors[-1]) == (2, "it was called with -m venv .venv")
    assert said.startswith("install: making .venv with")
