"""Who a process is: a name that no other process has had."""

from __future__ import annotations

import os
import re
import secrets
import socket
from typing import Final

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_HOST_LENGTH_MAX: Final = 32


def new_identity() -> str:
    """Return a name for this process that no other has had: `<host>-<pid>-<random>`, fit for a subject."""
    host = _UNSAFE.sub("-", socket.gethostname())[:_HOST_LENGTH_MAX] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
