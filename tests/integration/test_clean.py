"""`doctor --clean`: projections that nobody used for long are named, and removed only where that was said."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

from jobledger.ledger.server import EmbeddedServer
from jobledger.projections import SCHEMA_VERSION, Snapshots
from jobledger.projections.files import held_alone

DAY_S = 86_400
BORN = "0123456789ab"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "jobledger"


@pytest.fixture
def cli(nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(nats_server.url, capsys)


def _age(days: float, *paths: Path) -> None:
    at = time.time() - days * DAY_S
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (at, at))


def _made(data: Path, cli: CommandLine) -> Path:
    """The projection of a ledger, as a list leaves it."""
    cli.make_ledger()
    assert cli.run("jobs", "list", *cli.where).code == 0
    (made,) = (data / "projections").glob("*.db")
    return made


def test_what_nobody_used_for_long_is_named_and_removed_on_demand(data: Path, cli: CommandLine) -> None:
    used = _made(data, cli)
    old = data / "projections" / f"host-4222-{BORN}.db"
    model = data / "read-models" / f"host-4222-staging-{BORN}-Orders.db"
    orphan = data / "projections" / f"other-{BORN}.db.lock"
    beside = [old.with_name(old.name + suffix) for suffix in ("-wal", "-shm", ".lock", ".rebuild-17")]
    _age(40, old, *beside, model, orphan)
    snapshot = Snapshots(old).folder / f"{7:020}-{1:020}-{0:08x}.db"
    _age(1, snapshot, data / "projections" / "mine.db", data / "projections" / f"host-{BORN}.db.note")
    _age(50, data / "projections" / "chosen.db")
    named = cli.run("doctor", "--clean", "--json")
    assert (named.code, named.lines[0]["removed"]) == (0, False)
    wanted = {str(old), str(model), str(orphan).removesuffix(".lock")}
    assert {each["file"] for each in named.lines[0]["files"]} == wanted
    assert old.exists()
    assert "3 projections lie unused; `jobledger doctor --clean`" in cli.run("doctor", *cli.where).err
    shown = cli.run("doctor", "--clean")
    assert "`jobledger doctor --clean --yes` removes them" in " ".join(shown.out.split())
    assert all(name in shown.out.replace("\n", "") for name in (old.name, model.name))
    assert cli.run("doctor", "--clean", "--yes", "--json").lines[0]["removed"]
    left = {path.name for path in data.rglob("*") if path.is_file() and used.name not in path.name}
    assert left == {"mine.db", "chosen.db", f"host-{BORN}.db.note"}
    assert used.exists()
    assert cli.run("doctor", "--clean").out.startswith("every projection in ")


def test_looking_at_a_projection_is_using_it(data: Path, cli: CommandLine) -> None:
    used = _made(data, cli)
    _age(40, *used.parent.glob("*"))
    assert len(cli.run("doctor", "--clean", "--json").lines[0]["files"]) == 1
    assert cli.run("jobs", "list", *cli.where).code == 0  # no event is new: nothing is written
    assert cli.run("doctor", "--clean", "--json").lines[0]["files"] == []


def test_releases_with_other_tables_have_a_projection_each(data: Path, cli: CommandLine) -> None:
    """While both are in use, neither has to rebuild what the other one reads."""
    ours = _made(data, cli)
    assert ours.name.endswith(f".v{SCHEMA_VERSION}.db")
    newer = ours.with_name(ours.name.replace(f".v{SCHEMA_VERSION}.", f".v{SCHEMA_VERSION + 1}."))
    newer.write_bytes(b"of another release")
    assert cli.run("jobs", "list", *cli.where).code == 0
    assert newer.read_bytes() == b"of another release"


def test_what_is_opened_now_stays(data: Path, cli: CommandLine) -> None:
    old, other = (data / "projections" / f"{name}-{BORN}.db" for name in ("one", "two"))
    _age(40, old, old.with_name(f"{old.name}.lock"), other, other.with_name(f"{other.name}.lock"))
    named = cli.run("doctor", "--clean", "--json").lines[0]["files"]
    assert len(named) == 2
    with held_alone(old, 1.0):
        _age(40, old.with_name(f"{old.name}.lock"))
        found = cli.run("doctor", "--clean", "--yes", "--json")
        assert [each["file"] for each in found.lines[0]["files"]] == [str(other)]
        assert "was locked by another process" in found.err
    assert (old.exists(), other.exists()) == (True, False)


def test_yes_alone_is_refused_and_without_folders_nothing_is_found(data: Path, cli: CommandLine) -> None:
    assert cli.run("doctor", "--yes").code == 2
    assert cli.run("doctor", "--clean", "--yes").code == 0
    assert not data.exists()


def test_who_asks_for_a_projection_that_is_not_there_leaves_no_lock(data: Path, cli: CommandLine) -> None:
    cli.make_ledger()
    (data / "projections").mkdir(parents=True)
    for words in (("audit", "verify"), ("doctor",), ("projection", "status")):
        cli.run(*words, *cli.where)
    assert list((data / "projections").iterdir()) == []
