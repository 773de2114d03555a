"""nats-py's TCP transport with a limit for every wait: a peer that is frozen, or breaks off TLS, blocks nobody.

Received bytes go to a taker first, in the socket's own callback; only the rest waits for nats-py's reader.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, SupportsIndex
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport

#: At a close: time limit for sending the bytes that were written last.
_FAREWELL_S: Final = 0.5


class _Reader(asyncio.StreamReader):
    """The received bytes that the taker left, for the reader that waits for them."""

    def __init__(self, limit: int, take: Callable[[bytes], bytes]) -> None:
        super().__init__(limit)
        self._take = take
        self._unread = 0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        came = bytes(data)
        rest = came if self._unread else self._take(came)  # new bytes must not overtake unread ones
        if rest:
            self._unread += len(rest)
            super().feed_data(rest)

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self._unread -= len(data)
        return data

    async def readline(self) -> bytes:
        line = await super().readline()
        self._unread -= len(line)
        return line


class _TlsProtocol(asyncio.StreamReaderProtocol):
    """Closes when the peer closes. The protocol for plain TCP would stay half open, of which asyncio warns in the log."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


class Transport(TcpTransport):
    """One connection's bytes."""

    def __init__(self, take: Callable[[bytes], bytes] = bytes) -> None:
        """`take` gets the received bytes, and returns the rest for nats-py's reader; it must not raise."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._take = take
        self._aborted = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """Connect as nats-py does, with a reader of our own."""
        loop = asyncio.get_running_loop()
        reader = _Reader(buffer_size, self._take)
        protocol = asyncio.StreamReaderProtocol(reader)
        address: tuple[Any, Any] = uri.hostname, uri.port
        async with asyncio.timeout(connect_timeout):
            transport, _ = await loop.create_connection(lambda: protocol, *address)
        self._bare_io_reader = self._io_reader = reader
        # The first writer is kept: after a change to TLS nothing else refers to the socket below.
        self._bare_io_writer = self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: float
    ) -> None:
        """Shake hands; after a failure the connection is gone, and nobody is notified of its end."""
        assert self._io_writer is not None, "there is a connection already"
        loop = asyncio.get_running_loop()
        reader = _Reader(buffer_size, self._take)
        protocol = _TlsProtocol(reader)
        host = uri if isinstance(uri, str) else uri.hostname
        try:
            async with asyncio.timeout(connect_timeout):
                transport = await loop.start_tls(
                    self._io_writer.transport, protocol, ssl_context, server_hostname=host
                )
        except BaseException:  # also when cancelled: a half-done handshake leaves no usable connection
            self.abort()
            raise
        assert transport is not None, "a handshake that did not fail"
        self._io_reader = reader
        self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    @property
    def unsent_bytes(self) -> int:
        """The number of written bytes that the socket has not taken yet."""
        return 0 if self._io_writer is None else self._io_writer.transport.get_write_buffer_size()

    async def readline(self) -> bytes:
        """Return a line of the handshake.

        Raises: ConnectionResetError if the server closed instead of answering.
        """
        line: bytes = await super().readline()  # type: ignore[no-untyped-call]
        if not line:
            raise ConnectionResetError("the server closed the connection")
        return line

    async def wait_closed(self) -> None:
        """Wait until the written bytes were sent, or for a short limit."""
        if self._aborted:
            return
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await super().wait_closed()  # type: ignore[no-untyped-call]
        finally:
            self.abort()

    def abort(self) -> None:
        """Close at once; bytes that were not sent are dropped."""
        self._aborted = True
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()
