"""`jobledger outbox ...`: the relay as a process, and what people see and mend of rows."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.integration.conftest import Process
from tests.support.command_line import CommandLine
from tests.support.limits import LIMIT_S
from tests.support.postgres import Postgres
from tests.support.tables import each_row

from jobledger.ledger import outbox, task


@task(queue="mail")
async def send(user_id: int) -> None: ...


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def where(cli: CommandLine, path: Path) -> tuple[str, str]:
    """The options that name the database, in which there is an outbox."""
    found = ("--database", f"sqlite:{path}")
    assert cli.run("outbox", "create", *found).code == 0
    return found


def _add(path: Path, *user_ids: int, job_id: str | None = None) -> None:
    with sqlite3.connect(path) as connection:
        for each in user_ids:
            outbox.enqueue(connection, send.options(id=job_id), each)
    connection.close()


def _jobs(cli: CommandLine) -> list[str]:
    return [json.loads(line)["id"] for line in cli.run("jobs", "list", "--json", *cli.where).out.splitlines()]


def test_rows_are_relayed_shown_refused_mended_and_discarded(
    cli: CommandLine, path: Path, where: tuple[str, str]
) -> None:
    _add(path, 1, job_id="same")
    _add(path, 2, job_id="same")
    _add(path, 3, job_id="same")
    found = json.loads(cli.run("outbox", "status", "--json", *where).out)
    assert (found["waiting"], found["refused"]) == (3, 0)
    assert found["oldest_at"]
    done = cli.run("outbox", "relay", "--once", "--json", *where, *cli.where)
    assert json.loads(done.out) == {"created": 1, "existing": 0, "refused": 2}
    assert _jobs(cli) == ["same"]
    listed = [
        json.loads(line) for line in cli.run("outbox", "list", "--refused", "--json", *where).out.splitlines()
    ]
    assert [(each["number"], each["job"], each["task"], each["queue"]) for each in listed] == [
        (2, "same", "send", "mail"),
        (3, "same", "send", "mail"),
    ]
    assert "another input" in listed[0]["refusal"] or "user_id" in listed[0]["refusal"]
    assert "refused: 2" in cli.run("outbox", "status", *where).out
    assert cli.run("outbox", "discard", "3", *where).out == "refused rows: 1 deleted\n"
    assert json.loads(cli.run("outbox", "retry", "2", "3", "--json", *where).out) == {"rows": 1}
    assert "waiting: 1" in cli.run("outbox", "status", *where).out
    gone = cli.run("outbox", "retry", "3", *where)
    assert (gone.code, "no refused row has the number 3" in gone.err) == (3, True)
    cli.run("outbox", "relay", "--once", *where, *cli.where)
    assert "refused because" in cli.run("outbox", "list", *where).out
    for act in ("retry", "discard"):
        for words in ((), ("2", "--all")):
            answer = cli.run("outbox", act, *words, *where)
            assert (answer.code, "say which rows" in answer.err) == (2, True)
        unsure = cli.run("outbox", act, "--all", *where)
        assert (unsure.code, f"{act} all refused rows, 1 now: look at them with" in unsure.err) == (2, True)
    assert cli.run("outbox", "retry", "--all", "--yes", *where).out == "refused rows: 1 wait again\n"
    cli.run("outbox", "relay", "--once", *where, *cli.where)
    assert json.loads(cli.run("outbox", "discard", "--all", "--yes", "--json", *where).out) == {"rows": 1}
    assert cli.run("outbox", "discard", "--all", *where).out == "refused rows: 0 deleted\n"
    assert cli.run("outbox", "list", *where).out == "the outbox is empty\n"
    assert cli.run("outbox", "list", "--refused", *where).out == "no row was refused\n"


def test_a_relay_serves_until_it_is_stopped_and_a_second_one_takes_over(
    cli: CommandLine, path: Path, where: tuple[str, str], command: Callable[..., Process]
) -> None:
    words = ("outbox", "relay", "--json", "--poll", "20ms", *where, *cli.where)
    first = command(*words)
    assert first.line()["outbox"] == "main"
    second = command(*words)
    _add(path, 1)
    _wait(cli, 1)
    assert first.end(signal.SIGTERM) == 0
    assert second.line()["outbox"] == "main"
    _add(path, 2)
    _wait(cli, 2)
    assert second.end(signal.SIGINT) == 0
    assert json.loads(second.rest()[-1]) == {"created": 1, "existing": 0, "refused": 0}


def test_a_relay_shows_its_rows_to_prometheus(
    cli: CommandLine, path: Path, where: tuple[str, str], command: Callable[..., Process]
) -> None:
    _add(path, 1, job_id="same")
    _add(path, 2, job_id="same")
    relay = command("outbox", "relay", "--json", "--poll", "20ms", "--metrics-port", "0", *where, *cli.where)
    url = relay.line()["metrics"]

    def shown(page: str = url) -> str:
        with urlopen(page, timeout=LIMIT_S) as answer:
            text: str = answer.read().decode()
        return text

    until = time.monotonic() + LIMIT_S
    while not set((found := shown()).splitlines()) >= _ALL_SHOWN:
        assert time.monotonic() < until, found
        time.sleep(0.05)
    assert "ok" in shown(url.replace("/metrics", "/healthz"))
    assert relay.end(signal.SIGTERM) == 0


_ALL_SHOWN = {
    'jobledger_outbox_waiting{outbox="main"} 0.0',
    'jobledger_outbox_oldest_seconds{outbox="main"} 0.0',
    'jobledger_outbox_refused{outbox="main"} 1.0',
    'jobledger_outbox_relayed_total{outbox="main",outcome="created"} 1.0',
    'jobledger_outbox_relayed_total{outbox="main",outcome="existing"} 0.0',
    'jobledger_outbox_relayed_total{outbox="main",outcome="refused"} 1.0',
    'jobledger_outbox_failures_total{outbox="main"} 0.0',
}


def _wait(cli: CommandLine, count: int) -> None:
    for _ in range(200):
        if len(_jobs(cli)) == count:
            return
    raise AssertionError(f"there are not {count} jobs")


@each_row(
    ("words", "code", "why"),
    [
        (["status"], 2, "give one of --database and --database-file"),
        (["status", "--database", "sqlite:a", "--database-file", "b"], 2, "give one of"),
        (["status", "--database", "mysql://h/d"], 2, "postgresql://... or sqlite:PATH"),
        (["status", "--database", "sqlite:"], 2, "names no file"),
        (["status", "--database", "sqlite:/nowhere/app.db"], 3, "there is no file"),
        (["status", "--database-file", "/nowhere"], 2, "cannot be read"),
        (["status", "--database", "postgresql://u:pw@h/d"], 2, "JOBLEDGER_OUTBOX_DATABASE"),
        (["status", "--database", "postgresql://u@h/d?password=pw"], 2, "JOBLEDGER_OUTBOX_DATABASE"),
        (["status", "--database", "postgresql://u@127.0.0.1:1/d"], 5, "cannot be used now"),
        (["retry", "x", "--database", "sqlite:a"], 2, "valid integer|x"),
        (["relay", "--poll", "0", "--database", "sqlite:a"], 2, "above 0"),
        (["schema", "mysql"], 2, "'postgresql', 'sqlite'"),
    ],
)
def test_wrong_words_are_told(cli: CommandLine, words: list[str], code: int, why: str) -> None:
    answer = cli.run("outbox", *words)
    assert answer.code == code, answer.err
    assert any(each in answer.err for each in why.split("|")), answer.err
    assert "pw" not in answer.err


def test_a_database_without_a_table_names_the_command_that_makes_it(cli: CommandLine, path: Path) -> None:
    sqlite3.connect(path).close()
    for words in (["status"], ["relay", *cli.where]):
        answer = cli.run("outbox", *words, "--database", f"sqlite:{path}")
        assert (answer.code, "jobledger outbox create" in answer.err) == (3, True)


def test_a_password_is_neither_in_a_log_nor_in_the_words_of_the_process(
    cli: CommandLine, postgres: Postgres, tmp_path: Path, command: Callable[..., Process]
) -> None:
    name = postgres.new_database().partition("@/")[2].partition("?")[0]
    address = tmp_path / "address"
    address.write_text(postgres.url(name, password="topsecret") + "\n", encoding="utf-8")
    assert cli.run("outbox", "create", "--database-file", str(address)).code == 0
    relay = command(
        "--debug",
        "outbox",
        "relay",
        "--json",
        *cli.where,
        variables={"JOBLEDGER_OUTBOX_DATABASE_FILE": str(address)},
    )
    relay.line()
    if Path("/proc").is_dir():
        assert b"topsecret" not in Path(f"/proc/{relay.child.pid}/cmdline").read_bytes()
    postgres.kill()
    relay.said("waits")
    postgres.start()
    assert relay.end(signal.SIGTERM) == 0
    assert "topsecret" not in relay.errors


def test_a_relay_that_begins_before_its_database_waits_for_it(
    cli: CommandLine, postgres: Postgres, command: Callable[..., Process]
) -> None:
    where = ("--database", postgres.new_database())
    assert cli.run("outbox", "create", *where).code == 0
    postgres.kill()
    relay = command("outbox", "relay", "--json", "--wait-for-server", "30s", *where, *cli.where)
    given_up = cli.run("outbox", "relay", "--wait-for-server", "0", *where, *cli.where)
    assert (given_up.code, "cannot be used now" in given_up.err) == (5, True)
    assert "cannot be used now" in relay.said("retrying for 30 s (--wait-for-server)")
    postgres.start()
    assert relay.line()["outbox"] == "main"
    assert relay.end(signal.SIGTERM) == 0


def test_the_statements_of_the_schema_make_the_table(cli: CommandLine, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(cli.run("outbox", "schema", "sqlite").out)
        outbox.enqueue(connection, send, 1)
    connection.close()
    statements = json.loads(cli.run("outbox", "schema", "postgresql", "--json").out)["statements"]
    assert statements == outbox.schema("postgresql")
