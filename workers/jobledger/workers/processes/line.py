"""One end of the line between a process and its parent, on an event loop.

When the line ends, the other side is gone. A parent asks its processes to stop by messages, not by signals: a process
manager signals every process of a service, and a signal of the parent would then look like a second one, which ends the
grace.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import AsyncGenerator
from typing import Final, Generic

import msgspec

from jobledger.workers.processes.messages import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    Message,
    Relay,
    body_bytes,
    read_body,
    to_frame,
)

#: Bytes that may wait to be sent; above it the other side does not read, and an offered message is dropped.
_UNSENT_BYTES_MAX: Final = 1 << 20


class Line(Generic[Message]):
    """One end of the line; `Message` is the type of messages that come in."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        decoder: msgspec.json.Decoder[Message],
        frame_bytes_max: int,
    ) -> None:
        self._reader, self._writer = streams
        self._decoder = decoder
        self._frame_bytes_max = frame_bytes_max
        self._coming: int | None = None  #: bytes of the message whose header was read
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.heard_at = self._loop.time()  #: when a message last came

    @classmethod
    async def over(
        cls,
        end: socket.socket,
        decoder: msgspec.json.Decoder[Message],
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> Line[Message]:
        """Take one end of a socket pair; it is closed if that fails, or is cancelled."""
        try:
            return cls(await asyncio.open_unix_connection(sock=end), decoder, frame_bytes_max)
        except BaseException:
            end.close()
            raise

    @property
    def ended(self) -> bool:
        """Whether the other side has hung up, and all that it said was received."""
        return self._reader.at_eof()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, unless the other side is gone."""
        if not self._writer.is_closing():
            self._writer.write(to_frame(message))

    def offer(self, message: msgspec.Struct) -> None:
        """Send a message from any thread, unless the other side is gone or has not read for a long time."""
        if threading.get_ident() != self._thread:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.offer, message)
        elif self._writer.transport.get_write_buffer_size() < _UNSENT_BYTES_MAX:
            self.send(message)

    async def flush(self) -> None:
        """Wait until the other side has read most of what was sent. Raises: ConnectionError."""
        await self._writer.drain()

    async def receive(self) -> Message:
        """Return the next message. A call that is cancelled loses no message: the next call returns it.

        Raises: BrokenFrameError; ConnectionError when there will be none.
        """
        try:
            if self._coming is None:
                header = await self._reader.readexactly(HEADER_BYTES)
                self._coming = body_bytes(header, self._frame_bytes_max)
            body = await self._reader.readexactly(self._coming)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError(errno.ECONNRESET, "the other side has ended") from error
        self._coming = None
        self.heard_at = self._loop.time()
        return read_body(body, self._decoder)

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Yield what comes until the other side is gone. Raises: BrokenFrameError."""
        with contextlib.suppress(ConnectionError):
            while True:
                yield await self.receive()

    def hang_up(self) -> None:
        """Send what is left, and tell the other side that nothing follows; its messages are still received."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()

    async def close(self) -> None:
        """Send what is left, and end."""
        with contextlib.suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()

    def abort(self) -> None:
        """End at once."""
        self._writer.transport.abort()

    def relay(self) -> Relay:
        """Return a log handler that hands every record to the other side."""
        return Relay(self.offer)
