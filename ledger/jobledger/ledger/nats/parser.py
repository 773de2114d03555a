"""A parser of the server's data for subscriptions of our own, faster than nats-py's.

It takes only whole messages for a handler registered by `listen`; everything else (other verbs, other subscriptions,
long or malformed messages) goes to nats-py's parser, byte for byte. Source: ADR 004.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec
from nats.protocol.parser import AWAITING_CONTROL_LINE, ERR_RE, MAX_CONTROL_LINE_SIZE, Parser

#: Called in the reader's task with subject, reply, data and raw headers: must be quick and must not raise.
Handler = Callable[[bytes, bytes, bytes, bytes], None]

#: Most bytes kept of an incomplete message until the rest comes; nats-py's parser collects longer ones.
_KEPT_BYTES_MAX: Final = 128 * 1024
_CRLF_BYTES: Final = 2
_CARRIAGE_RETURN: Final = 13  #: before each line feed: lines are looked for by that alone, in half the time
_PLAIN_WORDS: Final = (4, 5)  # MSG, subject, sid, [reply], size
_HEADED_WORDS: Final = (5, 6)  # HMSG, subject, sid, [reply], header size, size


class Raw(msgspec.Struct, gc=False):
    """A message in the form for a `Collector`."""

    subject: bytes
    reply: bytes
    data: bytes
    wire_bytes: int  #: as the server counts it: of subject, reply, headers and data


class Collector:
    """A handler for many messages: those that ask for a reply are put into `messages`, without a call for each.

    The reader takes the list, and puts an empty one in its place. Messages without a reply subject, such as
    the server's own, are passed by a call, after the messages sent before them.
    """

    def __init__(self) -> None:
        self.messages: list[Raw] = []

    def arrived(self) -> None:
        """Note that there is a first message; called from the reader, so must be quick and must not raise."""

    def heard(self, subject: bytes, data: bytes, headers: bytes) -> None:
        """Take a message without a reply subject; called like `arrived`."""

    def __call__(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Take any message, like other handlers."""
        if not reply:
            self.heard(subject, data, headers)
            return
        if not self.messages:
            self.arrived()
        size = len(subject) + len(reply) + len(headers) + len(data)
        self.messages.append(Raw(subject, reply, data, size))


class Receiver(Protocol):
    """The receiver of whole messages; it is also nats-py's client, which gets all the rest from its parser."""

    def on_failure(self, subject: bytes, error: Exception) -> None:
        """Take the error of a message's handler; must not raise itself."""
        ...


