"""Ports for programs that are told one before they listen on it, or that leave it for a while."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

#: Below those that the system hands out: it never gives one of these to another program.
_FIRST, _LAST = 20_000, 32_000
#: A byte of this file for each port: a process of the tests locks those that it was given, until it ends.
_GIVEN = Path(tempfile.gettempdir()) / f"jobledger-test-ports-{os.getuid()}"
_file: int | None = None
_ours: set[int] = set()


def kept_ports(count: int = 1) -> range:
    """Return free ports, one after the other, that nobody else is given while this process lives."""
    while True:
        first = random.SystemRandom().randrange(
            _FIRST, _LAST - count
        )  # no seed: two processes would choose the same
        ports = range(first, first + count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            _take(ports)
            return ports


def _take(ports: range) -> None:
    """Lock ports against other processes of the tests. Raises: OSError for one that was given already."""
    global _file  # noqa: PLW0603 - the locks end when the file is closed
    if _file is None:
        _file = os.open(_GIVEN, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _ours.isdisjoint(ports):
        raise OSError("a port of these was given here")
    fcntl.lockf(_file, fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
    _ours.update(ports)


def kept_port() -> int:
    """Return one such port."""
    return kept_ports()[0]
