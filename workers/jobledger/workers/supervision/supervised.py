"""A worker process's end of the line to its supervisor: a socket that it inherited, words with a newline each.

Up: `identity NAME` before anything is done under NAME, `ready`, and `beat` while the event loop turns. Down: `stop`
and `now`. The line's end means that the supervisor is gone. Signals are no part of it: a process manager
sends them to every process of a service, and the stop that is then also passed on by the supervisor must not
look like a second one, which ends the grace.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Final

import anyio

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.model.subjects import check_token

STOP: Final = "stop"
NOW: Final = "now"
READY: Final = "ready"
IDENTITY: Final = "identity"
BEAT: Final = "beat"
BEAT_S: Final = 1.0
_READ_BYTES: Final = 4096


class Lines:
    """A socket read and written a line at a time, never waiting."""

    def __init__(self, line: socket.socket) -> None:
        line.settimeout(0.0)
        self.socket = line
        self.ended = False  #: nobody holds the other end any more
        self._rest = b""

    def send(self, text: str) -> None:
        """Send one line, unless the other end is gone or has not read for a long time."""
        with contextlib.suppress(OSError):
            self.socket.send(f"{text}\n".encode())

    def read(self) -> list[str]:
        """Return the lines that have come since."""
        found: list[str] = []
        while not self.ended:
            try:
                data = self.socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.ended = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            found += [line.decode(errors="replace") for line in lines]
        return found


class Parent:
    """The supervisor, as its child sees it."""

    def __init__(self, words: str) -> None:
        """Take up the line; `words` is `NAME:DESCRIPTOR`, as the supervisor put it on the command line.

        Raises: ConfigurationError, InvalidTokenError.
        """
        name, _, number = words.rpartition(":")
        self.identity = check_token("supervisor", name)  #: who it is, for `WorkerConfig.supervisor`
        try:
            line = socket.socket(fileno=int(number))
        except (ValueError, OSError) as error:
            message = f"{words!r} names no line to a supervisor: only a supervisor can give one"
            raise ConfigurationError(message) from error
        line.set_inheritable(False)  # a task's own child processes must not keep the line open
        self._lines = Lines(line)

    def announce(self, identity: str) -> None:
        """Tell an identity, so that its lease can be ended when this process is gone."""
        self._lines.send(f"{IDENTITY} {identity}")

    def ready(self) -> None:
        """Tell that work is taken now."""
        self._lines.send(READY)

    async def watch(self, on_stop: Callable[[], None], on_now: Callable[[], None]) -> None:
        """Pass on what the supervisor asks for, and its own end as `on_stop`; return after that.

        Says meanwhile that the event loop turns: a process whose loop a task blocks for ever is of no use.
        """
        while not self._lines.ended:
            self._lines.send(BEAT)
            with anyio.move_on_after(BEAT_S):
                await anyio.wait_readable(self._lines.socket)
            for word in self._lines.read():
                if word == STOP:
                    on_stop()
                elif word == NOW:
                    on_now()
        on_stop()
