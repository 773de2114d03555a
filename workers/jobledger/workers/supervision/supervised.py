"""A worker process's connection to its supervisor: an inherited socket that carries words, one in each line.

The worker sends `identity NAME` before it does anything under NAME, `ready`, and `beat` while its event loop runs. The
supervisor sends `stop` and `now`; when the line ends, the supervisor is gone. The line carries what signals could not:
a process manager sends a signal to every process of a service, and the supervisor's own stop would then look like a
second one, which ends the grace.
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
    """A socket that is read and written one line at a time, without ever waiting."""

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
        """Return the lines that have come since the last call."""
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
        """Open the line; `words` is `NAME:DESCRIPTOR`, as the supervisor put it on the command line.

        Raises: ConfigurationError, InvalidTokenError.
        """
        name, _, number = words.rpartition(":")
        self.identity = check_token("supervisor", name)  #: who it is, for `WorkerConfig.supervisor`
        try:
            line = socket.socket(fileno=int(number))
        except (ValueError, OSError) as error:
            message = f"{words!r} names no connection to a supervisor: only a supervisor can give one"
            raise ConfigurationError(message) from error
        line.set_inheritable(False)  # a task's own child processes must not keep the line open
        self._lines = Lines(line)

    def announce(self, identity: str) -> None:
        """Tell the supervisor an identity, so that it can end that lease once this process is gone."""
        self._lines.send(f"{IDENTITY} {identity}")

    def ready(self) -> None:
        """Tell the supervisor that this process takes work now."""
        self._lines.send(READY)

    async def watch(self, on_stop: Callable[[], None], on_now: Callable[[], None]) -> None:
        """Call `on_stop` and `on_now` when the supervisor asks, and `on_stop` once it is gone; return after that.

        Meanwhile tell it that the event loop runs: it kills a process whose loop a task blocks for ever.
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
