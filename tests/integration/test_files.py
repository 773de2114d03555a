"""Files that a person names: what is no regular file is told at once and left as it is; what is made is private."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.conftest import ServerFactory
from tests.support.command_line import Answer, CommandLine

from jobledger.ledger.model.errors import ServerStartError, UnsafeFolderError
from jobledger.ledger.server import EmbeddedServer

TASKS = "from jobledger.ledger import task\n\n@task\nasync def idle() -> None: ...\n"


class Cli(CommandLine):
    """Commands on a ledger with a job."""

    def __call__(self, words: str, *more: str) -> Answer:
        return self.run(*words.split(), *more, *self.where)


@pytest.fixture
def cli(
    nats_server: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("JOBLEDGER_LEDGER_BYTES_MAX", str(1 << 20))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(TASKS, encoding="utf-8")
    made = Cli(nats_server.url, capsys)
    assert made("enqueue idle --app app.py").code == 0
    return made


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _root(_: Path) -> Path:
    return Path("/")


def _folder(at: Path) -> Path:
    at.mkdir()
    return at


def _device(at: Path) -> Path:
    try:
        os.mknod(at, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:  # not root, who cannot replace the system's, either
        return Path(os.devnull)
    return at


def _fifo(at: Path) -> Path:
    os.mkfifo(at)
    return at


def _socket(at: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(at.name)
    return at


def _link(at: Path) -> Path:
    target = at.with_name("target")
    target.write_bytes(b"")
    at.symlink_to(target)
    return at


KINDS: dict[str, Callable[[Path], Path]] = {
    "a folder: name a file in it": _root,
    "a folder": _folder,
    "a device": _device,
    "a pipe": _fifo,
    "a socket": _socket,
    "a symbolic link": _link,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_projection_is_a_regular_file_for_whoever_reads_or_writes_it(
    kind: str, cli: Cli, tmp_path: Path
) -> None:
    path = KINDS[kind](tmp_path / "named")
    before = path.lstat()
    for words in (
        "jobs list",
        "queues list",
        "projection rebuild",
        "projection run --once",
        "metrics --port 0",
    ):
        answer = cli(words, "--projection", str(path))
        assert answer.code == 2, answer
        assert f"it is {kind}" in answer.err
        assert answer.err.count("\n") == 1
    if kind != "a symbolic link":  # which may be read
        for words, code in (
            ("projection status", 2),
            ("projection verify", 2),
            ("doctor", 1),
            ("audit verify", 0),
        ):
            answer = cli(words, "--projection", str(path))
            assert (answer.code, f"it is {kind}" in " ".join((answer.out + answer.err).split())) == (
                code,
                True,
            )
    after = path.lstat()
    assert (after.st_mode, after.st_ino, after.st_rdev) == (before.st_mode, before.st_ino, before.st_rdev)
    assert {each.read_bytes() for each in tmp_path.glob("target")} <= {b""}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "words",
    [
        "audit verify --report NAMED",
        "replay --into NAMED",
        "audit seal --key key --publish NAMED",
        "audit export NAMED",
    ],
)
def test_what_is_written_is_no_device_pipe_or_link(words: str, kind: str, cli: Cli, tmp_path: Path) -> None:
    assert cli.run("audit", "keygen", "key").code == 0
    path = KINDS[kind](tmp_path / "named")
    before = path.lstat()
    answer = cli(words.replace("NAMED", str(path)))
    is_new_folder = words.startswith("audit export") and kind == "a folder"
    assert is_new_folder or answer.code != 0, answer
    assert is_new_folder or answer.err.count("\n") == 1
    assert is_new_folder or path.lstat().st_mode == before.st_mode
    assert {each.read_bytes() for each in tmp_path.glob("target")} <= {b""}


@pytest.mark.parametrize("kind", ["a device", "a pipe", "a socket", "a folder"])
def test_what_is_read_is_no_device_or_pipe(kind: str, cli: Cli, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path / "named")
    for words in (
        "audit verify --against NAMED",
        "audit verify --seal NAMED",
        "audit verify --seal-key NAMED",
        "audit seal --key NAMED",
        "metrics --port 0 --token-file NAMED",
        "jobs list --creds NAMED",
    ):
        answer = cli(words.replace("NAMED", str(path)))
        assert (answer.code, answer.err.count("\n")) == (2, 1), answer
        assert f"it is {kind}" in answer.err, answer


def test_what_is_made_can_be_read_by_its_owner_alone(open_umask: None, cli: Cli, tmp_path: Path) -> None:
    assert cli("jobs list").code == 0
    assert cli("jobs list --projection named/deep/rows.db").code == 0
    assert cli("audit verify --report report.json").code == 0
    assert cli("audit export out/json").code == 0
    assert cli("audit export out/parquet --format parquet").code == 0
    assert cli("replay --into then.db").code == 0
    now = datetime.now(UTC).isoformat()
    assert cli("audit archive --force --to archive --before", now).code == 0
    assert cli.run("audit", "keygen", "key").code == 0
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    ours = {
        path: mode for path, mode in modes.items() if path.name not in {"app.py", "__pycache__", "key.pub"}
    }
    assert len(ours) > 12
    wrong = {
        str(path): oct(mode)
        for path, mode in ours.items()
        if mode != (0o700 if path.is_dir() else 0o600) and "__pycache__" not in path.parts
    }
    assert wrong == {}


async def test_a_store_that_others_can_write_to_is_refused(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o777)
    with pytest.raises(UnsafeFolderError, match="run `chmod go-w "):
        await server_factory(store).start()
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("name", ["embedded.lock", "nats-server.conf", "nats-server.log"])
@pytest.mark.parametrize("kind", ["a symbolic link", "a pipe", "a folder"])
async def test_a_store_follows_no_link_and_waits_for_no_pipe(
    name: str,
    kind: str,
    server_factory: ServerFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    KINDS[kind](store / name)
    with pytest.raises(ServerStartError, match=f"{name}: it is {kind}"):
        await server_factory(store).start()
    assert {each.read_bytes() for each in store.glob("target")} <= {b""}
