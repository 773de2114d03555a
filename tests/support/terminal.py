"""A terminal for a command that runs in the test's own process, or in one that it starts."""

from __future__ import annotations

import re

import pytest

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def terminal(columns: int = 80) -> dict[str, str]:
    """Return what makes the command line believe that its stdout is a terminal."""
    return {"COLUMNS": str(columns), "TTY_COMPATIBLE": "1", "TERM": "vt100"}


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> None:
    """Let commands in this process fold and cut to `columns` columns."""
    for name, value in terminal(columns).items():
        monkeypatch.setenv(name, value)


def unstyled(text: str) -> list[str]:
    """Return what was shown, line by line, without its colours."""
    return _STYLE.sub("", text).splitlines()
