"""One subscription for all replies: each request gets a reply subject with its own token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from jobledger.ledger.model.errors import LedgerError, PermissionRefusedError, UnreachableError
from jobledger.ledger.nats.connection import Connection, ConnectionLostError

T = TypeVar("T")

#: Called with data and raw headers, or with an error and b"" when no answer will come.
ReplyHandler = Callable[[bytes | Exception, bytes], None]

_STATUS_AT: Final = len(b"NATS/1.0 ")


class ReplyTimeoutError(UnreachableError):
    """A request had no answer within its limit."""


class Inbox:
    """Passes replies to their requests; made once per connection, by `open`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._prefix = f"{connection.new_inbox()}."
        self._prefix_length = len(self._prefix)
        # By token: handler, subjects, once.
        self._waiting: dict[bytes, tuple[ReplyHandler, str | frozenset[str], bool]] = {}
        self._refused: PermissionRefusedError | None = None  # the refused right to receive answers
        self._count = 0

    async def open(self) -> None:
        """Subscribe."""
        await self.connection.listen(f"{self._prefix}*", self._on_message)
        self.connection.lost_listeners.append(self._on_lost)
        self.connection.refused_listeners.append(self._on_refused)

    def expect(self, subject: str | frozenset[str], handler: ReplyHandler, *, once: bool = False) -> str:
        """Return a reply subject; `handler` gets the messages there until `forget`, or with `once` only the first.

        `subject`: the subject of the request, so that a refused permission reaches this handler; several if its parts
        go to several.
        """
        self._count += 1
        token = str(self._count)
        self._waiting[token.encode()] = (handler, subject, once)
        return self._prefix + token

    def forget(self, reply: str) -> None:
        """Stop waiting; later answers are dropped."""
        self._waiting.pop(reply[self._prefix_length :].encode(), None)

    def _on_message(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes) -> None:
        token = subject[self._prefix_length :]
        waiting = self._waiting.get(token)
        if waiting is not None:
            handler, _, once = waiting
            if once:
                del self._waiting[token]
            handler(data, headers)

    def _on_lost(self) -> None:
        abandoned, self._waiting = self._waiting, {}
        for handler, _, _ in abandoned.values():
            handler(ConnectionLostError(), b"")

    def _on_refused(self, error: PermissionRefusedError) -> bool:
        subject = error.subject
        hears_nothing = error.verb == "subscribe" and subject == f"{self._prefix}*"
        if hears_nothing:
            self._refused = error
        refused = [
            token
            for token, (_, asked, _) in self._waiting.items()
            if hears_nothing or (subject == asked if isinstance(asked, str) else subject in asked)
        ]
        for token in refused:
            self._waiting.pop(token)[0](error, b"")
        return bool(refused)

    async def ask(self, subject: str, payload: object, *, timeout_s: float) -> tuple[bytes, bytes]:
        """Send one request as JSON and return the first answer's data and header block.

        Raises: ReplyTimeoutError, ConnectionLostError, PermissionRefusedError, NoRespondersError.
        """
        if self._refused is not None:
            raise self._refused
        answer: asyncio.Future[tuple[bytes, bytes]] = self.connection.loop.create_future()

        def on_reply(data: bytes | Exception, headers: bytes) -> None:
            if isinstance(data, Exception):
                resolve(answer, data)
            elif status_of(headers) == "503":
                resolve(answer, NoRespondersError(f"nobody answers {subject}"))
            else:
                resolve(answer, (data, headers))

        reply = self.expect(subject, on_reply)
        try:
            self.connection.send(subject, reply, b"", msgspec.json.encode(payload))
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            message = f"no answer to {subject} within {timeout_s:g} s"
            raise ReplyTimeoutError(message) from error
        finally:
            self.forget(reply)


class NoRespondersError(LedgerError):
    """Nobody listens on a request's subject: the stream, consumer or API is not there."""


def resolve(future: asyncio.Future[T], outcome: T | Exception) -> None:
    """Set a future's result or error, unless its waiter was cancelled meanwhile."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def status_of(headers: bytes) -> str:
    """Return the inline status of a header block, such as "404"; "" for an ordinary message."""
    return headers[_STATUS_AT : _STATUS_AT + 3].decode() if headers[8:9] == b" " else ""


def header(headers: bytes, name: bytes) -> bytes:
    """Return one header's value, b"" without that header.

    If it occurs twice, the last one: the server adds its own headers after those of the publisher.
    """
    at = headers.rfind(b"\r\n" + name + b": ")
    if at < 0:
        return b""
    start = at + len(name) + 4
    return headers[start : headers.index(b"\r\n", start)]
