"""`replay` writes the tables as they were, from the ledger or an export; `audit restore` brings an export back."""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
import pytest

from jobledger.audit.export import write_export
from jobledger.cli.main import run
from jobledger.ledger import Ledger, connect, task
from jobledger.ledger.nats.floors import read_floor
from jobledger.projections import Store, difference

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer

T = TypeVar("T")


@task(queue="replayed")
async def double(number: int) -> int:
    return 2 * number


class Cli:
    """`jobledger` on an environment of the test's own."""

    def __init__(self, server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.server, self.capsys = server, capsys
        self.environment = f"t_{secrets.token_hex(6)}"

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = run([*words, "--url", self.server.url, "--environment", self.environment])
        shown = self.capsys.readouterr()
        return code, shown.out, shown.err

    def with_ledger(self, function: Callable[[Ledger], Awaitable[T]]) -> T:
        async def call() -> T:
            async with connect(
                self.server.url, environment=self.environment, ledger_bytes_max=16 << 20
            ) as ledger:
                return await function(ledger)

        return anyio.run(call)

    def enqueue(self, count: int, *, cancel: int) -> None:
        """Enqueue jobs, and cancel the first of them."""

        async def call(ledger: Ledger) -> None:
            jobs = [await ledger.enqueue(double, number) for number in range(count)]
            for job in jobs[:cancel]:
                await ledger.cancel(job.ref)

        self.with_ledger(call)

    def export(self, folder: Path) -> Path:
        async def call(ledger: Ledger) -> None:
            await write_export(ledger.log, folder)

        self.with_ledger(call)
        return folder


@pytest.fixture
def cli(nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(nats_server, capsys)
    made.enqueue(5, cancel=2)
    return made


def counts(path: Path) -> dict[str, int]:
    with Store.open(path) as store:
        return {str(state): count for state, count in store.counts_by_state().items() if count}


def test_the_tables_of_a_past_moment_are_written_to_a_file(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("replay", "--to", "6", "--into", str(tmp_path / "then.db"), "--json")
    assert code == 0
    assert json.loads(out)["position"] == 6
    assert counts(tmp_path / "then.db") == {"queued": 4, "cancelled": 1}
    code, out, _ = cli("replay", "--into", str(tmp_path / "now.db"))
    assert code == 0
    assert "position  7\n" in out
    assert "jobs      cancelled 2, queued 3\n" in out


def test_one_plain_file_is_left_and_no_folder_is_made(cli: Cli, tmp_path: Path) -> None:
    assert cli("replay", "--into", str(tmp_path / "then.db"))[0] == 0
    assert [each.name for each in tmp_path.iterdir()] == ["then.db"]
    tmp_path.chmod(0o555)  # any tool can read it, also where it may not write
    try:
        with contextlib.closing(sqlite3.connect(tmp_path / "then.db")) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
            assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (5,)
    finally:
        tmp_path.chmod(0o755)
    code, out, err = cli("replay", "--into", str(tmp_path / "none" / "z.db"))
    assert (code, out) == (2, "")
    assert f"there is no folder {tmp_path / 'none'}" in err
    assert cli("replay", "--into", str(tmp_path / "then.db"))[0] == 2
    assert cli("replay", "--to", "99", "--into", str(tmp_path / "late.db"))[0] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["then.db"]


def test_an_export_is_replayed_without_a_server(cli: Cli, tmp_path: Path) -> None:
    folder = cli.export(tmp_path / "export")
    assert cli("replay", "--into", str(tmp_path / "live.db"))[0] == 0
    code = run(
        [
            "replay",
            "--from",
            str(folder),
            "--into",
            str(tmp_path / "offline.db"),
            "--url",
            "nats://127.0.0.1:1",
        ]
    )
    cli.capsys.readouterr()
    assert code == 0
    assert difference(tmp_path / "live.db", tmp_path / "offline.db") is None
    code = run(["replay", "--from", str(folder), "--to", "3", "--into", str(tmp_path / "early.db")])
    assert code == 0
    assert counts(tmp_path / "early.db") == {"queued": 3}


async def aside(cli: Cli, *words: str) -> tuple[int, str, str]:
    """A command in a thread, with a loop of its own."""
    return await anyio.to_thread.run_sync(lambda: cli(*words))


async def noted(ledger: Ledger) -> int | None:
    """Return up to where the dispatches need no worker, as a consumer of them will read it."""
    consumer = ledger.names.consumer("replayed", "normal")
    return await read_floor(ledger.inbox, ledger.log, consumer)


@pytest.mark.anyio
async def test_an_export_is_brought_back_into_an_empty_ledger(
    cli: Cli, tmp_path: Path, server_factory: Callable[..., EmbeddedServer]
) -> None:
    folder = await anyio.to_thread.run_sync(cli.export, tmp_path / "export")
    code, before, _ = await aside(cli, "audit", "verify", "--json")
    assert code == 0
    async with server_factory() as other:
        cli.server = other
        restore = ["audit", "restore", str(folder)]
        code, out, _ = await aside(cli, *restore, "--to", "4")
        assert (code, out) == (0, "4 events were brought back; the ledger ends at 4\n")
        code, out, _ = await aside(cli, *restore)
        assert (code, out) == (0, "3 events were brought back; the ledger ends at 7\n")
        assert await anyio.to_thread.run_sync(lambda: cli.with_ledger(noted)) == 2, "two are cancelled"
        code, after, _ = await aside(cli, "audit", "verify", "--json")
        assert code == 0
        assert json.loads(after)["digest"] == json.loads(before)["digest"]
        code, out, _ = await aside(cli, *restore)
        assert (code, out) == (0, "0 events were brought back; the ledger ends at 7\n")
        # A ledger that has gone on is another one.
        await anyio.to_thread.run_sync(lambda: cli.enqueue(1, cancel=0))
        assert (await aside(cli, *restore))[0] == 4


def test_an_export_of_another_past_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = cli.export(tmp_path / "export")
    cli.environment = f"t_{secrets.token_hex(6)}"
    code, _, err = cli("audit", "restore", str(folder))
    assert code in {2, 4}
    assert "environment" in err


def test_what_cannot_be_replayed_is_refused(cli: Cli, tmp_path: Path) -> None:
    target = str(tmp_path / "file.db")
    code, _, err = cli("replay", "--to", "99", "--into", target)
    assert (code, "still to come" in err) == (2, True)
    code, _, err = cli("replay", "--to", "soon", "--into", target)
    assert (code, "is not a stream sequence or a time" in err) == (2, True)
    code, _, err = cli("replay", "--from", str(tmp_path / "none"), "--into", target)
    assert code != 0
    assert "none" in err
    assert not (tmp_path / "file.db").exists()
    # A part of the past is none: jobs would be told without what they were before.
    cli("audit", "export", str(tmp_path / "first"), "--to", "3")
    cli("audit", "export", str(tmp_path / "second"), "--from", "4")
    cli("audit", "export", str(tmp_path / "queue"), "--queue", "replayed")
    first, second, queue = (["--from", str(tmp_path / each)] for each in ("first", "second", "queue"))
    for words, why in (
        (second, "in the middle of jobs"),
        ([*second, *first], "the oldest first"),
        ([*first, *first], "the oldest first"),
        (queue, "holds a selection"),
    ):
        code, _, err = cli("replay", *words, "--into", target)
        assert (code, why in err) == (2, True), err
    assert not (tmp_path / "file.db").exists()
    assert cli("replay", *first, *second, "--into", str(tmp_path / "both.db"))[0] == 0
    cli("replay", "--into", str(tmp_path / "live.db"))
    assert difference(tmp_path / "live.db", tmp_path / "both.db") is None
    (tmp_path / "file.db").write_text("mine")
    code, _, err = cli("replay", "--into", target)
    assert (code, "the file exists" in err) == (2, True)
    assert (tmp_path / "file.db").read_text() == "mine"
