"""Values of options: what is read without typer's own reader is what that makes of the same words."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from tests.support.tables import each_row
from typer.core import TyperCommand
from typer.exceptions import TyperException

from jobledger.cli.help import Command


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def _command(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    *,
    text: Annotated[str, typer.Option(envvar="TEXT_OF_TEST")] = "as before",
    many: Annotated[list[str] | None, typer.Option()] = None,
    count: Annotated[int, typer.Option(min=1, max=9)] = 5,
    number: int = -3,
    kind: Literal["text", "json"] = "text",
    colours: Annotated[list[Colour] | None, typer.Option("--colour")] = None,
    file: Annotated[Path | None, typer.Option()] = None,
    span: Annotated[float, typer.Option(parser=float)] = 1.0,
    switch: bool = False,
) -> dict[str, Any]:
    return dict(locals())


LINES: tuple[list[str], ...] = (
    [],
    ["one", "two", "--text", "", "--text", "three"],
    ["--text", "caf\u00e9 \N{SNOWMAN}"],
    ["--text", "a lone \udcff byte"],
    ["--many", "a", "--many", "b,c"],
    ["--count", "9", "--number", "007"],
    ["--number", "-7"],
    ["--number", " 7"],
    ["--number", "9" * 30],
    ["--number", "\u0667"],
    ["--count", "10"],
    ["--count", "0"],
    ["--count", "some"],
    ["--kind", "json"],
    ["--kind", "JSON"],
    ["--kind", "yaml"],
    ["--colour", "red", "--colour", "blue"],
    ["--colour", "green"],
    ["--file", "here"],
    ["--span", "2.5", "--switch"],
    ["--span", "long"],
)


def _answer(kind: type[TyperCommand], line: list[str]) -> object:
    app = typer.Typer(add_completion=False)
    app.command(cls=kind)(_command)
    try:
        return typer.main.get_command(app).main(args=line, prog_name="one", standalone_mode=False)
    except TyperException as error:
        return error.format_message()


@each_row("line", LINES)
def test_a_value_is_what_typer_makes_of_it(line: list[str]) -> None:
    assert _answer(Command, line) == _answer(TyperCommand, line)


def test_a_variable_is_read_as_typer_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXT_OF_TEST", "by the variable")
    assert _answer(Command, []) == _answer(TyperCommand, [])
