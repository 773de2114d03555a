"""The command line with every command, built once for all tests: that takes a second."""

from __future__ import annotations

from typing import Any, Final

from jobledger.cli.main import program

PROGRAM: Final[Any] = program()
