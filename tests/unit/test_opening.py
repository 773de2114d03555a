"""Files: regular ones only, at once; private where we make them; and nobody else opens any."""

from __future__ import annotations

import ast
import errno
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.tables import each_row

from jobledger.ledger.files import (
    UnfitFileError,
    make_folder,
    need_own_folder,
    open_file,
    open_to_lock,
    open_to_write,
    refuse_unfit,
    rename_over,
    write_whole,
)
from jobledger.ledger.model.errors import UnsafeFolderError

ROOT = Path(__file__).parents[2]
ROOTS = ("ledger", "audit", "projections", "workers", "admin", "gateway", "cli", "testing")
OPENER = "ledger/jobledger/ledger/files.py"
#: Who opens a file by other means, and why nothing can go wrong with it.
EXEMPT = {
    "audit/jobledger/audit/verify/store.py": {"connect"},  # a database without a file
    "projections/jobledger/projections/files.py": {"connect"},  # SQLite opens by name: after a look at it
    "ledger/jobledger/ledger/outbox/sqlite.py": {"connect"},  # likewise
    "cli/jobledger/cli/streams.py": {"open"},  # the standard streams, by number
    "cli/jobledger/cli/commit.py": {"open"},  # of the package and of git, for what loads nothing else
    "cli/jobledger/cli/demo/tasks.py": {"read_bytes"},  # as any user's task
    # A folder that is new or locked by this process takes its name; it is no file.
    "audit/jobledger/audit/export/writer.py": {"rename", "os.open"},
    "projections/jobledger/projections/parquet.py": {"rename"},
    # Within such a folder.
    "audit/jobledger/audit/export/files.py": {"rename"},
    "audit/jobledger/audit/export/parquet.py": {"rename"},
    "audit/jobledger/audit/export/payloads.py": {"rename"},
    # Files of the package itself: what the pages are made with.
    "gateway/jobledger/gateway/pages/dashboard.py": {"read_bytes"},
    "gateway/jobledger/gateway/process/low_priority.py": {"write_text"},  # the kernel's, under /proc
}
_METHODS = {"write_text", "write_bytes", "read_text", "read_bytes", "touch", "mkdir", "rename", "symlink_to"}
_OF_OS = {"open", "fdopen", "mkdir", "makedirs", "rename", "replace", "mkfifo", "link", "symlink"}
_NAMES = _METHODS | _OF_OS | {"connect"}
_NAMED = re.compile(rf"\b(?:{'|'.join(sorted(_NAMES))})\b")  # to parse the rest takes two seconds
_MODE = frozenset("rwxabt+")


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def _link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(b"precious")
    path.symlink_to(target)


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nobody"))


def _null(path: Path) -> None:
    path.symlink_to(os.devnull)


KINDS: list[tuple[Callable[[Path], None], str]] = [
    (Path.mkdir, "a folder"),
    (_fifo, "a pipe"),
    (_socket, "a socket"),
    (_link, "a symbolic link"),
    (_dangling, "a symbolic link"),
]
WAYS: list[Callable[[Path], object]] = [
    lambda path: open_to_write(path, "wb"),
    lambda path: open_to_write(path, "ab"),
    lambda path: open_to_write(path, "ab+"),
    lambda path: open_to_write(path, "rb+"),
    open_to_lock,
    refuse_unfit,
    lambda path: write_whole(path, b"new"),
    lambda path: rename_over(_draft(path), path),
]


