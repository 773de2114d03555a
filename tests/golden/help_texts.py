"""The help of every command as text: the same on every terminal, in every environment."""

from __future__ import annotations

import contextlib
import io
import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

from tests.support.program import PROGRAM

_COLUMNS: Final = 80


def help_texts() -> dict[str, str]:
    """Return a text for each group of commands by its name, with the help of the group and of each of its commands."""
    texts: dict[str, list[str]] = defaultdict(list)
    with mock.patch.dict(os.environ, {"COLUMNS": str(_COLUMNS)}):
        for path, is_group in _paths(PROGRAM, ()):
            group = "-".join(path if is_group else path[:-1]) or "root"
            texts[group].append(_help(path))
    return {group: _each_section_once(parts) for group, parts in texts.items()}


def _paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    members: dict[str, Any] = getattr(command, "commands", {})
    yield path, bool(members)
    for name, member in members.items():
        yield from _paths(member, (*path, name))


def _help(path: tuple[str, ...]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        PROGRAM.main([*path, "--help"], prog_name="jobledger", standalone_mode=False)
    return shown.getvalue()


def _each_section_once(texts: list[str]) -> str:
    """Return the texts of a group; a section that stood above in the same words is only named.

    Every group has the same options: without this they would be a good part of what is recorded.
    """
    seen: set[str] = set()
    shown: list[str] = []
    for text in texts:
        for part in text.strip("\n").split("\n\n"):
            heading = part.partition("\n")[0]
            shown.append(f"{heading} as above" if heading.endswith(":") and part in seen else part)
            seen.add(part)
    return "\n\n".join(shown) + "\n"
