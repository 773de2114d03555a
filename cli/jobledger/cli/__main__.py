"""The entry of `jobledger` and of `python -m jobledger.cli`: an interrupt ends it quietly, also while it loads.

It imports next to nothing, so that it can say the version before it loads the command line, which takes longer than
Python itself.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

from jobledger.cli.streams import prepare
from jobledger.ledger.model.version import VERSION

_INTERRUPTED: Final = 130  # as in jobledger.cli.errors, which may not be imported yet


def main() -> None:
    """Run the command line; see `jobledger.cli.main`."""
    # A start makes hundreds of thousands of objects that stay: the collector would look through all of them again and
    # again. `session.run` and `command` turn it on for what runs longer.
    gc.disable()
    prepare()
    if sys.argv[1:] == ["--version"] and _has_said_version():
        return
    try:
        from jobledger.cli.main import main as run  # noqa: PLC0415 - slow, so it may be interrupted
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    try:
        run()
    finally:
        gc.freeze()  # or Python looks through all of them once more, before it ends and they go anyway


def _has_said_version() -> bool:
    """Write the version, and return whether stdout took it; if not, the whole command line reports why."""
    try:
        sys.stdout.write(f"jobledger {VERSION}\n")
        sys.stdout.flush()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
