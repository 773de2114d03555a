"""Which source files are watched, and what counts as a change."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.support.limits import LIMIT_S

from jobledger.workers.supervision import reload
from jobledger.workers.supervision.reload import SourceWatch, difference, source_folders

pytestmark = pytest.mark.anyio


def test_a_module_is_watched_with_its_folder_and_a_package_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "watched_package/inner/__init__.py",
        "watched_package/__init__.py",
        "plain/watched_module.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('must not run')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "plain")
    monkeypatch.chdir(tmp_path / "plain")
    package = tmp_path / "watched_package"
    assert source_folders(["watched_package.inner.deep"]) == [package]
    assert source_folders(["watched_module"]) == [tmp_path / "plain"]
    assert source_folders([str(package / "x.py")]) == [package]
    assert source_folders(["not_there_yet"]) == [tmp_path / "plain"]
    assert source_folders([str(tmp_path / "x.py"), "watched_module"]) == [tmp_path]  # one holds the other


def test_only_sources_are_seen(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "b.txt",
        "p/c.py",
        ".git/d.py",
        "__pycache__/e.py",
        "env/pyvenv.cfg",
        "env/lib/f.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "p" / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling.py").symlink_to(tmp_path / "gone")
    seen = SourceWatch([tmp_path]).look()
    assert {Path(path).relative_to(tmp_path).as_posix() for path in seen} == {"a.py", "p/c.py"}


def test_of_a_tree_that_is_too_large_the_first_files_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        (tmp_path / f"f{number}.py").touch()
    monkeypatch.setattr(reload, "_FILES_MAX", 3)
    watch = SourceWatch([tmp_path])
    assert len(watch.look()) == 3
    assert caplog.text.count("are watched") == 1


def test_changes_are_told_apart_by_time_size_and_inode() -> None:
    before = {"a": (1, 1, 1), "b": (1, 1, 1), "gone": (1, 1, 1)}
    after = {"a": (1, 1, 1), "b": (1, 2, 1), "new": (1, 1, 1)}
    assert difference(before, after) == ["b", "gone", "new"]


async def test_several_changes_at_once_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1", encoding="utf-8")
    watch = SourceWatch([tmp_path], poll_s=0.05)
    told: list[list[str]] = []
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run, told.append)
        (tmp_path / "a.py").write_text("22", encoding="utf-8")
        (tmp_path / "b.py").write_text("1", encoding="utf-8")
        with anyio.fail_after(LIMIT_S):
            while not told:
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert told == [[str(tmp_path / "a.py"), str(tmp_path / "b.py")]]
