"""A ledger that lost its end, its beginning or changed under its projection: every command that looks says so."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.command_line import Answer, CommandLine
from tests.support.history import write_history
from tests.support.jetstream import api

from jobledger.admin import health
from jobledger.ledger import Ledger
from jobledger.projections import rebuild

if TYPE_CHECKING:
    from jobledger.ledger.server import EmbeddedServer


class Cli(CommandLine):
    """The command line on a ledger with a projection of its own."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.projection = folder / "p.db"

        async def begin(ledger: Ledger) -> int:
            await write_history(ledger.log)
            return (await rebuild(ledger.log, self.projection)).stream_sequence

        self.head = self.with_ledger(begin)

    def __call__(self, *words: str) -> Answer:
        return self.run(*words, *self.where, "--projection", str(self.projection))

    def stands_at(self, stream_sequence: int, event_hash: str | None = None) -> None:
        """Let the file say that it has read up to there: as it does when the ledger was rewound."""
        with sqlite3.connect(self.projection) as connection:
            connection.execute("UPDATE position SET stream_sequence = ?", (stream_sequence,))
            if event_hash is not None:
                connection.execute("UPDATE position SET event_hash = ?", (event_hash,))
        connection.close()

    def checks(self) -> tuple[int, dict[str, dict[str, str]]]:
        answer = self("doctor", "--json")
        return answer.code, {each["check"]: each for each in answer.lines[0]["checks"]}


