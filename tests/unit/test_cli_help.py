"""What the command line shows of itself: help without types, groups without errors, near words, tables that fit."""

from __future__ import annotations

import inspect
import re
import secrets
from pathlib import Path
from unittest.mock import ANY

import pytest
import typer
from tests.support.program import PROGRAM
from tests.support.tables import each_row
from tests.support.terminal import on_a_terminal, unstyled
from tests.unit.test_cli_docs import COMMANDS

from jobledger.cli import commands, groups
from jobledger.cli.commands import HELPS, PANELS, Group
from jobledger.cli.main import run
from jobledger.cli.output import Output


@each_row("name", ["jobledger", "jobledger jobs", *COMMANDS])
def test_help_names_no_type_and_lists_no_choices_in_its_column(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    # One program for all commands: `run` would build one for each command, 30 ms each.
    assert PROGRAM.main([*name.split()[1:], "--help"], prog_name="jobledger", standalone_mode=False) == 0
    shown = capsys.readouterr().out
    assert "Show this message and exit." in shown
    assert re.findall(r"<[a-z|\[\]]+>?", shown.replace("1<=x<=", "")) == []
    assert "[[" not in shown


def test_a_choice_is_named_by_a_word_and_its_values_stand_in_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(["jobs", "list", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--state STATE Only jobs in this state; repeat it for more: scheduled, held, queued," in shown


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--url", "nats://127.0.0.1:1", "jobs", "--help"], 0, "Usage: jobledger jobs"),
        (["--url=nats://127.0.0.1:1", "--environment", "e", "jobs", "list", "--help"], 0, "jobs list"),
        (["--url", "nats://127.0.0.1:1", "--help"], 0, "Usage: jobledger [OPTIONS]"),
        (["--url", "nats://127.0.0.1:1", "nothing"], 2, "No such command 'nothing'"),
        (["--url"], 2, "'--url' requires an argument"),
        (
            ["--url", "nats://127.0.0.1:1", "--", "workers", "list"],
            5,
            "no server answers at nats://127.0.0.1:1",
        ),
        (["--url", "", "workers", "list"], 5, "an empty URL is not the address of a server"),
        (["--url", "nats://127.0.0.1:1", "demo"], 2, "No such option"),
    ],
)
def test_options_of_the_server_stand_before_a_command_too(
    words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    assert told in "".join(capsys.readouterr())


@each_row("words", [[], ["jobs"], ["events", "subscriptions"], ["audit"]])
def test_a_group_without_a_command_shows_its_help_and_no_empty_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    shown = capsys.readouterr()
    assert "Usage: jobledger" in shown.out
    assert shown.err == ""


@each_row(
    ("words", "near"),
    [
        (
            ["jobs", "list", "--state", "runing"],
            "; did you mean 'running'? (see `jobledger jobs list --help`)",
        ),
        (["jobs", "list", "--state", "dead-letter"], "; did you mean 'dead_lettered'? (see"),
        (["dlq", "list", "--dead-reason", "Exhaust"], "; did you mean 'exhausted'? (see"),
        (["jobs", "list", "--state", "zzz"], "'discarded' (see"),
    ],
)
def test_a_word_that_is_no_choice_is_answered_with_the_near_one(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert near in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 50])
def test_a_narrow_terminal_gives_a_long_name_a_line_and_cuts_the_end(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, width)
    name = "web-frontend-eu-central-1-4242-1b0f3c5e"
    columns = ("worker", "supervisor", "queues", "running>", "oldest!", "from!", "since>")
    row = (name, "", "billing, emails, reports", 12, "3 min ago", "2026-01-02 03:04:05Z", "4 days ago")
    Output().table(columns, [row, ("web-1", "", "all", 0, "", "", "1 s ago")])
    head, _, *lines = unstyled(capsys.readouterr().out)
    assert all(len(line) <= width for line in lines), lines
    assert "supervisor" not in head, "a column without values is left out"
    assert lines[0] == name
    assert lines[1].split()[-4:] == (["03:04:05Z", "4", "days", "ago"] if width == 80 else ANY), lines
    assert lines[2].split()[:2] == ["web-1", "all"]
    assert lines[1].endswith("…") == (width == 50)


def test_a_long_name_stays_in_its_line_where_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, 80)
    name = "x" * 60
    Output().table(("queue", "empty", "queued>"), [(name, "", 7)])
    head, _, line = unstyled(capsys.readouterr().out)
    assert head.split() == ["queue", "empty", "queued"]
    assert line.split() == [name, "7"]


@each_row(
    ("code", "sentence"),
    [
        (
            "import sys\nsys.exit(0)\n",
            "called sys.exit(0) while it was imported: put what ends a program below",
        ),
        ("x = 1\ndef broken(:\n", "cannot be imported: SyntaxError: invalid syntax ({file}, line 2)\n"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_an_error_with_its_line_once(
    code: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / f"app_{secrets.token_hex(4)}.py"
    module.write_text(code)
    assert run(["enqueue", "send", "--app", module.stem]) == 2
    said = capsys.readouterr().err
    assert sentence.format(file=module) in said
    assert said.count(", line ") == sentence.count(", line ")


@each_row(
    ("line", "offered"),
    [
        ("jobledger dl", ["dlq"]),
        ("jobledger jobs li", ["list"]),
        ("jobledger jobs list --stat", ["--state"]),
        ("jobledger jobs list --state r", ["running", "retry_wait"]),
    ],
)
def test_a_shell_is_offered_commands_options_and_choices(
    line: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_JOBLEDGER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert run([]) == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(offered)


@each_row(
    ("name", "begun", "expected"),
    [
        ("jobs list", "ten", {"tenant:"}),
        ("jobs cancel", "tenant:acme s", {"tenant:acme state:", "tenant:acme since:"}),
        ("dlq requeue", "state:d", {"state:dead_lettered", "state:discarded"}),
        ("dlq discard", "job-7", set()),
    ],
)
def test_keys_of_a_search_are_completed(name: str, begun: str, expected: set[str]) -> None:
    command = COMMANDS[f"jobledger {name}"]
    (words,) = (each for each in command.params if each.param_type_name == "argument")
    with command.make_context(
        name, ["--all"] if name != "jobs list" else [], resilient_parsing=True
    ) as context:
        assert {each.value for each in words.shell_complete(context, begun)} == expected


def test_each_command_is_in_one_panel_of_the_help() -> None:
    named = [name for names in PANELS.values() for name in names]
    assert sorted(named) == sorted(commands.COMMANDS.members)


def test_the_help_of_all_commands_says_what_each_says_of_itself() -> None:
    commands.add_commands(typer.Typer(), None)
    own = {each.name: each.callback for each in groups.TOP.registered_commands}
    for name, member in commands.COMMANDS.members.items():
        if not isinstance(member, Group):
            doc = inspect.cleandoc(getattr(own[name], "__doc__", None) or "")
            assert HELPS[name] == " ".join(doc.partition("\n\n")[0].split()), name
