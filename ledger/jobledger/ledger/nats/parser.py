"""Taking messages out of what the server sent, faster than nats-py's parser, for subscriptions of our own.

Only whole messages for a handler made by `listen` are taken here; everything else (other verbs, other subscriptions,
messages that are long or malformed) is left to nats-py's parser, byte for byte. Source: ADR 004.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec
from nats.protocol.parser import AWAITING_CONTROL_LINE, ERR_RE, MAX_CONTROL_LINE_SIZE, Parser

#: Called in the reader's task with subject, reply, data and raw headers: must be quick and must not raise.
Handler = Callable[[bytes, bytes, bytes, bytes], None]

#: What is kept of an incomplete message until the rest comes; a longer one is gathered by nats-py's parser.
_KEPT_BYTES_MAX: Final = 128 * 1024
_CRLF_BYTES: Final = 2
_H: Final = 72  # of HMSG, a message with headers
_FIRST_BYTES: Final = (_H, 77)  # and of MSG
_WORDS_MIN: Final = 4  # MSG, subject, sid, size
_PLAIN_WORDS: Final = (3, 4)  # subject, sid, [reply], size
_HEADED_WORDS: Final = (4, 5)  # subject, sid, [reply], header size, size


class Raw(msgspec.Struct, gc=False):
    """A message as a `Collector` is given it."""

    subject: bytes
    reply: bytes
    data: bytes
    wire_bytes: int  #: of headers and data


class Collector:
    """A handler for many messages: those that ask for a reply are put into `messages`, without a call for each.

    Whoever reads takes the list away and puts an empty one in its place. Messages without a reply subject, such as
    the server's own, are passed by a call, after the messages sent before them.
    """

    def __init__(self) -> None:
        self.messages: list[Raw] = []

    def arrived(self) -> None:
        """Hear that there is a first message; called from the reader, so must be quick and must not raise."""

    def heard(self, subject: bytes, data: bytes, headers: bytes) -> None:
        """Take a message without a reply subject; as `arrived`."""

    def __call__(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Take any message, as another handler does."""
        if not reply:
            self.heard(subject, data, headers)
            return
        if not self.messages:
            self.arrived()
        self.messages.append(Raw(subject, reply, data, len(headers) + len(data)))


class Receiver(Protocol):
    """The receiver of whole messages; it is also nats-py's client, which gets all the rest from its parser."""

    def deliver(self, handler: Handler, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Call the handler of a message; must not raise."""
        ...


class MessageParser(Parser):
    """nats-py's parser with a shortcut for whole messages.

    `handlers`: by subscription id, and not a copy: it is looked into for every message. `collectors`: those of them
    that are collectors, by subscription id as it is on the wire.
    """

    def __init__(
        self,
        receiver: Receiver,
        handlers: Mapping[int, Handler],
        collectors: Mapping[bytes, Collector] | None = None,
    ) -> None:
        self._resets = 0
        super().__init__(receiver)  # which resets
        self._receiver = receiver
        self._handlers = handlers
        self._collectors: Mapping[bytes, Collector] = {} if collectors is None else collectors
        self._kept = b""
        self._heard = False

    def heard(self) -> bool:
        """Return whether anything came since the last call."""
        heard, self._heard = self._heard, False
        return heard

    def error_line(self) -> str:
        """Return the server's words of the error that nats-py's parser is handing on, which it gives in lower case."""
        found = ERR_RE.match(self.buf)
        return "" if found is None else found[0].decode(errors="replace")

    def reset(self) -> None:
        """Begin again, as after a reconnect."""
        super().reset()
        self._kept = b""
        self._resets += 1

    async def parse(self, data: bytes = b"") -> None:
        """Hand on every whole message in `data` and what was kept of the data before.

        nats-py's parser gets one line, or the rest of one message, at a time. If it got all that follows, it would begin
        a message of ours, and keep the connection for as long as each read ends within a message.
        """
        self._heard = True
        resets = self._resets
        data, self._kept = self._kept + data, b""
        while data and resets == self._resets:  # after a reset, the rest is of a connection that is lost
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

    def _take(self, data: bytes) -> int:
        """Hand on messages from the front as long as they are whole and ours; return how many bytes are done."""
        done, length = 0, len(data)
        find, handlers, deliver = data.find, self._handlers, self._receiver.deliver
        collectors = self._collectors
        while done < length:
            first = data[done]
            if first not in _FIRST_BYTES:
                break
            line_end = find(b"\r\n", done)
            if line_end < 0:
                break
            # Only at spaces, as the server writes it: a subject may have other white space in it.
            words = data[done:line_end].split(b" ")
            headed = first == _H
            # A message that asks for no reply has one word less.
            replies = len(words) - _WORDS_MIN - headed
            if (
                replies not in (0, 1)
                or words[0] != (b"HMSG" if headed else b"MSG")
                or not words[-1].isdigit()
            ):
                break
            start = line_end + _CRLF_BYTES
            size = int(words[-1])
            end = start + size
            if end + _CRLF_BYTES > length:
                break
            if headed and not words[-2].isdigit():
                break
            body = start + int(words[-2]) if headed else start
            collector = collectors.get(words[2]) if replies else None
            if collector is not None:
                if not collector.messages:
                    collector.arrived()
                collector.messages.append(Raw(words[1], words[3], data[body:end], size))
            else:
                handler = handlers.get(int(words[2])) if words[2].isdigit() else None
                if handler is None:
                    break
                deliver(handler, words[1], words[3] if replies else b"", data[body:end], data[start:body])
            done = end + _CRLF_BYTES
        return done

    def _needs_more(self, rest: bytes) -> bool:
        """Return whether `rest` is a message of ours that has not come whole."""
        line_end = rest.find(b"\r\n")
        if line_end < 0:
            return len(rest) < MAX_CONTROL_LINE_SIZE
        words = rest[:line_end].split(b" ")
        counts = _HEADED_WORDS if words[0] == b"HMSG" else _PLAIN_WORDS
        if len(words) - 1 not in counts or not (words[2].isdigit() and words[-1].isdigit()):
            return False
        size = int(words[-1])
        return int(words[2]) in self._handlers and size < _KEPT_BYTES_MAX


def _may_be_ours(rest: bytes) -> bool:
    return rest.startswith((b"MSG ", b"HMSG ")) or b"MSG ".startswith(rest) or b"HMSG ".startswith(rest)