@pytest.fixture
def cli(nats_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(nats_server.url, tmp_path, capsys)


@pytest.mark.parametrize(
    ("ahead", "what"), [(7, "the ledger has no event there"), (0, "another event there")]
)
def test_doctor_and_status_refuse_with_the_sentence_of_jobs_list(cli: Cli, ahead: int, what: str) -> None:
    cli.stands_at(cli.head + ahead, None if ahead else "0" * 64)
    listed = cli("jobs", "list")
    sentence = listed.err.strip().removeprefix("jobledger: ")
    assert (listed.code, what in sentence) == (4, True)

    code, checks = cli.checks()
    assert (code, checks["projection"]["status"], checks["projection"]["found"]) == (1, "fail", sentence)
    told = cli("projection", "status")
    assert (told.code, told.err.strip()) == (4, f"jobledger: {sentence}")
    assert f"{cli.head + ahead:,} of {cli.head:,}" in told.out
    assert "unknown" in told.out
    answer = cli("projection", "status", "--json")
    assert answer.code == 4
    body = answer.lines[0]
    assert (body["problem"], body["lag_events"], body["lag_s"]) == (sentence, None, None)


def test_doctor_warns_of_a_projection_that_is_far_behind(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    code, checks = cli.checks()  # it fails: jobs wait, and no worker serves their queue
    assert (code, checks["projection"]["found"]) == (1, f"up to date, at stream sequence {cli.head}")
    cli.with_ledger(lambda ledger: write_history(ledger.log, "later"))
    checks = cli.checks()[1]
    assert checks["projection"]["status"] == "ok"
    assert f"at stream sequence {cli.head}, {cli.head} events behind" in checks["projection"]["found"]
    cli.with_ledger(
        lambda ledger: write_history(ledger.log, "last")
    )  # what came before was read for the diagnoses
    monkeypatch.setattr(health, "LAG_WARN_EVENTS", cli.head - 1)
    code, checks = cli.checks()
    assert (code, checks["projection"]["status"]) == (0, "warn")
    assert "what hurts is not known" in checks["diagnoses"]["found"]
    assert "jobledger projection run" in checks["projection"]["advice"]


@pytest.mark.unsound_ledger("its first events are purged by hand")
def test_a_lost_beginning_is_no_archive(cli: Cli) -> None:
    async def lose(ledger: Ledger) -> None:
        stream = ledger.names.ledger_stream
        assert (await api(ledger.inbox, f"STREAM.PURGE.{stream}", {"seq": 6})).get("success")

    assert cli.checks()[1]["ledger"]["status"] == "ok"
    cli.with_ledger(lose)
    refused = cli("projection", "verify")
    assert (refused.code, "stream sequence 1 is missing" in refused.err) == (1, True)
    assert "archive" not in refused.err
    code, checks = cli.checks()
    assert (code, checks["ledger"]["status"]) == (1, "fail")
    assert "no archive run moved 1 to 5" in checks["ledger"]["found"]


def test_a_missing_tail_is_found_by_the_projection_that_is_there(cli: Cli, tmp_path: Path) -> None:
    def unproven(answer: Answer) -> list[str]:
        return list(answer.lines[0]["not_proven"])

    sound = cli("audit", "verify", "--json")
    assert sound.code == 0
    assert f"cut off beyond {cli.head}, " in unproven(sound)[0]
    assert sound.lines[0]["compared"][0] == {
        "what": "projection",
        "sentence": f"the event at {cli.head}, the last one that {cli.projection} has read, is there",
        "agrees": True,
        "through": cli.head,
        "intact": [],
        "signed": None,
    }
    cli.with_ledger(lambda ledger: write_history(ledger.log, "later"))
    assert cli("audit", "verify").code == 0  # a projection that is behind is none the worse
    cli.stands_at(2 * cli.head + 3)
    for words in ((), ("--from", "5"), ("--with-projection",)):
        answer = cli("audit", "verify", *words)
        assert (answer.code, "the tail is missing" in answer.err) == (4, True), answer.err
    assert f"at stream sequence {2 * cli.head + 1}" in cli("audit", "verify").err
    # What was asked for is what the projection had read: then it is no slip of the hand.
    assert cli("audit", "verify", "--to", str(2 * cli.head + 3)).code == 4
    assert cli("audit", "verify", "--to", str(2 * cli.head + 4)).code == 2
    cli.stands_at(cli.head, "0" * 64)
    for words in ((), ("--to", str(cli.head - 3)), ("--from", str(cli.head + 3))):
        answer = cli("audit", "verify", *words, "--json")
        assert (answer.code, answer.lines[0]["broken"]) == (4, {"projection": 1})
        assert "has read another event there" in answer.err


def test_no_projection_or_a_strange_one_holds_no_check_up(cli: Cli, tmp_path: Path) -> None:
    cli.projection.unlink()
    answer = cli("audit", "verify")
    assert (answer.code, answer.err) == (0, "")
    assert "not proven: that nothing was cut off at the end" in answer.out
    assert not cli.projection.exists()
    cli.projection.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    answer = cli("audit", "verify")
    assert (answer.code, "was not compared with the projection" in answer.err) == (0, True)

    other = CommandLine(cli.url, cli._capsys)
    other.with_ledger(lambda ledger: rebuild(ledger.log, tmp_path / "other.db"))
    answer = other.run("audit", "verify", *cli.where, "--projection", str(tmp_path / "other.db"))
    assert (answer.code, "cut off at the end" in answer.out) == (0, True)


def test_a_place_that_cannot_be_looked_at_holds_no_check_up(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.projection = cli.projection.with_name(
        "p" * 300
    )  # as in somebody else's folder, the system refuses to look
    answer = cli("audit", "verify")
    assert (answer.code, "was not compared with the projection" in answer.err) == (0, True), answer.err

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")  # of a user that the system does not know

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    answer = cli.run("audit", "verify", *cli.where)
    assert (answer.code, "this user has no home folder" in answer.err) == (0, True), answer.err
    for words in (("audit", "verify", "--with-projection"), ("jobs", "list")):
        answer = cli.run(*words, *cli.where)
        assert (answer.code, "name each file (--projection)" in answer.err) == (2, True), answer.err
    answer = cli.run("doctor", "--json", *cli.where)
    (report,) = answer.lines
    found = {check["check"]: check for check in report["checks"]}
    assert (answer.code, found["projection"]["status"]) == (0, "warn"), answer
    assert "no home folder" in found["projection"]["found"]
