"""Programs of earlier releases, made from this repository's history: their code, and the packages of today.

Each lies in `.cache/releases/<commit>` and is made once: its source, and a virtual environment that has the roots of that
source, and the installed packages beside it. Today's own code is not on its path.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.releases.make import ROOTS, check_out

ROOT: Final = Path(__file__).parents[2]
_BUILDS: Final = ROOT / ".cache" / "releases"


class Release(NamedTuple):
    """A release that can be run."""

    name: str
    python: Path


TODAY: Final = Release("today", Path(sys.executable))


def build(commit: str) -> Release:
    """Return a release, made where that was not done; the test is skipped where the history does not have it."""
    folder = _BUILDS / commit
    if not folder.exists():
        _require(commit)
        _BUILDS.mkdir(parents=True, exist_ok=True)
        # Two may make it at once, and either may be killed: a folder of that name is complete.
        with tempfile.TemporaryDirectory(dir=_BUILDS) as temporary:
            made = Path(temporary, commit)
            check_out(commit, made)
            try:
                made.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
    return Release(commit, _environment(folder))


def _environment(folder: Path) -> Path:
    """Return the Python of a release; the paths in it are written each time, since packages may have moved."""
    made = folder / f"venv-{sysconfig.get_python_version()}"
    python = made / "bin" / "python"
    roots = [str(folder / root) for root in ROOTS if (folder / root).exists()]
    paths = dict.fromkeys([*roots, *(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))])
    if not python.exists():
        venv.create(made, with_pip=False, symlinks=True)
    inside = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(inside, "release.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    return python


def _require(commit: str) -> None:
    git = shutil.which("git")
    found = git and subprocess.run(
        [git, "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, check=False, capture_output=True
    )
    if not found or found.returncode:
        pytest.skip(
            f"the history of this checkout lacks {commit}: clone the whole repository, or `git fetch --unshallow`"
        )
