"""Ports for programs that are told one before they listen on it, or that leave it for a while."""

from __future__ import annotations

import contextlib
import random
import socket

#: Below those that the system hands out: it never gives one of these to another program.
_FIRST, _LAST = 20_000, 32_000


def kept_ports(count: int = 1) -> range:
    """Return free ports, one after the other, that no other program is given while nobody listens on them."""
    while True:
        first = random.SystemRandom().randrange(
            _FIRST, _LAST - count
        )  # no seed: two processes would choose the same
        ports = range(first, first + count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports


def kept_port() -> int:
    """Return one such port."""
    return kept_ports()[0]
