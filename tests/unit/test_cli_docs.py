"""docs/cli.md, most of which follows from the declarations, names every command and option, and none that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.program import PROGRAM
from tests.support.tables import each_row

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    members: dict[str, Any] = getattr(command, "commands", {})
    if not members:
        yield " ".join(path), command
    for name, member in members.items():
        yield from _commands(member, (*path, name))


COMMANDS = dict(_commands(PROGRAM, ("jobledger",)))


def _options(command: Any) -> set[str]:
    shown = (each for each in command.params if not getattr(each, "hidden", False))
    return {name for each in shown for name in each.opts if name.startswith("--")} - {"--help"}


def test_every_command_has_a_heading_and_no_heading_lacks_its_command() -> None:
    assert set(re.findall(r"^## (jobledger .*)$", TEXT, flags=re.MULTILINE)) == set(COMMANDS)


def _named(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


@each_row("name", COMMANDS)
def test_every_option_is_documented_with_its_command_or_as_shared(name: str) -> None:
    shared, *sections = re.split(r"^## (?=jobledger )", TEXT, flags=re.MULTILINE)
    section = next(each for each in sections if each.startswith(f"{name}\n"))
    assert _options(COMMANDS[name]) - _named(shared + section) == set()


def test_no_option_is_documented_that_does_not_exist() -> None:
    known = set[str]().union(*map(_options, COMMANDS.values())) | {
        "--help",
        "--verbose",
        "--debug",
        "--log-format",
        "--install-completion",
    }
    assert _named(TEXT) - known == set()


@each_row("name", COMMANDS)
def test_every_command_can_answer_in_json_and_explains_itself(name: str) -> None:
    assert "--json" in _options(COMMANDS[name])
    assert COMMANDS[name].help