def _draft(path: Path) -> Path:
    draft = path.with_name("draft")
    draft.write_bytes(b"new")
    return draft


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize(("make", "kind"), KINDS, ids=[kind for _, kind in KINDS])
def test_only_a_regular_file_is_written(
    make: Callable[[Path], None], kind: str, way: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "it"
    make(path)
    before = path.lstat()
    with pytest.raises(UnfitFileError, match=f"it is {kind}") as caught:
        WAYS[way](path)
    assert caught.value.filename == str(path)
    assert path.lstat() == before
    assert {each.read_bytes() for each in tmp_path.glob("target")} <= {b"precious"}
    assert not (tmp_path / "nobody").exists()


@each_row("make, kind", [*KINDS[:3], (_null, "a device")])
def test_only_a_regular_file_is_read_and_at_once(
    make: Callable[[Path], None], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("of")
    before = Path.cwd()
    os.chdir(folder)
    try:
        make(folder / "it")
        with pytest.raises(UnfitFileError, match=f"it is {kind}"):
            open_file(folder / "it")
    finally:
        os.chdir(before)


@each_row("path", [Path("/"), Path(), Path("..")])
def test_a_folder_is_no_file(path: Path) -> None:
    with pytest.raises(UnfitFileError, match="it is a folder"):
        refuse_unfit(path)
    with pytest.raises(UnfitFileError, match="it is a folder"):
        open_file(path)


def test_a_link_is_followed_to_what_is_read(tmp_path: Path) -> None:
    _link(tmp_path / "it")
    with open_file(tmp_path / "it") as file:
        assert file.read() == b"precious"
    refuse_unfit(tmp_path / "it", links=True)


def test_what_is_missing_or_too_large_is_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none")
    (tmp_path / "large").write_bytes(b"12345")
    with pytest.raises(OSError, match="it has 5 bytes, more than the 4") as caught:
        open_file(tmp_path / "large", bytes_max=4)
    assert caught.value.errno == errno.EFBIG
    with pytest.raises(FileExistsError):
        open_to_write(tmp_path / "large", "xb")


def test_what_is_made_is_its_owners_alone_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    open_to_write(tmp_path / "w", "wb").close()
    open_to_write(tmp_path / "a", "ab").close()
    open_to_write(tmp_path / "x", "xb").close()
    open_to_write(tmp_path / "public", "xb", permissions=0o644).close()
    os.close(open_to_lock(tmp_path / "lock"))
    write_whole(tmp_path / "whole", b"")
    make_folder(tmp_path / "one" / "two", on_the_disk=True)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.rglob("*")}
    assert modes == {
        "w": 0o600, "a": 0o600, "x": 0o600, "public": 0o644, "lock": 0o600, "whole": 0o600,
        "one": 0o700, "two": 0o700,
    }  # fmt: skip


def test_what_was_there_keeps_its_mode_and_w_empties_it(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"old and long")
    path.chmod(0o640)
    with open_to_write(path, "wb") as file:
        file.write(b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o640)
    with open_to_write(path, "ab") as file:
        file.write(b"er")
    assert path.read_bytes() == b"newer"


def test_a_folder_that_others_can_write_to_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    shared = tmp_path / "it is shared"
    shared.mkdir()
    for mode in (0o770, 0o707, 0o1777):
        shared.chmod(mode)
        with pytest.raises(UnsafeFolderError, match=r"can be written by others: run `chmod go-w '.*shared'`"):
            need_own_folder(shared)
    shared.chmod(0o755)
    need_own_folder(shared)
    need_own_folder(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnsafeFolderError, match=f"belongs to user {os.getuid()}: run `chown -R "):
        need_own_folder(tmp_path)


def _opened_by_others(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls that open, make or rename a file or folder: line and name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, owner = _called(node.func)
        if name not in _NAMES or _names_devnull(node):
            continue
        mode = node.args[0] if node.args else None
        if (name == "open" and owner is None) or (owner == "os" and name in _OF_OS):
            yield node.lineno, "open" if owner is None else f"os.{name}"
        elif owner is not None and name in _METHODS:
            yield node.lineno, name
        elif name == "open" and isinstance(mode, ast.Constant) and set(str(mode.value)) <= _MODE:
            yield node.lineno, name  # a path's: no other `open` of ours takes a mode
        elif name == "replace" and len(node.args) == 1 and not node.keywords:
            yield node.lineno, name  # a path's: that of a text takes two, that of a time keywords
        elif (owner, name) == ("sqlite3", "connect"):
            yield node.lineno, name


def _called(func: ast.expr) -> tuple[str, str | None]:
    if isinstance(func, ast.Name):
        return func.id, None
    if isinstance(func, ast.Attribute):
        return func.attr, func.value.id if isinstance(func.value, ast.Name) else "?"
    return "", None


def _names_devnull(node: ast.Call) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "devnull" for each in ast.walk(node))


@each_row(
    "code",
    [
        "open('x')",
        "os.open(p, 0)",
        "p.open('rb')",
        "(p / 'x').open('xb', buffering=3)",
        "p.write_text('x')",
        "p.parent.mkdir(parents=True)",
        "draft.replace(path)",
        "sqlite3.connect(p)",
    ],
)
def test_the_scan_sees_every_way_to_open_a_file(code: str) -> None:
    assert len(list(_opened_by_others(ast.parse(code)))) == 1


@each_row(
    "code",
    ["text.replace('a', 'b')", "at.replace(tzinfo=UTC)", "structs.replace(a, b=1)", "Store.open(path)"],
)
def test_the_scan_sees_nothing_else(code: str) -> None:
    assert list(_opened_by_others(ast.parse(code))) == []


def test_nothing_but_the_opener_opens_a_file() -> None:
    found: dict[str, set[str]] = {}
    for root in ROOTS:
        for path in (ROOT / root).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            names = {name for _, name in _opened_by_others(ast.parse(text))} if _NAMED.search(text) else None
            if names:
                found[str(path.relative_to(ROOT))] = names
    found.pop(OPENER)
    assert found == EXEMPT


def test_a_file_that_vanishes_while_it_is_opened_is_made_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "export.jsonl", os.open
    path.write_text("old")

    def racing(name: Any, flags: int, *more: Any, **options: Any) -> int:
        try:
            return real(name, flags, *more, **options)
        except FileExistsError:
            path.unlink()  # another process removes it just now
            raise

    monkeypatch.setattr(os, "open", racing)
    with open_to_write(path, "wb") as file:
        file.write(b"inputs")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
