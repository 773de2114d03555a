"""HTTP/1.1 of uvicorn with further limits: on heads, on discarded bytes, and on slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jobledger.gateway.problems import ProblemError
from jobledger.gateway.process.bodies import WHOLE

#: Request line and headers together; what a browser or proxy sends is below 16 KiB.
HEAD_BYTES_MAX: Final = 64 << 10
_AROUND_HEADER: Final = len(":\r\n")
#: Bytes that the parser gets at once; few, since it does not report where in them a head began or ended.
_PART_BYTES_MAX: Final = 16 << 10
#: The time limit from a connection, or from the first byte of a later request on it, to the end of the headers.
HEAD_S: Final = 10.0
#: How long a reader may take nothing of a waiting answer.
READER_S: Final = 30.0
#: How long a client's bytes are discarded after a refusal: on a close at once, it might not read the reason.
LINGER_S: Final = 2.0
#: Bytes of a body that are discarded after its answer.
_LEFT_OVER_BYTES_MAX: Final = 1 << 20
_INFORMATIONAL: Final = b"HTTP/1.1 1"  #: beginning of a response before the answer, as 100 Continue


#: A function that counts a connection from an address, and returns a function that counts it as closed. Raises:
#: ProblemError (SHARE_USED, BUSY).
Take = Callable[[str], Callable[[], None]]


class _Together:
    """Stands between uvicorn and the transport: sends the head of an answer with the first part of its body, at once.

    That saves a system call. ASGI asks for the same: a server should send no head before it has a part of the body.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._has_begun = False
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Send bytes, or keep the head of an answer until the first part of its body comes."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(
                head + data
            )  # as one: in uvloop a second write takes 5 us more than joining them
        elif self._has_begun or data.startswith(_INFORMATIONAL):
            self._transport.write(data)
        else:
            self._head, self._has_begun = data, True

    def end(self) -> None:
        """End an answer: the next bytes are the head of another one."""
        if self._head:  # it had no body
            self._transport.write(self._head)
        self._head, self._has_begun = b"", False

    def close(self) -> None:
        """Send what is kept, and close."""
        self.end()
        self._transport.close()


class _Trailers(list[tuple[bytes, bytes]]):
    """A list that drops headers behind a body: proxies check only those before it, so these must not count."""

    def append(self, _header: tuple[bytes, bytes]) -> None:
        """Drop a header."""


_TRAILERS: Final = _Trailers()


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, take: Take, *given: Any, **named: Any) -> None:
        """`take` counts a connection from an address; the rest is what uvicorn gives."""
        super().__init__(*given, **named)
        self._take = take
        self._give_back: Callable[[], None] | None = None  # None: the connection was refused
        self._in_body = False
        self._between = False  # True after a whole request, before the first byte of the next
        self._refused = False
        # A count of bytes: of this head; within a body, since its last part; after the answer, of the rest of the body.
        self._bytes = 0
        self._fed = 0  # bytes that the parser got at once
        self._head_max = 0  # upper bound of this head; it may include the end of the request before
        self._head_limit: asyncio.TimerHandle | None = None
        self._reader_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, but not for long."""
        super().connection_made(transport)
        self._together = _Together(transport)
        try:
            self._give_back = self._take(self.client[0] if self.client else "")
        except ProblemError as error:
            status = "429 Too Many Requests" if error.code == "SHARE_USED" else "503 Service Unavailable"
            self._refuse(status, str(error))
            self.transport.close()  # at once: otherwise refused connections would pile up
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_head()
        self._end_reader()
        if self._give_back is not None:
            self._give_back()
            self._give_back = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, within limits."""
        if len(data) > _PART_BYTES_MAX:  # the system hands over up to 256 KiB at once
            for at in range(0, len(data), _PART_BYTES_MAX):
                if self.transport.is_closing():
                    return
                self.data_received(data[at : at + _PART_BYTES_MAX])
            return
        if self._refused:
            return
        self._bytes += len(data)
        self._head_max += len(data)
        self._fed = len(data)
        self._between = False
        super().data_received(data)
        if self._between or self._refused:
            return  # the usual case: a whole request in one part
        if self._in_body and self.cycle.response_complete:
            if self._bytes > _LEFT_OVER_BYTES_MAX:
                self.transport.close()
        elif self._bytes > HEAD_BYTES_MAX:
            if self._in_body:
                self._refuse_head("what is around the body's chunks has")
            else:
                self._refuse_head()
        elif self._in_body:
            return
        elif self._head_limit is None:
            self._expect_head()

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin the request, unless its head is too long; one that ends in this part is checked only here."""
        if self._refused or (self._head_max > HEAD_BYTES_MAX and self._is_head_too_long()):
            self._refuse_head()
            return
        self._in_body, self._bytes, self._head_max = True, 0, 0
        if self._head_limit is not None:
            self._end_head()
        super().on_headers_complete()
        self.headers = _TRAILERS  # headers of the request itself are in its scope
        self.cycle.transport = self._together  # type: ignore[assignment]  # uvicorn calls no other method of it

    def _is_head_too_long(self) -> bool:
        """Return whether a head is too long, by the bytes before this part or by its parsed headers."""
        if self._bytes - self._fed >= HEAD_BYTES_MAX:
            return True  # the count includes blanks around values, which the parser drops
        lengths = (len(name) + len(value) + _AROUND_HEADER for name, value in self.headers)
        return len(self.url) + sum(lengths) > HEAD_BYTES_MAX

    def _refuse_head(self, what: str = "request line and headers have") -> None:
        sentence = f"{what} more than {HEAD_BYTES_MAX:,} bytes: send less"
        self._refuse("431 Request Header Fields Too Large", sentence)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._refused:
            return
        if not self.cycle.response_complete:
            self._bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """End the answer."""
        self._together.end()
        super().on_response_complete()

    def on_message_complete(self) -> None:
        """End the body."""
        if self._refused:
            return
        self._in_body, self._between, self._bytes, self._head_max = False, True, 0, self._fed
        self.scope[WHOLE] = True  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Cut off a reader who takes nothing for too long: its answer would be kept for ever."""
        super().pause_writing()
        self._reader_limit = self.loop.call_later(READER_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the reader has taken something."""
        super().resume_writing()
        self._end_reader()

    def _expect_head(self) -> None:
        sentence = f"the headers of the request did not come within {HEAD_S:g} s: send them at once"
        self._head_limit = self.loop.call_later(HEAD_S, self._refuse, "408 Request Timeout", sentence)

    def _end_head(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def _end_reader(self) -> None:
        if self._reader_limit is not None:
            self._reader_limit.cancel()
            self._reader_limit = None

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP; the parser's message would not help the client."""
        del msg
        self._refuse(
            "400 Bad Request", "this is no HTTP/1.1 request: see whether http and https are mixed up"
        )

    def _refuse(self, status: str, sentence: str) -> None:
        """Answer with one sentence, and close."""
        self._end_head()
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        body = f"{sentence}\n".encode()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
            "cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.loop.call_later(LINGER_S, self.transport.close)
