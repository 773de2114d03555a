"""The commit that `jobledger --version` says: read from a checkout without git, or from the file that the build wrote."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Final

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from jobledger.cli import commit as module
from jobledger.cli.commit import commit, commit_of, commit_words

ROOT: Final = Path(__file__).parents[2]
ONE: Final = "0123456789abcdef" * 2 + "01234567"
TWO: Final = ONE[::-1]


def checkout(root: Path, **files: str) -> str:
    """Make a folder of git with these files; `__` in a name stands for a slash."""
    for name, text in files.items():
        path = root / ".git" / name.replace("__", "/").replace("packed_refs", "packed-refs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_a_branch_a_packed_branch_and_a_detached_head_are_read(tmp_path: Path) -> None:
    on_main = "ref: refs/heads/main\n"
    packed = f"# pack-refs with: peeled\n{TWO} refs/heads/mainly\n{ONE} refs/heads/main\n^{TWO}\n"
    assert commit_of(checkout(tmp_path / "a", HEAD=on_main, refs__heads__main=f"{ONE}\n")) == ONE
    assert commit_of(checkout(tmp_path / "b", HEAD=on_main, packed_refs=packed)) == ONE
    assert commit_of(checkout(tmp_path / "c", HEAD=f"{ONE}\n")) == ONE
    both = checkout(tmp_path / "d", HEAD=on_main, refs__heads__main=f"{TWO}\n", packed_refs=packed)
    assert commit_of(both) == TWO


def test_a_further_worktree_is_read(tmp_path: Path) -> None:
    checkout(
        tmp_path / "main",
        refs__heads__side=f"{ONE}\n",
        worktrees__side__HEAD="ref: refs/heads/side\n",
        worktrees__side__commondir="../..\n",
    )
    side = tmp_path / "side"
    side.mkdir()
    (side / ".git").write_text("gitdir: ../main/.git/worktrees/side\n")
    assert commit_of(str(side)) == ONE


@pytest.mark.parametrize(
    "head", ["", "ref: refs/heads/none", "ref: ", "../../etc/passwd", ONE[:-1], ONE.upper(), "\x00"]
)
def test_what_cannot_be_read_is_not_known(tmp_path: Path, head: str) -> None:
    assert commit_of(checkout(tmp_path / "a", HEAD=head)) == ""
    assert commit_of(str(tmp_path / "none")) == ""


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    root = checkout(tmp_path / "a", HEAD="ref: refs/heads/main\n")
    (tmp_path / "a" / ".git" / "refs" / "heads").mkdir(parents=True)
    os.mkfifo(tmp_path / "a" / ".git" / "refs" / "heads" / "main")
    assert commit_of(root) == ""


def test_the_built_package_has_the_commit_and_a_rebuilt_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source distribution has no `.git`; the wheel that is built from it says the same commit."""
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(
            ".*", "__pycache__", "tests", "docs", "examples", "benchmarks", "deploy"
        ),
    )
    checkout(source, HEAD=ONE)
    (sdist,) = SdistBuilder(str(source)).build(directory=str(tmp_path / "dist"))
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    checkout(unpacked, HEAD=TWO)  # of whoever keeps source distributions in a repository of their own
    for place in (source, unpacked):
        (wheel,) = WheelBuilder(str(place)).build(directory=str(place / "dist"), versions=["standard"])
        with zipfile.ZipFile(wheel) as file:
            names = file.namelist()
            assert "hatch_build.py" not in names
            assert file.read("jobledger/cli/COMMIT").decode() == f"{ONE}\n"
    installed = tmp_path / "app" / "vendor" / "jobledger" / "cli"
    installed.mkdir(parents=True)
    (installed / "COMMIT").write_text(f"{ONE}\n")
    monkeypatch.setattr(module, "__file__", str(installed / "commit.py"))
    assert (commit(), commit_words()) == (ONE[:12], f" (commit {ONE[:12]})")
    (installed / "COMMIT").unlink()
    checkout(tmp_path / "app", HEAD=TWO)  # of the application that it is installed into
    assert commit_words() == ""