class MessageParser(Parser):
    """nats-py's parser with a shortcut for whole messages.

    `handlers`: by subscription id as on the wire; no copy, since it is read for every message.
    `collectors`: those of them that are collectors.
    """

    def __init__(
        self,
        receiver: Receiver,
        handlers: Mapping[bytes, Handler],
        collectors: Mapping[bytes, Collector] | None = None,
    ) -> None:
        self._resets = 0
        super().__init__(receiver)  # this calls `reset`
        self._receiver = receiver
        self._handlers = handlers
        self._collectors: Mapping[bytes, Collector] = {} if collectors is None else collectors
        self._kept = b""
        self._heard = False
        self._is_parsing = False

    def heard(self) -> bool:
        """Return whether anything came since the last call."""
        heard, self._heard = self._heard, False
        return heard

    def error_line(self) -> str:
        """Return the server's exact words of the error that nats-py's parser is passing on in lower case."""
        found = ERR_RE.match(self.buf)
        return "" if found is None else found[0].decode(errors="replace")

    def reset(self) -> None:
        """Begin again, as after a reconnect."""
        super().reset()
        self._kept = b""
        self._resets += 1

    def take(self, data: bytes) -> bytes:
        """Pass on, straight from the socket, the whole messages that `data` begins with; return the rest, for `parse`.

        To be called only while nothing waits to be parsed: messages are handed on in the order of the wire.
        """
        if self._is_parsing or self.buf or self.state != AWAITING_CONTROL_LINE:
            return data
        self._heard = True
        if self._kept:
            data, self._kept = self._kept + data, b""
        data = data[self._take(data) :]
        if data and _may_be_ours(data) and len(data) < _KEPT_BYTES_MAX and self._needs_more(data):
            self._kept = data
            return b""
        return data

    async def parse(self, data: bytes = b"") -> None:
        """Pass on every whole message in the kept bytes and `data`."""
        self._is_parsing = True  # the loop may run meanwhile: new data must not overtake the rest
        try:
            await self._parse(data)
        finally:
            self._is_parsing = False

    async def _parse(self, data: bytes) -> None:
        """Do the work of `parse`.

        nats-py's parser gets one line, or the rest of one message, at a time. If it got all the following data, it
        would begin a message of ours, and then parse everything as long as each read ends within a message.
        """
        self._heard = True
        resets = self._resets
        data, self._kept = self._kept + data, b""
        while data and resets == self._resets:  # after a reset, the rest belongs to a lost connection
            if self.state != AWAITING_CONTROL_LINE:
                missing = self.needed + _CRLF_BYTES - len(self.buf)
                part, data = data[:missing], data[missing:]
                await super().parse(part)
                continue
            if self.buf:  # the beginning of a line
                data = bytes(self.buf) + data
                self.buf.clear()
            data = data[self._take(data) :]
            if _may_be_ours(data) and len(data) < _KEPT_BYTES_MAX and self._needs_more(data):
                self._kept = data
                return
            line_end = data.find(b"\r\n") + _CRLF_BYTES
            line, data = (data[:line_end], data[line_end:]) if line_end >= _CRLF_BYTES else (data, b"")
            await super().parse(line)
            if self.buf and self.state == AWAITING_CONTROL_LINE:  # half a line, or a long unknown one
                await super().parse(data)
                return

    def _take(self, data: bytes) -> int:  # one loop, since every message pays for a call
        """Pass on messages from the front while they are whole and ours; return the number of bytes used."""
        done, length = 0, len(data)
        find, handlers, collectors = data.find, self._handlers, self._collectors
        while (line_end := find(b"\n", done)) > 0 and data[line_end - 1] == _CARRIAGE_RETURN:
            # Only at spaces, as the server writes it: a subject may have other white space in it.
            words = data[done : line_end - 1].split(b" ")
            count = len(words)
            start = body = line_end + 1
            if count == 4 and words[0] == b"MSG":  # noqa: PLR2004 - as most answers
                _, subject, number, size = words
                reply = headers = b""
            elif count == 6 and words[0] == b"HMSG" and words[4].isdigit():  # noqa: PLR2004 - as events from a consumer
                _, subject, number, reply, ahead, size = words
                body += int(ahead)
                headers = data[start:body]
            elif count == 5 and words[0] == b"MSG":  # noqa: PLR2004 - with a reply
                _, subject, number, reply, size = words
                headers = b""
            elif count == 5 and words[0] == b"HMSG" and words[3].isdigit():  # noqa: PLR2004 - without one
                (_, subject, number, ahead, size), reply = words, b""
                body += int(ahead)
                headers = data[start:body]
            else:
                break
            handler = handlers.get(number)
            if handler is None or not size.isdigit():
                break
            end = start + int(size)
            if end + 2 > length:
                break
            done = end + 2
            if reply and collectors and (collector := collectors.get(number)) is not None:
                if not collector.messages:
                    collector.arrived()
                wire_bytes = len(subject) + len(reply) + end - start
                collector.messages.append(Raw(subject, reply, data[body:end], wire_bytes))
                continue
            try:
                handler(subject, reply, data[body:end], headers)
            except Exception as error:  # noqa: BLE001 - whoever receives writes it into the log
                self._receiver.on_failure(subject, error)
        return done

    def _needs_more(self, rest: bytes) -> bool:
        """Return whether `rest` is a message of ours that has not come whole."""
        line_end = rest.find(b"\r\n")
        if line_end < 0:
            return len(rest) < MAX_CONTROL_LINE_SIZE
        words = rest[:line_end].split(b" ")
        counts = _HEADED_WORDS if words[0] == b"HMSG" else _PLAIN_WORDS
        if len(words) not in counts or not words[-1].isdigit():
            return False
        return words[2] in self._handlers and int(words[-1]) < _KEPT_BYTES_MAX


def _may_be_ours(rest: bytes) -> bool:
    return rest.startswith((b"MSG ", b"HMSG ")) or b"MSG ".startswith(rest) or b"HMSG ".startswith(rest)
