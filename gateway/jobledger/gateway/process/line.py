"""What a gateway and its child processes say to each other: JSON, one message a line, over a socket.

When the line ends, the other side is gone. A child then ends, and removes what it made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator
from typing import Any, Final, Literal, TypeVar

import msgspec

from jobledger.admin.objects.move_outcome import MoveOutcome

_LINE_BYTES_MAX: Final = 1 << 20
_encode: Final = msgspec.json.Encoder().encode


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """The first message to a child: what it works on."""

    connection: dict[str, Any]  #: settings of `connect`
    projection: str  #: the file
    log_level: int  #: of the loggers of jobledger
    allow_targets: tuple[str, ...] = ()  #: networks that deliveries may go to, beside the public internet
    key_file: str = ""  #: what unseals secrets; "": nothing does


class Want(msgspec.Struct, frozen=True, kw_only=True, tag="want"):
    """Make the rows as of a past moment."""

    stream_sequence: int


class GiveBack(msgspec.Struct, frozen=True, kw_only=True, tag="give_back"):
    """A file that was lent is not read any more."""

    path: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The child has connected, and its file is there."""


class Looked(msgspec.Struct, frozen=True, kw_only=True, tag="looked"):
    """The keeper has looked once: what it moved, and what kept it from more."""

    moved: MoveOutcome


class Lent(msgspec.Struct, frozen=True, kw_only=True, tag="lent"):
    """The rows of a past moment are in a file, until it is given back."""

    stream_sequence: int
    path: str


class NotLent(msgspec.Struct, frozen=True, kw_only=True, tag="not_lent"):
    """They could not be made."""

    stream_sequence: int
    sentence: str
    reason: Literal["server", "rows"]  #: who is to blame: a server that does not answer, or what is stored


class Logged(msgspec.Struct, frozen=True, kw_only=True, tag="logged"):
    """A line of the child's log."""

    logger: str
    level: int
    text: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The child ends, and why."""

    sentence: str


ToChild = Setup | Want | GiveBack
FromChild = Ready | Looked | Lent | NotLent | Logged | Failed
Message = TypeVar("Message")
TO_CHILD: Final[msgspec.json.Decoder[ToChild]] = msgspec.json.Decoder(ToChild)
FROM_CHILD: Final[msgspec.json.Decoder[FromChild]] = msgspec.json.Decoder(FromChild)


class Line:
    """One end of the line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Line:
        """Take one end of a socket pair."""
        return cls(*await asyncio.open_connection(sock=end, limit=_LINE_BYTES_MAX))

    def send(self, message: ToChild | FromChild) -> None:
        """Send a message, unless the other side is gone."""
        if not self._writer.is_closing():
            self._writer.write(_encode(message) + b"\n")

    async def messages(self, decoder: msgspec.json.Decoder[Message]) -> AsyncGenerator[Message, None]:
        """Yield what comes until the other side is gone."""
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                yield decoder.decode(line)

    async def close(self) -> None:
        """Send what is left, and hang up."""
        with contextlib.suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()


_TEXT_MAX: Final = 8_000
_NAME_MAX: Final = 200


class Relay(logging.Handler):
    """Hands a child's log lines to the gateway, which decides where they go."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        try:
            text = self.format(record)[:_TEXT_MAX].encode("utf-8", "replace").decode()
            self._line.send(Logged(logger=record.name[:_NAME_MAX], level=record.levelno, text=text))
        except Exception:  # noqa: BLE001 - logging's own rule: a record that cannot be shown harms nobody
            self.handleError(record)
