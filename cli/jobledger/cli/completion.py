"""Tab completion: the line that a shell asks about, so that only the commands of this line are imported.

`jobledger --install-completion` makes the shell call the command line with `_JOBLEDGER_COMPLETE`; typer answers it.
"""

from __future__ import annotations

import os
from typing import Final

_ASKED: Final = "_JOBLEDGER_COMPLETE"
_LINES: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  #: variables of bash, and of other shells


def is_completing() -> bool:
    """Return whether a shell asks for completions of a line."""
    return _ASKED in os.environ


def takes_names_only() -> bool:
    """Return whether the shell shows the names of commands alone, without their help: bash does."""
    return os.environ.get(_ASKED) == "complete_bash"


def completed_words() -> list[str]:
    """Return the words after the program's name on the line that is to be completed."""
    line = next((os.environ[name] for name in _LINES if name in os.environ), "")
    return line.split()[1:]
