"""Stored graphs from the command line: put from a file, shown, run with an input, removed; and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine
from tests.support.tables import each_row

from jobledger.audit.verify import verify
from jobledger.ledger import Ledger, task
from jobledger.ledger.additions.announced import entry_of
from jobledger.ledger.nats.task_book import write_tasks

LETTER = {
    "nodes": [
        {"name": "letter", "task": "greet", "input": {"name": {"$input": "/customer/name"}}},
        {"name": "sent", "task": "greet", "takes": {"/name": "letter"}, "max_attempts": 2},
    ]
}


@task(queue="mail")
async def greet(name: str) -> str:
    return f"hello {name}"


async def _announce(ledger: Ledger) -> None:
    entry = entry_of(greet, worker="w", at=datetime(2026, 1, 1, tzinfo=UTC))
    await write_tasks(ledger.inbox, ledger.names, [entry], replicas=1)


@pytest.fixture
def cli(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.json").write_text(json.dumps(LETTER), encoding="utf-8")
    (tmp_path / "wrong.json").write_text(json.dumps({**LETTER, "limits": 2}), encoding="utf-8")
    lost = {"nodes": [{"name": "a", "task": "gret"}]}
    (tmp_path / "lost.json").write_text(json.dumps(lost), encoding="utf-8")
    toml = 'name = "toml"\n[[nodes]]\nname = "a"\ntask = "greet"\ninput = {name = "x"}\n'
    (tmp_path / "graph.toml").write_text(toml, encoding="utf-8")
    cli.with_ledger(_announce)
    return cli


def told(cli: CommandLine, *words: str) -> str:
    found = cli.run("graphs", *words, *cli.where)
    assert found.code == 0, found
    return found.out


def test_a_person_stores_a_graph_runs_it_and_takes_it_away(cli: CommandLine) -> None:
    assert "no graph is stored" in told(cli, "list")
    put = ("put", "onboarding", "--file", "letter.json")
    assert told(cli, *put, "--plan") == (
        "graph onboarding would be stored as version 1: 2 nodes\nnothing was changed\n"
    )
    assert told(cli, *put, "--reason", "new") == "graph onboarding is stored as version 1: 2 nodes\n"
    assert told(cli, *put) == "graph onboarding is as it was, version 1: 2 nodes\n"
    assert told(cli, "list").splitlines()[2].split()[:4] == ["onboarding", "1", "2", "/customer/name"]
    shown = told(cli, "show", "onboarding")
    rows = [line.split() for line in shown.splitlines()]
    assert ["letter", "greet", "mail", '{"name":{"$input":"/customer/name"}}'] in rows
    assert ["sent", "greet", "mail", "letter", '{"name":null}'] in rows
    assert "set version 1, 2 nodes: new, by" in shown
    (said,) = cli.run("graphs", "show", "onboarding", "--json", *cli.where).lines
    Path("again.json").write_text(json.dumps(said["definition"]), encoding="utf-8")
    assert "as it was, version 1" in told(cli, "put", "onboarding", "--file", "again.json")
    assert told(cli, "put", "toml", "--file", "graph.toml").endswith("version 1: 1 node\n")
    run = ("run", "onboarding", "--input", '{"customer": {"name": "bea"}}', "--id", "o-1")
    assert [json.loads(told(cli, *run))["created"] for _ in range(2)] == [True, False]
    assert told(cli, "remove", "onboarding", "--reason", "old") == "graph onboarding is removed\n"
    assert "removed old" in told(cli, "show", "onboarding")
    assert told(cli, "show", "onboarding", "--version", "1").startswith("graph onboarding")
    scheduled = ("add", "weekly", "--graph", "toml", "--on-demand", *cli.where)
    assert cli.run("schedules", *scheduled).out.startswith("schedule weekly: run_stored_graph")

    async def sound(ledger: Ledger) -> int:
        return len((await verify(ledger.log)).violations)

    assert cli.with_ledger(sound) == 0


@each_row(
    "words, code, sentence",
    [
        (["put", "x", "--file", "wrong.json"], 2, "unknown field `limits`"),
        (["put", "x", "--file", "lost.json"], 3, "node 'a' of graph x: "),
        (["put", "x", "--file", "graph.toml"], 2, "the graph has the name 'toml', not x"),
        (["put", "x.y", "--file", "letter.json"], 2, "graph 'x.y' is not valid"),
        (["put", "x", "--file", "no.json"], 1, "no.json: No such file"),
        (["show", "x"], 3, "there is no stored graph 'x'; `jobledger graphs list` shows"),
        (["remove", "x"], 3, "there is no stored graph 'x'"),
        (["run", "x"], 3, "there is no stored graph 'x'"),
        (["run", "x", "--input", "7"], 2, "--input must be a JSON object"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_told_in_a_sentence(
    cli: CommandLine, words: list[str], code: int, sentence: str
) -> None:
    found = cli.run("graphs", *words, *cli.where)
    assert (found.code, sentence in found.err) == (code, True), found
    assert "Traceback" not in found.err


def test_an_input_that_lacks_what_the_graph_takes_begins_nothing(cli: CommandLine) -> None:
    told(cli, "put", "onboarding", "--file", "letter.json")
    found = cli.run("graphs", "run", "onboarding", *cli.where)
    assert (found.code, found.out) == (2, "")
    assert "node 'letter' of graph onboarding: the input must have a value at '/customer/name'" in found.err
    wrong = cli.run("graphs", "run", "onboarding", "--input", '{"customer": {"name": 7}}', *cli.where)
    assert (wrong.code, "argument name: Expected `str`, got `int`" in wrong.err) == (2, True)
