"""The entry of `jobledger` and of `python -m jobledger.cli`: an interrupt ends it quietly, also while modules load.

It imports next to nothing, so that it can print the version without loading the command line, which takes longer than
Python itself.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

from jobledger.cli.commit import commit_words
from jobledger.cli.streams import prepare
from jobledger.ledger.model.version import VERSION

_INTERRUPTED: Final = 130  # the code in jobledger.cli.errors, which may not be imported yet


def main() -> None:
    """Run the command line; see `jobledger.cli.main`."""
    # A start makes hundreds of thousands of objects that stay, and the garbage collector would examine all of them
    # again and again. `session.run` and `command` turn it on for commands that run longer.
    gc.disable()
    prepare()
    if sys.argv[1:] == ["--version"] and _has_said_version():
        return
    try:
        from jobledger.cli.main import main as run  # noqa: PLC0415 - slow, so an interrupt may come meanwhile
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    try:
        run()
    finally:
        gc.freeze()  # else Python would examine all objects once more before its end


def _has_said_version() -> bool:
    """Write the version, and return whether stdout took it; if not, the whole command line reports why."""
    try:
        sys.stdout.write(f"jobledger {VERSION}{commit_words()}\n")
        sys.stdout.flush()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
