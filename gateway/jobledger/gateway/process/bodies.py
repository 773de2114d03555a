"""The body of one request, with limits on its size, its time, and the bytes discarded after a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from jobledger.gateway.http.endpoint import NDJSON
from jobledger.gateway.http.head import added_headers, headers_of
from jobledger.gateway.problems import ProblemError, broken_off

#: The total wait for a body; a body that takes longer must come at least this fast.
BODY_S: Final = 30.0
BODY_BYTES_PER_S_MIN: Final = 100_000
#: How long the rest of a body is discarded after its answer: on a close at once, a client would not read the answer.
_LINGER_S: Final = 1.0
#: Key in the scope of a request whose whole body is in memory, so that no read waits.
WHOLE: Final = "jobledger.whole"


def body_of(scope: Scope, receive: Receive, send: Send, bytes_max: int) -> Body | None:
    """Return the `Body` that limits a request; None without a body, or if all of it has come and is not too large."""
    headers = headers_of(scope)
    length = headers.get("content-length", "")
    if WHOLE in scope and length.isdecimal() and int(length) <= bytes_max:
        return None
    is_sent = length or "transfer-encoding" in headers
    return Body(scope, receive, send, bytes_max) if is_sent else None


class Body:
    """Stands between an application and the body of its request; use its `receive` and its `send`.

    A body that is read line by line (NDJSON) may have any size: its reader takes lines no faster than they are stored.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, bytes_max: int) -> None:
        self._receive = receive
        self._send = send
        self._more = True
        self._bytes = 0
        self._waited_s = 0.0
        self._scope = scope
        headers = headers_of(scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._bytes_max = None if kind == NDJSON else bytes_max  # lines are read one by one
        self._length = headers.get("content-length", "")

    def check_length(self) -> None:
        """Refuse a body whose Content-Length is too large. Raises: ProblemError (PAYLOAD_TOO_LARGE)."""
        if self._length.isdecimal():
            self._check(int(self._length))

    async def receive(self) -> Message:
        """Return the next part. Raises: ProblemError, also for a body that breaks off."""
        if not self._more:
            return await self._receive()
        message = await (self._receive() if WHOLE in self._scope else self._waited_for())
        if message["type"] == "http.disconnect":
            self._more = False
            raise broken_off()
        self._bytes += len(message.get("body", b""))
        self._more = message.get("more_body", False)
        self._check(self._bytes)
        if self._more and self._waited_s > self._allowed_s:
            raise self._too_slow()
        return message

    async def _waited_for(self) -> Message:
        """Wait for the next part, and return it. Raises: ProblemError (BODY_TOO_SLOW)."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._allowed_s - self._waited_s):
                return await self._receive()
        except TimeoutError as error:
            raise self._too_slow() from error
        finally:
            self._waited_s += time.monotonic() - began

    @property
    def _allowed_s(self) -> float:
        return max(BODY_S, self._bytes / BODY_BYTES_PER_S_MIN)

    def _too_slow(self) -> ProblemError:
        return ProblemError(
            "BODY_TOO_SLOW",
            f"{self._bytes:,} bytes of the body came in {self._waited_s:,.0f} s: send all within {BODY_S:g} s, "
            f"or {BODY_BYTES_PER_S_MIN:,} bytes in each second",
        )

    async def send(self, message: Message) -> None:
        """Send a part of the answer; an answer before the end of the body ends the connection."""
        follows = self._more and WHOLE not in self._scope
        if follows and message["type"] == "http.response.start":
            added_headers(self._scope).append((b"connection", b"close"))
        elif follows and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._throw_away()
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _throw_away(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while self._more:
                    message = await self._receive()
                    self._more = message["type"] == "http.request" and message.get("more_body", False)

    def _check(self, size_bytes: int) -> None:
        if self._bytes_max is not None and size_bytes > self._bytes_max:
            sentence = f"the body has more than {self._bytes_max:,} bytes: store what is large elsewhere and pass a reference"
            raise ProblemError("PAYLOAD_TOO_LARGE", sentence)
