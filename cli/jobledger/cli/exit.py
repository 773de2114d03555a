"""The end of a process that cannot wait for a task's code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def exit_at_once(code: int) -> NoReturn:
    """End the process without waiting for a task's code, once logs and output are written."""
    import logging  # noqa: PLC0415 - `--help` logs nothing

    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
