"""Messages between any process and its parent, and the frames that carry them.

A frame is a length of four bytes, big-endian, and that many bytes of JSON: one message. No pickle: a process whose work
went wrong can send a false message, but cannot make its parent run anything. Each kind of process adds messages of its
own. Knows neither processes nor event loops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

HEADER_BYTES: Final = 4
#: The largest frame of processes that pass no values.
FRAME_BYTES_MAX: Final = 1 << 20
_LOG_TEXT_MAX: Final = 8_000
_LOGGER_NAME_MAX: Final = 200
_encoder: Final = msgspec.json.Encoder()

Message = TypeVar("Message")


# From the process.


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready", omit_defaults=True):
    """The process has begun its work."""

    facts: dict[str, str] = {}  #: facts for its parent, such as an address


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag="fault"):
    """The process cannot begin, or cannot go on, and ends."""

    sentence: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The event loop of the process runs."""


class Identity(msgspec.Struct, frozen=True, kw_only=True, tag="identity"):
    """The process takes a lease under this name from now on."""

    name: str


class LogLine(msgspec.Struct, frozen=True, kw_only=True, tag="log", omit_defaults=True):
    """A log record: its text as formatted, none of its arguments."""

    logger: str
    level: int
    text: str
    of_call: int = 0  #: number of the call whose code made it; 0: none is known
    printed: bool = False  #: True: a task printed the text

    @classmethod
    def of(cls, logger: str, level: int, text: str, *, of_call: int = 0, printed: bool = False) -> LogLine:
        """Make a line that fits into a frame, whatever the text holds."""
        return cls(
            logger=_sendable(logger, _LOGGER_NAME_MAX),
            level=level,
            text=_sendable(text, _LOG_TEXT_MAX),
            of_call=of_call,
            printed=printed,
        )

    def tell(self, extra: dict[str, Any] | None = None) -> None:
        """Log it in this process."""
        logging.getLogger(self.logger).log(self.level, "%s", self.text, extra=extra)


# From the parent.


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop", omit_defaults=True):
    """End in good order; what runs may finish unless it is `at_once`."""

    at_once: bool = False


class Relay(logging.Handler):
    """A log handler that hands every record to the parent, which decides where it goes."""

    def __init__(self, send: Callable[[LogLine], None], call_number: Callable[[], int] = lambda: 0) -> None:
        """`call_number` returns the number of the call whose code logs; 0: none is known."""
        super().__init__()
        self._send = send
        self._call_number = call_number

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        try:
            text = self.format(record)
            self._send(LogLine.of(record.name, record.levelno, text, of_call=self._call_number()))
        except Exception:  # noqa: BLE001 - logging's own rule: a record that cannot be shown harms nobody
            self.handleError(record)


class BrokenFrameError(Exception):
    """The other side sent bytes that are no message, or too many."""


def to_frame(message: msgspec.Struct) -> bytes:
    """Return header and body."""
    body = _encoder.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def body_bytes(header: bytes, limit: int) -> int:
    """Return the length that a header names.

    Raises: BrokenFrameError above the limit.
    """
    length = int.from_bytes(header, "big")
    if length > limit:
        raise BrokenFrameError(f"it announced a frame of {length:,} bytes, and the limit is {limit:,}")
    return length


def read_body(body: bytes, decoder: msgspec.json.Decoder[Message]) -> Message:
    """Return the message in a frame's body.

    Raises: BrokenFrameError.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BrokenFrameError(f"it sent a frame that is no message: {error}") from error


def _sendable(text: str, length_max: int) -> str:
    return text[:length_max].encode("utf-8", "replace").decode()
