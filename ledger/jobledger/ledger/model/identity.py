"""Who a process is: a name that no other process has had."""

from __future__ import annotations

import os
import re
import secrets
import socket
from typing import Final

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_HOST_LENGTH_MAX: Final = 32


_IDENTITY: Final = re.compile(r".*-\d+-[0-9a-f]{8}")


def is_identity(name: str) -> bool:
    """Return whether a name has the form of a process's identity, so that it names no person."""
    return _IDENTITY.fullmatch(name) is not None


def new_identity(user: str = "") -> str:
    """Return a name for this process that no other has had: `<host>-<pid>-<random>`, fit for a subject.

    With the `user` of the server that it connects as, `<user>.<host>-<pid>-<random>`: two words of a subject.
    """
    host = _UNSAFE.sub("-", socket.gethostname())[:_HOST_LENGTH_MAX] or "host"
    return f"{user}{'.' if user else ''}{host}-{os.getpid()}-{secrets.token_hex(4)}"
