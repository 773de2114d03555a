"""Where the command `jobledger` begins, and `python -m jobledger.cli`: an interrupt ends it quietly, also while it loads."""

from __future__ import annotations

import sys
from typing import Final

from jobledger.cli.streams import prepare

_INTERRUPTED: Final = 130  # as jobledger.cli.errors has it, which may not have been imported yet


def main() -> None:
    """Run the command line; see `jobledger.cli.main`."""
    prepare()
    try:
        from jobledger.cli.main import main as run  # noqa: PLC0415 - what takes time is what may be interrupted
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
