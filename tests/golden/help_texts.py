"""The help of every command as text: the same on every terminal, in every environment."""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import typer
import typer.rich_utils

from jobledger.cli.main import program

_COLUMNS: Final = 80


def help_texts() -> dict[str, str]:
    """Return a text for each group of commands by its name, with the help of the group and of each of its commands."""
    root = typer.main.get_command(program())
    texts: dict[str, list[str]] = defaultdict(list)
    # Typer reads these when it is imported, from variables of whoever runs the tests.
    plain: dict[str, Any] = {"MAX_WIDTH": _COLUMNS, "COLOR_SYSTEM": None, "FORCE_TERMINAL": False}
    with mock.patch.multiple(typer.rich_utils, **plain):
        for path, is_group in _paths(root, ()):
            group = "-".join(path if is_group else path[:-1]) or "root"
            texts[group].append(_help(root, path))
    return {group: _each_panel_once("\n".join(parts)) for group, parts in texts.items()}


def _paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    members: dict[str, Any] = getattr(command, "commands", {})
    yield path, bool(members)
    for name, member in members.items():
        yield from _paths(member, (*path, name))


def _help(root: Any, path: tuple[str, ...]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        root.main([*path, "--help"], prog_name="jobledger", standalone_mode=False)
    return shown.getvalue()


def _each_panel_once(text: str) -> str:
    """Return a group's text without frames; a panel that stood above in the same words is only named.

    Every command has the options of its connection: without this they would be two thirds of what is recorded.
    """
    lines: list[str] = []
    panel: list[str] = []
    seen: set[str] = set()
    for line in text.splitlines():
        match line[:1]:
            case "╭":
                panel = [line.strip("╭╮─ ") + ":"]
            case "│":
                panel.append("  " + line[2:-1].rstrip())
            case "╰":
                words = "\n".join(panel)
                lines += [f"{panel[0]} as above"] if words in seen else panel
                seen.add(words)
            case _:
                lines.append(line.rstrip())
    return "\n".join(_no_two_empty(lines)).strip("\n") + "\n"


def _no_two_empty(lines: list[str]) -> Iterator[str]:
    before = ""
    for line in lines:
        if line or before:
            yield line
        before = line
